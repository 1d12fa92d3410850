"""A recording run again: as it was it must be the recording, and otherwise part from it where it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import Snapshot, StepRecord
from schedtop.engine.decide_again.recorded_scenario import recorded_scenario
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.step.engine import Engine
from schedtop.engine.whatif.compare import compare
from schedtop.engine.whatif.rerun import Rerun, RerunQuestion, rerun

from tests.thorough import pick

NUM_RECORDS = 320
REAL = {"device": "cpu, 2 threads", "simulated_clock": False}


def built(limit: int | None = None, drafts: int = 2) -> Engine:
    scheduler = {"max_num_seqs": 16, "num_blocks": 160, "num_speculative_tokens": drafts, "max_model_len": 2048}
    workload = WorkloadSpec(source="mixed", rate=3.0, limit=limit, scale=0.3)
    return build_engine(EngineConfig(device="sim:llama-3.1-8b@l4", workload=workload, scheduler=scheduler))


def write(
    path: Path, engine: Engine, num: int | None, *, meddle: bool = False, **header: Any
) -> tuple[list[StepRecord], list[Snapshot]]:
    """Record `num` records of an engine (None: all of them); snapshots are those after each record."""
    records: list[StepRecord] = []
    snapshots = []
    with RecordingWriter(path, msgspec.structs.replace(engine.header, **header), engine.snapshot) as writer:
        while not engine.exhausted and (num is None or len(records) < num):
            if meddle:
                outside(engine, records)
            record = engine.step()
            assert record is not None
            records.append(record)
            snapshots.append(engine.snapshot())
            writer.write(record)
    return records, snapshots


def outside(engine: Engine, records: list[StepRecord]) -> None:
    """Knob changes, aborts and a pause."""
    i = len(records)
    if i % 97 == 50:
        engine.set_knobs({"max_num_seqs": 12 + i % 7}, by="test")
    if i % 61 == 30:
        engine.abort(int(row_columns(records[-1])["request"][0]))
    if i in (200, 201):
        (engine.pause if i == 200 else engine.resume)()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool under pressure, meddled with, which ends with requests in flight."""
    path = tmp_path_factory.mktemp("busy") / "run.rec"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schedtop.engine.recording.writer.BATCH_RECORDS", 16)
        write(path, built(), NUM_RECORDS, meddle=True)
    return path


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in which every request was served."""
    path = tmp_path_factory.mktemp("drained") / "run.rec"
    write(path, built(limit=25), None)
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As recorded on a device that is not simulated."""
    path = tmp_path_factory.mktemp("real") / "run.rec"
    write(path, built(limit=30, drafts=0), None, **REAL)
    return path


def ask(path: Path, index: int | None = None, snapshot: Snapshot | None = None, **changes: Any) -> Rerun:
    return rerun(RerunQuestion(path=str(path), changes=changes, index=index, snapshot=snapshot))


@pytest.mark.parametrize(
    "index", pick([None, 150, 200, NUM_RECORDS - 2], [None, 0, 61, 150, 200, 201, NUM_RECORDS - 2])
)
def test_as_it_was_it_is_the_recording_from_wherever_it_is_run(busy: Path, index: int | None) -> None:
    found = ask(busy, index, watermark=0.2)
    assert found.exact and found.drift is None and not found.measured
    latencies = ("ttft", "itl", "e2e", "goodput")
    assert all(row.recorded == row.base for row in found.rows if not row.name.startswith(latencies))
    assert found.unserved == (0, 0) and not any(row.base.startswith(">") for row in found.rows)
    assert found.unfinished


class Seen:
    """Keeps what it is shown, on the recording's clock."""

    def begin(self, snapshot: Snapshot, shift_s: float) -> None:
        self.start_s, self.shift_s, self.records = snapshot.clock_s + shift_s, shift_s, list[StepRecord]()

    def take(self, record: StepRecord) -> None:
        self.records.append(record)


def followed(path: Path, index: int | None, **changes: Any) -> tuple[Rerun, Seen, Seen, Seen]:
    recorded, base, variant = Seen(), Seen(), Seen()
    question = RerunQuestion(path=str(path), changes=changes, index=index)
    return rerun(question, followers=(recorded, base, variant)), recorded, base, variant


