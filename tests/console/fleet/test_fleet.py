"""A fleet over servers that answer, restart, lie, and do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from schedtop.console.cli.fleet import Members, PageMember, brief_names, expand
from schedtop.console.fleet.app import FleetApp
from schedtop.console.fleet.rows import FleetRow, imbalances, row_of, summed
from schedtop.console.past.history import History
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.scrape import fetch
from schedtop.engine.scrape.page import PageError
from textual.widgets import DataTable, Static

from tests.console.fleet.fake_server import PLAIN, Answer, Server, page


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_rates_and_bounds_of_a_server(server: Server) -> None:
    times = iter([10.0, 12.0])
    member = PageMember(server.address, lambda: next(times))
    for tokens in (100, 300):
        server.answer = (200, PLAIN, page(tokens, waiting=2))
        assert member.fetch_once(), member.state
    (row,) = member.rows(60.0)
    assert (row.running, row.waiting, row.kv_usage, row.output_per_s) == (4, 2, 0.5, 100.0)
    assert row.itl == ("≤10 ms", "≤10 ms") and row.ttft == ("n/a", "n/a")
    assert not row.address  # nothing to open: a page has no steps


def test_a_restart_is_counted(server: Server) -> None:
    member = PageMember(server.address)
    for tokens in (100, 3):
        server.answer = (200, PLAIN, page(tokens))
        member.fetch_once()
    assert [(row.restarts, row.output_per_s) for row in member.rows(60.0)] == [(1, None)]


def half(handler: BaseHTTPRequestHandler) -> None:
    body = page(5)
    handler.send_response(200)
    handler.send_header("Content-Type", PLAIN)
    handler.send_header("Content-Length", str(2 * len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", PLAIN)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"# " + b"x" * 65_536 + b"\n")
    except OSError:
        handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, PLAIN, b""), "answered 404 Not Found"),
        ((200, "text/html", b"<html>"), "answered with a web page"),
        ((200, PLAIN, b"\xff\xfe{{{{ nonsense"), "not a metrics page"),
        ((200, PLAIN, b"up 1\n"), "no figure of vLLM or SGLang"),
        ((302, PLAIN, b""), "answered 302"),
        (half, "peer closed connection"),
        (endless, "more than 1 MiB"),
    ],
)
def test_a_page_that_is_none_is_a_state_and_the_next_one_counts(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Answer, why: str
) -> None:
    monkeypatch.setattr(fetch, "MAX_PAGE_BYTES", 1 << 20)
    member = PageMember(server.address)
    server.answer = answer
    assert not member.fetch_once()
    (row,) = member.rows(60.0)
    assert why in row.state
    server.answer = (200, PLAIN, page(5))
    assert member.fetch_once()
    assert [row.state for row in member.rows(60.0)] == [""]


def test_nobody_there_is_a_state(server: Server) -> None:
    member = PageMember(server.address)
    server.close()
    assert not member.fetch_once()
    assert "refused" in member.state.lower() or "connect" in member.state.lower()


def test_what_was_known_of_a_server_that_went_is_kept_with_the_cause(server: Server) -> None:
    member = PageMember(server.address)
    server.answer = (200, PLAIN, page(5))
    member.fetch_once()
    server.answer = (500, PLAIN, b"")
    member.fetch_once()
    (row,) = member.rows(60.0)
    assert row.running == 4 and "answered 500" in row.state


def test_an_address_without_a_host_is_refused() -> None:
    with pytest.raises(PageError, match="names no host"):
        PageMember("http://")


def test_a_pattern_becomes_the_sockets_it_matches(tmp_path: Path) -> None:
    for name in ("v-1.sock", "v-0.sock", "other"):
        (tmp_path / name).touch()
    pattern = f"unix:{tmp_path}/v-*.sock"
    assert expand([pattern, "http://h:1/x?[a]", pattern]) == [
        f"unix:{tmp_path}/v-0.sock",
        f"unix:{tmp_path}/v-1.sock",
        "http://h:1/x?[a]",
    ]


def test_an_engine_that_is_idle_for_a_whole_window_makes_no_tokens() -> None:
    """It reports nothing then: what it did before is not what it does."""
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source="mixed", rate=8.0, limit=60)))
    history = History()
    history.apply(engine.header)
    history.apply(engine.snapshot())
    while not engine.exhausted:
        record = engine.step()
        if record is not None:
            history.apply(record)
    whole, half, none = (row_of("a", "", "", history, 10.0, silent_s) for silent_s in (0.0, 5.0, 10.0))
    assert whole.output_per_s and half.output_per_s and whole.prompt_per_s
    tokens = history.live.totals.output_tokens
    assert half.output_per_s * 10 <= whole.output_per_s * 10 <= tokens
    assert (none.output_per_s, none.prompt_per_s) == (0.0, 0.0)


def test_sums_are_of_all_or_of_none() -> None:
    rows = [FleetRow("a", running=1, output_per_s=5.0, kv_usage=0.5), FleetRow("b", running=2, output_per_s=None)]
    total = summed(rows)
    assert total is not None
    assert (total.running, total.output_per_s, total.kv_usage, total.ttft) == (3, None, None, ("n/a", "n/a"))
    assert summed([rows[0], FleetRow("c", state="gone", running=9)]) is None


def test_an_engine_that_stands_out_is_marked() -> None:
    rows = [FleetRow(str(place), waiting=waiting, kv_usage=0.5) for place, waiting in enumerate((0, 1, 30))]
    assert imbalances(rows) == {2: "waiting"}
    assert imbalances([FleetRow("a", waiting=0, kv_usage=0.9), FleetRow("b", waiting=0, kv_usage=0.3)]) == {0: "KV"}
    assert imbalances([FleetRow("a", waiting=50)]) == {}


async def test_the_screen_shows_a_row_per_engine_and_their_sum(server: Server) -> None:
    server.answer = (200, PLAIN, page(5, waiting=1) + page(7, waiting=60, engine="1"))
    members = Members([server.address])
    members.pages[0].fetch_once()
    app = FleetApp(members, server.address)
    async with app.run_test(size=(160, 30)) as pilot:
        table = app.query_one(DataTable)
        assert table.row_count == 3
        assert str(table.get_row_at(0)[0]).endswith("m engine 0")
        assert [str(cell) for cell in table.get_row_at(2)][:3] == ["2 engines", "8", "61"]
        assert str(table.get_row_at(1)[-1]) == "! waiting"
        await pilot.press("enter")
        assert app.is_running  # a page has no steps to open
        server.answer = (503, PLAIN, b"")
        members.pages[0].fetch_once()
        app.look()
        assert str(table.get_row_at(0)[1]) == "!" and table.row_count == 2
        await pilot.resize_terminal(80, 24)
        causes = app.query_one("#causes", Static)
        assert "503" in str(causes.content) and causes.region.bottom <= 24
        await pilot.press("q")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (("set on 2 engines", ""), "set on 2 engines"),
        (("", "a: must be at most 16"), "nothing was changed: a: must"),
    ],
    ids=["set", "refused"],
)
async def test_limits_of_all_are_typed_on_the_screen(
    server: Server, answer: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, reported = list[str](), list[str]()

    def set_limits(words: str) -> tuple[str, str]:
        asked.append(words)
        return answer

    app = FleetApp(Members([server.address]), server.address, set_limits=set_limits)
    monkeypatch.setattr(app, "notify", lambda text, **how: reported.append(text))
    async with app.run_test(size=(160, 30)) as pilot:
        await pilot.press("K", "escape")
        assert not asked
        await pilot.press("K", *"max_num_seqs=4", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert asked == ["max_num_seqs=4"] and reported[-1].startswith(said)
        assert isinstance(app.focused, DataTable) and not app.query_one("#limits").display


def test_engines_are_called_by_the_last_part_of_their_paths_where_that_tells_them_apart() -> None:
    addresses = ["unix:/run/a/one.sock", "unix:/run/a/s.sock", "unix:/run/b/s.sock", "tcp:127.0.0.1:9"]
    assert list(brief_names(addresses).values()) == ["one.sock", "a/s.sock", "b/s.sock", "tcp:127.0.0.1:9"]


@pytest.mark.parametrize(("width", "called"), [(160, "unix:/run/user/1000/a.sock"), (80, "a.sock")])
async def test_a_narrow_row_begins_with_the_last_part_of_a_path_and_the_whole_stands_below(
    width: int, called: str
) -> None:
    app = FleetApp(Members([f"unix:/run/user/1000/{name}.sock" for name in "ab"]), "two")
    async with app.run_test(size=(width, 24)) as pilot:
        table = app.query_one(DataTable)
        assert str(table.get_row_at(0)[0]) == called
        await pilot.press("down")
        await pilot.pause()
        below = str(app.query_one("#causes", Static).content)
        assert ("unix:/run/user/1000/b.sock" in below.splitlines()[0]) == (width == 80)
