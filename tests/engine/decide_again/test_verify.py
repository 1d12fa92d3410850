"""Recordings decided again: equal where nothing was touched, the first difference where something was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_matrix
from schedtop.engine.contract.telemetry import ROW_FIELDS, StepRecord
from schedtop.engine.decide_again.verify import RecordingVerdict, verify_recording
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.recording import Recording, RecordingError, RecordingWriter

from tests.thorough import pick


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_speculative_tokens": 2},
        {"policy": "priority"},
        {"source": "unrelated", "enable_prefix_caching": False},
        {"source": "shared-prefix", "num_blocks": 900},
        {"watermark": 0.1, "long_prefill_token_threshold": 128, "block_size": 32},
        {"enable_chunked_prefill": False, "scheduler_reserve_full_isl": False, "max_num_batched_tokens": 4096},
        {"sliding_window": 512, "rate": 5.0},
        {"num_blocks": 300, "rate": 6.0},
    ],
    ids=lambda settings: ",".join(settings) or "plain",
)
def test_an_engine_of_ours_is_decided_the_same(record: Callable[..., Path], settings: dict[str, Any]) -> None:
    path = record(250, **settings)
    with Recording(path) as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert 240 <= verdict.steps <= 250


class SomeDrafts:
    """A worker whose drafter finds now more, now less."""

    def __init__(self, worker: Any, most: int) -> None:
        self.simulated, self._worker, self._most = worker.simulated, worker, most
        self._random = np.random.default_rng(3)

    def execute(self, plan: StepPlan) -> StepResult:
        result: StepResult = self._worker.execute(plan)
        result.num_drafts = self._random.integers(0, self._most + 1, plan.num_rows).astype(np.int32)
        result.drafts = np.zeros((plan.num_rows, self._most), dtype=np.int32)
        return result


def test_drafts_that_a_step_cut_or_dropped_are_part_of_what_is_verified(tmp_path: Path) -> None:
    """A draft may cost a request its place, and then no row tells of it."""
    settings = {"num_blocks": 150, "num_speculative_tokens": 3, "async_scheduling": False}
    workload = WorkloadSpec(source="unrelated", rate=9.0, max_prompt_tokens=400, max_output_tokens=200)
    engine = build_engine(EngineConfig(workload=workload, scheduler={**settings, "max_num_batched_tokens": 64}))
    engine.header = msgspec.structs.replace(engine.header, simulated_clock=False)
    engine.worker = SomeDrafts(engine.worker, 3)
    with RecordingWriter(tmp_path / "run.rec", engine.header, engine.snapshot) as writer:
        for _ in range(400):
            record = engine.step()
            assert record is not None
            writer.write(record)
    with Recording(tmp_path / "run.rec") as recording:
        verdict = verify_recording(recording)
        assert any(record.proposed for record in recording.records())
    assert verdict.equal and verdict.preemptions, str(verdict.difference)


def test_pressure_is_part_of_what_is_verified(recording: Recording) -> None:
    verdict = verify_recording(recording)
    assert verdict.equal and verdict.preemptions > 5 and verdict.admissions > 10
    assert sum(record.scheduled_tokens for record in recording.records()) == verdict.scheduled_tokens
    ended = verdict.finished + verdict.kv_capacity + verdict.refused + verdict.aborted + verdict.failed
    assert verdict.submitted == ended + verdict.running + verdict.waiting


def rewritten(
    recording: Recording, path: Path, index: int, change: Callable[[StepRecord], StepRecord]
) -> RecordingVerdict:
    """The verdict on a copy of the recording in which one record was changed."""
    snapshot, _ = recording.keyframe_before(0)
    with RecordingWriter(path, recording.header, lambda: snapshot) as writer:
        for place, record in enumerate(recording.records()):
            writer.write(change(record) if place == index else record)
    with Recording(path) as copy:
        return verify_recording(copy)


def replace(**fields: Any) -> Callable[[StepRecord], StepRecord]:
    return lambda record: msgspec.structs.replace(record, **fields)


def fewer_tokens(record: StepRecord) -> StepRecord:
    rows = row_matrix(record).copy()
    rows[ROW_FIELDS.index("tokens"), -1] += 1
    return msgspec.structs.replace(record, rows=rows.tobytes())


def another_block(record: StepRecord) -> StepRecord:
    ids = np.frombuffer(record.grown_blocks, dtype=np.int32).copy()
    ids[0] ^= 1
    return msgspec.structs.replace(record, grown_blocks=ids.tobytes())


def another_class(record: StepRecord) -> StepRecord:
    """A block that was taken stays, in the record, what it never was."""
    packed = np.frombuffer(record.changed_blocks, dtype=np.int32).copy()
    packed[0] ^= 1
    return msgspec.structs.replace(record, changed_blocks=packed.tobytes())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (another_class, "block "),
        (fewer_tokens, "scheduled"),
        (replace(limiter="watermark"), "limiter"),
        (replace(preemptions=()), "preempted"),
        (another_block, "grown blocks"),
    ],
)
def test_one_changed_decision_is_found_at_its_step(
    recording: Recording, tmp_path: Path, change: Callable[[StepRecord], StepRecord], field: str
) -> None:
    wanted = [
        i for i, r in enumerate(recording.records()) if r.preemptions and r.grown and r.limiter != "watermark"
    ]
    index = wanted[len(wanted) // 2]
    verdict = rewritten(recording, tmp_path / "changed.schedtop", index, change)
    assert not verdict.equal and verdict.difference is not None
    assert verdict.difference.step == recording.record(index).step
    assert any(part.field.startswith(field) for part in verdict.difference.parts)
    assert verdict.steps < recording.num_steps


def test_another_scheduler_is_found_out(recording: Recording, tmp_path: Path) -> None:
    """A recording that claims settings it was not made with."""
    header = msgspec.structs.replace(recording.header, config={**recording.header.config, "watermark": 0.2})
    snapshot, _ = recording.keyframe_before(0)
    path = tmp_path / "other.schedtop"
    with RecordingWriter(path, header, lambda: snapshot) as writer:
        for record in recording.records():
            writer.write(record)
    with Recording(path) as other:
        verdict = verify_recording(other)
    assert verdict.difference is not None and str(verdict.difference).startswith(f"step {verdict.difference.step}")


def test_a_recording_that_begins_later_cannot_be_decided(record: Callable[..., Path]) -> None:
    with Recording(record(50, late=30)) as recording, pytest.raises(RecordingError, match="begins at step 30"):
        verify_recording(recording)


def test_a_truncated_recording_is_decided_as_far_as_it_goes(pressed: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.schedtop"
    cut.write_bytes(pressed.read_bytes()[:-2000])
    with Recording(cut) as recording:
        verdict = verify_recording(recording)
        assert verdict.equal and verdict.truncated and verdict.steps > 0


@pytest.mark.parametrize(
    "config", [{}, {"num_blocks": "many"}, {"num_blocks": 0}, {"num_blocks": 10, "watermark": 3.0}]
)
def test_settings_that_no_scheduler_has(recording: Recording, tmp_path: Path, config: dict[str, Any]) -> None:
    header = msgspec.structs.replace(recording.header, config=config)
    snapshot, _ = recording.keyframe_before(0)
    path = tmp_path / "foreign.schedtop"
    with RecordingWriter(path, header, lambda: snapshot) as writer:
        writer.write(recording.record(0))
    with Recording(path) as other, pytest.raises(RecordingError, match="settings"):
        verify_recording(other)


CASES = [
    path
    for path in sorted(Path(__file__).parents[2].joinpath("golden").glob("*.json"))
    if b'"kv_connector"' not in path.read_bytes()  # a case's store answers only in a replay
]


@pytest.mark.parametrize("case", pick(CASES[::3], thorough=CASES), ids=lambda path: path.stem)
def test_a_recorded_golden_case_is_decided_the_same(case: Path, tmp_path: Path) -> None:
    """Twins, windows, placeholders and blocks registered for steps that never ran."""
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=str(case))))
    with RecordingWriter(tmp_path / "case.schedtop", engine.header, engine.snapshot) as writer:
        for _ in range(2000):
            if engine.exhausted:
                break
            record = engine.step()
            if record is not None:
                writer.write(record)
    assert engine.exhausted or record is not None
    with Recording(tmp_path / "case.schedtop") as recording:
        if unreported := engine.header.settings.get("undecidable"):
            with pytest.raises(RecordingError, match=unreported[0]):
                verify_recording(recording)
            return
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
