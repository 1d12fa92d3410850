"""Recordings that vLLM's own scheduler wrote, decided again: `servers/` are of `tests/vllm/random_run.py`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from schedtop.console.past.state import LiveState
from schedtop.engine.decide_again.recorded_inputs import with_following
from schedtop.engine.decide_again.server_log import driver_of
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.recording.frames import RecordingError

SERVERS = sorted((Path(__file__).parent / "servers").glob("*.rec"))


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.stem)
def test_a_servers_steps_are_decided_alike(path: Path) -> None:
    with Recording(path) as recording:
        verdict = verify_recording(recording)
        assert verdict.equal, str(verdict.difference)
        assert verdict.steps == recording.num_steps - verdict.first_step
        begins = recording.keyframe_before(0)[0].step
    assert bool(verdict.first_step) == bool(begins) == path.stem.startswith("late")
    assert verdict.preemptions and verdict.aborted


@pytest.mark.parametrize("name", ["sync-20", "async-20"])
def test_an_abort_counts_from_when_it_happened(name: str) -> None:
    """Told at another time, between other steps, it leaves other blocks behind."""
    path = next(path for path in SERVERS if path.stem == name)
    with Recording(path) as recording:
        records = list(recording.records())
        driver = driver_of(recording.header, recording.path)
    late = [
        msgspec.structs.replace(
            record,
            finishes=tuple(
                finish if finish.ended_s is None else msgspec.structs.replace(finish, ended_s=record.end_s)
                for finish in record.finishes
            ),
        )
        for record in records
    ]
    rows = [
        decided is not None and decided.rows == record.rows
        for record, decided in (
            (record, driver.play(record, following)) for record, following in with_following(late, driver.num_ahead)
        )
    ]
    assert not all(rows)


def test_a_late_recording_of_a_server_that_was_never_idle_is_refused(tmp_path: Path) -> None:
    """Its snapshot tells neither of the step under way nor of drafts."""
    with Recording(Path(__file__).parent / "servers" / "async-20.rec") as recording:
        state, records = LiveState(), list(recording.records())
        state.start_afresh(recording.keyframe_before(0)[0])
        for record in records[:10]:
            state.apply(record)
        with closing(RecordingWriter(str(tmp_path / "late.rec"), recording.header, state.snapshot)) as writer:
            for record in records[10:]:
                state.apply(record)
                writer.write(record)
    with (
        Recording(tmp_path / "late.rec") as recording,
        pytest.raises(RecordingError, match="was never idle after it"),
    ):
        verify_recording(recording)


def test_a_recording_without_the_order_of_things_is_refused() -> None:
    with Recording(SERVERS[0]) as recording:
        header = recording.header
    config = {name: value for name, value in header.config.items() if name != "async_scheduling"}
    with pytest.raises(RecordingError, match="an older hook, which did not tell in which order"):
        driver_of(msgspec.structs.replace(header, config=config), "old.rec")


def test_without_word_of_the_drafters_cache_a_difference_is_a_refusal(tmp_path: Path) -> None:
    """What EAGLE asks of the blocks was not in the headers of older hooks."""
    with Recording(Path(__file__).parent / "servers" / "eagle-async.rec") as recording:
        unreported = {"drop_last_cached_block", "num_lookahead_tokens", "prefill_lookahead"}
        assert unreported <= recording.header.config.keys()
        config = {name: value for name, value in recording.header.config.items() if name not in unreported}
        header, first = msgspec.structs.replace(recording.header, config=config), recording.keyframe_before(0)[0]
        with closing(RecordingWriter(str(tmp_path / "old.rec"), header, lambda: first)) as writer:
            for record in recording.records():
                writer.write(record)
    with (
        Recording(tmp_path / "old.rec") as recording,
        pytest.raises(RecordingError, match="did not tell whether the drafter has a cache"),
    ):
        verify_recording(recording)