@pytest.mark.parametrize("index", [None, 99])
def test_who_follows_sees_what_is_recorded_and_no_more(busy: Path, index: int | None) -> None:
    found, shown, base, variant = followed(busy, index, max_num_seqs=8)
    with Recording(busy) as recording:
        recorded = [record for record in recording.records(0 if index is None else index + 1) if record.executed]
    seen = [record for record in base.records if record.executed]
    assert [record for record in shown.records if record.executed] == recorded and shown.shift_s == 0.0
    assert len(seen) == len(recorded) == found.num_steps
    assert shown.start_s == base.start_s == variant.start_s == found.start_s
    for one, other in zip(seen, recorded, strict=True):
        assert one.end_s + base.shift_s == pytest.approx(other.end_s)
        assert (one.decode_tokens, one.prefill_tokens, one.ttft_s) == (
            other.decode_tokens,
            other.prefill_tokens,
            other.ttft_s,
        )
    assert variant.records[-1].end_s + variant.shift_s <= recorded[-1].end_s + 1e-6
    assert len(variant.records) != len(base.records)


def test_nothing_is_left_to_do_after_the_last_step(drained: Path) -> None:
    with Recording(drained) as recording:
        last = recording.num_records - 1
    found = ask(drained, last, max_num_seqs=2)
    assert found.num_steps == 0 and found.divergence is None
    figures = {row.name: (row.recorded, row.base, row.variant) for row in found.rows}
    assert figures["finished"] == figures["steps"] == figures["scheduled_tokens"] == ("0", "0", "0")
    assert figures["hit_rate"] == figures["output_tokens_per_s"] == ("n/a", "n/a", "n/a")


def test_from_a_step_on_nothing_before_it_changes(busy: Path) -> None:
    with Recording(busy) as recording:
        step = recording.record(150).step
    found = ask(busy, 150, max_num_seqs=3)
    assert found.step == step
    assert found.divergence is not None and found.divergence.step > step
    assert found.parting_s is not None and found.parting_s >= found.start_s
    whole = ask(busy, None, max_num_seqs=3)
    assert whole.divergence is not None and whole.divergence.step <= step


def test_from_the_start_the_figures_are_those_of_whatif(drained: Path) -> None:
    scenario = recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(drained))), set())
    comparison = compare(scenario, {"max_num_seqs": 3})
    found = ask(drained, max_num_seqs=3)
    assert found.exact and not found.unfinished
    assert found.divergence == comparison.divergence
    assert found.changes == {"max_num_seqs": (16, 3)}
    by_name = {row.name: row for row in found.rows}
    assert by_name["finished"].variant == f"{comparison.variant['requests']['finished']}"
    table = comparison.as_text()
    for name in ("ttft_p95_s", "itl_p50_s", "e2e_p99_s", "output_tokens_per_s", "hit_rate", "preemptions"):
        row = by_name[name]
        (line,) = (line for line in table.splitlines() if line.startswith(f"{row.label} "))
        assert row.base in line and row.variant in line


def decided(records: list[StepRecord]) -> list[StepRecord]:
    """Without the number of the knobs' version, which a change to the present value raises."""
    return [msgspec.structs.replace(record, knobs_version=0) for record in records]


@pytest.mark.parametrize("index", [None, 100])
def test_no_change(busy: Path, index: int | None) -> None:
    found, _, base, variant = followed(busy, index, num_speculative_tokens=2)
    assert found.divergence is None and found.parting_s is None
    assert {row.verdict for row in found.rows} == {"same"} and {row.change for row in found.rows} <= {"=", ""}
    assert decided(base.records) == decided(variant.records)


def test_settings_of_the_start_hold_from_the_start_only(busy: Path) -> None:
    assert ask(busy, policy="priority").changes == {"policy": ("fcfs", "priority")}
    assert ask(busy, num_blocks=200, block_size=32).changes["block_size"] == (16, 32)
    with pytest.raises(ConfigError, match="policy is set at start-up only"):
        ask(busy, 100, policy="priority")


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"max_num_seqs": 0}, "at least 1"),
        ({"watermark": 0.9}, "at most 0.5"),
        ({"seqs": 3}, "no knob"),
        ({"max_num_seqs": 1 << 15}, "start-up ceiling"),
    ],
)
def test_values_that_no_engine_takes_are_refused(busy: Path, changes: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        ask(busy, 100, **changes)


def test_arrivals_keep_their_times_unless_their_rate_is_changed(busy: Path) -> None:
    found, _, base, variant = followed(busy, 60, rate=0.0)
    assert found.exact and found.divergence is not None
    assert sum(record.waiting for record in variant.records) < sum(record.waiting for record in base.records)


@pytest.mark.parametrize("index", [None, 120])
def test_a_real_device_is_simulated_and_this_is_said(real: Path, index: int | None) -> None:
    found = ask(real, index, max_num_seqs=2)
    assert found.measured and not found.exact
    (note,) = found.notes
    assert "cpu, 2 threads" in note and "fitted to the recording" in note and "%" in note
    rows = {row.name: row for row in found.rows}
    assert rows["finished"].recorded == rows["finished"].base == rows["finished"].variant
    assert rows["steps"].base != rows["steps"].variant
    assert found.drift is None or "time" not in {part.field for part in found.drift.parts}


def test_another_device_may_be_simulated(drained: Path) -> None:
    question = RerunQuestion(path=str(drained), changes={"watermark": 0.1}, device="sim:llama-3.1-8b@h100")
    found = rerun(question)
    assert not found.exact and found.device == "sim:llama-3.1-8b@h100"
    rows = {row.name: row for row in found.rows}
    assert rows["clock_s"].recorded != rows["clock_s"].base


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Snapshot]]:
    """A recording that begins while its engine had been running."""
    path = tmp_path_factory.mktemp("late") / "run.rec"
    engine = built(limit=25)
    while engine.observer.step < 100:
        engine.step()
    _, snapshots = write(path, engine, None)
    return path, snapshots


