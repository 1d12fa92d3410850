"""A TCP engine asked without its token: every command that joins one says so, in a line that names the token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedtop.console.cli.main import main
from schedtop.engine.channel.server import ChannelServer


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    over = threading.Event()
    with ChannelServer("tcp:127.0.0.1:0", token_file=str(tmp_path / "own" / "token")) as server:

        def serve() -> None:
            while not over.is_set():
                server.poll(0.02)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.address
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "line",
    [
        "status {}",
        "status {} --json",
        "knobs {}",
        "knobs {} --json",
        "knobs {} --set max_num_seqs=4",
        "record {} -o {out}",
        "attach {} --plain",
    ],
)
def test_the_token_is_named(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("SCHEDTOP_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(SystemExit) as end:
        main(line.format(address, out=tmp_path / "out.rec").split())
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert f"asks for the token in {tmp_path / 'own' / 'token'} (none was given)" in err
    assert not (tmp_path / "out.rec").exists()


def test_a_named_file_that_is_not_there_is_what_is_missing(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["status", address, "--token-file", str(tmp_path / "nofile")])
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert f"there is no token file {tmp_path / 'nofile'}" in err
