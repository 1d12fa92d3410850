"""Where two recordings part, and what a recording sums up to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from schedtop.engine.decide_again.diff import RecordingDiff, diff
from schedtop.engine.inspect.info import document, text
from schedtop.engine.recording import Recording


def parted(a: Path, b: Path) -> RecordingDiff:
    with Recording(a) as left, Recording(b) as right:
        return diff(left, right)


def test_two_runs_of_one_seed_are_the_same(record: Callable[..., Path]) -> None:
    found = parted(record(120), record(120))
    assert found.equal and not found.settings and "every step is the same" in found.as_text()


def test_a_setting_is_named_as_the_cause(record: Callable[..., Path]) -> None:
    found = parted(record(200, turned=False), record(200, turned=False, max_num_seqs=5))
    assert not found.equal and found.step is not None
    assert ("max_num_seqs", "16", "5") in [(part.field, part.base, part.variant) for part in found.settings]
    assert "limiter" in [part.field for part in found.parts] and not found.outside
    assert "max_num_seqs" in found.as_text()


def test_a_knob_turned_in_one_of_them_is_named(record: Callable[..., Path]) -> None:
    found = parted(record(200, turned=False, rate=8.0), record(200, turned=True, rate=8.0))
    assert not found.equal and found.step is not None and found.step > 30
    assert any("knob" in part.field or part.field == "finished" for part in [*found.outside, *found.parts])


def test_other_requests_are_named(record: Callable[..., Path]) -> None:
    found = parted(record(100, turned=False), record(100, turned=False, source="unrelated"))
    assert not found.equal and any("arrived" in part.field for part in found.outside)


def test_the_shorter_of_two_equal_runs_ends_first(record: Callable[..., Path]) -> None:
    found = parted(record(80, turned=False), record(90, turned=False))
    assert found.step == 81 and found.parts[0].base == "over" and found.parts[0].variant == "goes on"


def test_info_sums_up_the_records(recording: Recording) -> None:
    figures = document(recording, on_progress=lambda index: None)
    records = list(recording.records())
    assert figures["steps"] == records[-1].totals.steps and figures["clock_s"] == records[-1].end_s
    assert figures["truncated"] is None and figures["records"] == len(records)
    assert figures["ttft_s"]["n"] == sum(len(record.ttft_s) for record in records)
    assert figures["header"]["num_blocks"] == recording.header.num_blocks
    json.dumps(figures)
    words = text(recording, figures)
    assert all(line.isprintable() for line in words.splitlines())
    assert f"{figures['steps']:,}" in words


def test_info_of_a_file_that_is_cut_off_says_so(pressed: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.schedtop"
    cut.write_bytes(pressed.read_bytes()[:-3000])
    with Recording(cut) as recording:
        figures = document(recording)
        assert "last good step" in figures["truncated"] and figures["truncated"] in text(recording, figures)
        assert figures["steps"] == recording.num_steps


@pytest.mark.parametrize("late", [0, 40])
def test_totals_are_since_the_start_of_the_engine(record: Callable[..., Path], late: int) -> None:
    with Recording(record(30, turned=False, late=late)) as recording:
        figures = document(recording)
        assert figures["steps"] == late + 30 and figures["first_step"] == late + 1
