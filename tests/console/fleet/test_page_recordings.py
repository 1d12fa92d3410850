"""Metrics pages, recorded and shown again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from schedtop.console.cli.errors import CommandError
from schedtop.console.cli.page_recordings import RecordedPages, record_pages
from schedtop.console.fleet.app import FleetReplayApp
from schedtop.engine.inspect.kind import kind_of
from schedtop.engine.scrape.page import EngineKey, PageError, PageReading
from schedtop.engine.scrape.recorded import PageWriter, is_page_recording, read_pages
from textual.widgets import DataTable

from tests.console.fleet.fake_server import PLAIN, Server, page

KEY = EngineKey("m", "0")


def written(path: Path, tokens: list[float]) -> Path:
    writer = PageWriter(str(path))
    for at_s, count in enumerate(tokens):
        buckets = [(0.01, count), (math.inf, count)]
        reading = PageReading({"running": at_s}, {"output_tokens": count}, {"itl": buckets})
        writer.page(1000.0 + at_s, "host:1", {KEY: reading})
    writer.page(1000.0 + len(tokens), "host:1", {}, "no answer")
    writer.close()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    pages = list(read_pages(written(tmp_path / "p.rec", [5.0, 25.0])))
    assert [page.at_s for page in pages] == [1000.0, 1001.0, 1002.0]
    assert pages[1].readings()[KEY].histograms["itl"] == [(0.01, 25.0), (math.inf, 25.0)]
    assert (pages[2].error, pages[2].engines) == ("no answer", [])


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "p.rec", [5.0, 25.0])
    path.write_bytes(path.read_bytes()[:-5])
    assert len(list(read_pages(path))) == 2
    path.write_bytes(path.read_bytes().replace(b'"at_s":1001', b'"at_s":"x"'))
    with pytest.raises(PageError, match="a line is damaged"):
        list(read_pages(path))


def test_another_file_is_none(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("{}\n")
    assert not is_page_recording(other) and not is_page_recording(tmp_path / "none")
    path = written(tmp_path / "p.rec", [1.0])
    assert is_page_recording(path)
    assert kind_of(path) == ("a recording of metrics pages", "schedtop replay takes it")


def test_a_server_is_recorded(tmp_path: Path) -> None:
    server, path = Server(), tmp_path / "p.rec"
    server.answer = (200, PLAIN, page(5))
    reported = record_pages([server.address], str(path), lambda: path.exists() and len(path.read_bytes()) > 400)
    server.close()
    assert "1 pages of 127.0.0.1" in reported or "2 pages of 127.0.0.1" in reported
    assert next(iter(read_pages(path))).readings()[KEY].gauges["running"] == 4


def test_a_moment_shows_what_was_known_then(tmp_path: Path) -> None:
    clock = [0.0]
    pages = RecordedPages(written(tmp_path / "p.rec", [5.0, 25.0, 35.0]), lambda: clock[0])
    assert [(row.running, row.output_per_s) for row in pages.rows(60.0)] == [(0, None)]
    clock[0] = 2.0
    assert [(row.running, row.output_per_s) for row in pages.rows(60.0)] == [(2, 15.0)]
    clock[0] = 50.0
    assert [row.state for row in pages.rows(60.0)] == ["no answer"]
    pages.toggle()
    pages.move(-2.0)
    clock[0] = 60.0
    assert [(row.state, row.running, row.itl[0]) for row in pages.rows(60.0)] == [("", 1, "≤10 ms")]
    assert pages.notes()[0].startswith("recorded pages: 1 of 3 s, standing still")


def test_an_empty_recording_is_said(tmp_path: Path) -> None:
    PageWriter(str(tmp_path / "p.rec")).close()
    with pytest.raises(CommandError, match="holds no page"):
        RecordedPages(tmp_path / "p.rec")


async def test_keys_move_in_time(tmp_path: Path) -> None:
    pages = RecordedPages(written(tmp_path / "p.rec", [float(count) for count in range(40)]), lambda: 0.0)
    app = FleetReplayApp(pages, "replay")
    async with app.run_test(size=(160, 30)) as pilot:
        table = app.query_one(DataTable)
        assert str(table.get_row_at(0)[1]) == "0"
        await pilot.press("right", "right")
        assert str(table.get_row_at(0)[1]) == "20"
        await pilot.press("left")
        assert str(table.get_row_at(0)[1]) == "10"
        await pilot.press("space")
        assert not pages.playing
