"""A recording that another removes, replaces or cuts while it is written: it goes on beside it, and says so."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.recording import Recording, RecordingMovedError, RecordingWriter


def wait_for(size: Callable[[], int], above: int) -> None:
    """Until the writer's thread has flushed; it does so by itself."""
    for _ in range(100_000):
        if size() > above:
            return
        os.sched_yield()
    raise AssertionError("nothing was written")


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("somebody else's")
    other.replace(path)


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (Path.unlink, "removed"),
    "moved": (lambda path: path.rename(path.with_name("moved.rec")), "moved away"),
    "replaced": (replace, "replaced"),
    "cut": (lambda path: os.truncate(path, 100), "cut"),
    "emptied": (lambda path: os.truncate(path, 0), "cut"),
    "appended": (lambda path: path.open("ab").write(b"more"), "written to"),
}


def record(run: Any, path: Path, harm: Callable[[Path], object], *, at: int) -> list[str]:
    """Record the run, with `harm` done to the file after `at` records; what was told."""
    reported: list[str] = []
    num = 0
    writer = RecordingWriter(path, run.header, lambda: run.snapshots[num], notice=reported.append)
    for record in run.records:
        num += 1
        writer.write(record)
        if num == at:
            wait_for(lambda: path.stat().st_size, 20_000)
            harm(path)
    with pytest.raises(RecordingMovedError):
        writer.close()
    return reported


@pytest.mark.parametrize("name", HARM)
def test_it_goes_on_beside_and_is_told(run: Any, tmp_path: Path, short_chunks: None, name: str) -> None:
    harm, word = HARM[name]
    path = tmp_path / "run.rec"
    reported = record(run, path, harm, at=300)
    beside = tmp_path / "run-2.rec"
    assert len(reported) == 1 and word in reported[0] and str(beside) in reported[0]
    with Recording(beside) as recording:
        got = list(recording.records())
        assert recording.truncated is None
    if word in ("cut", "written to"):
        assert len(got) > 0 and got == run.records[-len(got) :], "from a keyframe to the end"
    else:
        assert got == run.records, "what our own file held is not lost"
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600


def test_what_another_put_there_is_left_alone(run: Any, tmp_path: Path, short_chunks: None) -> None:
    path = tmp_path / "run.rec"
    (tmp_path / "run-2.rec").write_text("taken")
    record(run, path, replace, at=300)
    assert path.read_text() == "somebody else's" and (tmp_path / "run-2.rec").read_text() == "taken"
    with Recording(tmp_path / "run-3.rec") as recording:
        assert list(recording.records()) == run.records


def test_a_loss_at_the_very_end_is_noticed_too(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    reported = record(run, path, Path.unlink, at=len(run.records))
    assert "removed" in reported[0]
    with Recording(tmp_path / "run-2.rec") as recording:
        assert list(recording.records()) == run.records


def test_nobody_else_may_read_a_recording(run: Any, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = run.record_to(tmp_path / "run.rec", 10)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