def test_a_recording_without_its_first_steps_is_run_again_from_a_step_only(
    late: tuple[Path, list[Snapshot]],
) -> None:
    path, snapshots = late
    with pytest.raises(ConfigError, match="begins at step 100"):
        ask(path, max_num_seqs=4)
    with pytest.raises(ConfigError, match="begins at step 100"):
        ask(path, 50, max_num_seqs=4)
    found = ask(path, 50, snapshots[50], max_num_seqs=4)
    (note,) = found.notes
    assert "snapshot" in note and "begins at step 100" in note
    assert found.divergence is not None and found.divergence.step > snapshots[50].step
    rows = {row.name: row for row in found.rows}
    assert rows["finished"].recorded == rows["finished"].base


def test_what_another_scheduler_decided_is_gone_on_from_its_snapshot(tmp_path: Path) -> None:
    """Its header says otherwise than its steps."""
    path, engine = tmp_path / "other.rec", built(limit=25)
    config = {**engine.header.config, "policy": "priority", "max_num_batched_tokens": 256}
    _, snapshots = write(path, engine, None, config=config)
    with pytest.raises(ConfigError, match="cannot be built again: step"):
        ask(path, 150, max_num_seqs=4)
    found = ask(path, 150, snapshots[150], max_num_seqs=4)
    assert "decided otherwise" in found.notes[0] and not found.exact


def test_a_recording_that_is_cut_off_is_used_as_far_as_it_goes(busy: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.rec"
    path.write_bytes(busy.read_bytes()[: busy.stat().st_size * 2 // 3])
    with Recording(path) as recording:
        assert recording.truncated and 0 < recording.num_records < NUM_RECORDS
    found = ask(path, 30, max_num_seqs=4)
    assert found.exact and any("cut" in note or "damaged" in note for note in found.notes)


def test_progress_comes_to_its_end(busy: Path) -> None:
    seen: list[tuple[str, float]] = []
    rerun(
        RerunQuestion(path=str(busy), changes={"watermark": 0.1}, index=200),
        lambda *reported: seen.append(reported),
    )
    words = list(dict.fromkeys(what for what, _ in seen))
    assert len(words) == 4 and words[1].startswith("going to step")
    assert words[3].startswith(words[2]) and "past the end of the recording" in words[3]
    assert all(0 <= share <= 1 for _, share in seen) and seen[-1][1] > 0.9
    for what in words:
        shares = [share for reported, share in seen if reported == what]
        assert shares == sorted(shares)
    # Full when the last request is served, not where the recording ends.
    assert shares.count(1.0) == 1


def test_a_recording_without_a_step(tmp_path: Path) -> None:
    path = tmp_path / "none.rec"
    write(path, built(), 0)
    with pytest.raises(ConfigError, match="no step"):
        ask(path, watermark=0.1)


def test_who_is_not_served_yet_is_not_left_out(tmp_path: Path) -> None:
    """A watermark that only makes requests wait past the end of a recording is not an improvement."""
    path = tmp_path / "pressure.rec"
    workload = WorkloadSpec(source="pressure", scale=0.3)
    engine = build_engine(
        EngineConfig(device="sim:llama-3.1-8b@h100", workload=workload, scheduler={"num_blocks": 600})
    )
    with RecordingWriter(path, engine.header, engine.snapshot) as writer:
        at = 0
        while engine.clock_s < 6.0:
            record = engine.step()
            assert record is not None
            writer.write(record)
            at += record.end_s < 2.0
    found = ask(path, at, watermark=0.1)
    assert found.exact and found.unfinished and found.unserved == (0, 0)
    rows = {row.name: row for row in found.rows}
    assert rows["ttft_p50_s"].verdict == "worse", rows["ttft_p50_s"]
    assert rows["ttft_n"].base == rows["ttft_n"].variant
    assert rows["ttft_p50_s"].recorded.startswith(">")
