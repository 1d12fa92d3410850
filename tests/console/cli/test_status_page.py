"""`schedtop status` and `attach --plain` on a metrics page: what it tells, and one line where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from schedtop.console.cli import status
from schedtop.console.cli.main import main

from tests.console.fleet.fake_server import PLAIN, Server, page


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(status, "LISTEN_S", 0.01)
    server = Server()
    server.answer = (200, PLAIN, page(100, waiting=3, usage=0.25))
    yield server
    server.close()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        main([*words])
    return end.value.code, *capsys.readouterr()


def test_status_prints_what_the_page_tells(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "status", server.address)
    assert code == 0 and "requests: 4 running, 3 waiting" in out and "KV: 25%" in out
    code, out, _ = run(capsys, "status", server.address, "--json")
    (engine,) = json.loads(out)["engines"]
    assert code == 0 and (engine["running"], engine["waiting"], engine["kv_usage"]) == (4, 3, 0.25)


@pytest.mark.parametrize("command", [("status",), ("attach", "--plain")])
def test_where_there_is_no_page_one_line_says_so(
    server: Server, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    server.answer = (404, PLAIN, b"")
    code, out, err = run(capsys, *command, server.address)
    assert (code, out, err.count("\n")) == (2, "", 1) and server.address in err and "404" in err
