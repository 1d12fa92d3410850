"""Several steps under way: planned before the results of those before, told apart in clock and records."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns, table_growth
from schedtop.engine.contract.telemetry import Limiter, RowFlag, StepRecord
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.golden.case import read_case
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.step.engine import Engine

from tests.engine.harness import Script, ask, engine_of, run_out

GOLDEN = Path(__file__).parents[2] / "golden"


def run(engine: Engine) -> list[StepRecord]:
    records = []
    while not engine.exhausted:
        record = engine.step()
        if len(records) % 16 == 0:
            engine.scheduler.audit()
        records += [record] if record is not None else []
    return records


def first_computed(records: list[StepRecord], number: int) -> int:
    """Step in which a request was first computed."""
    return next(r.step for r in records if number in row_columns(r)["request"].tolist())


def simulated(pipeline: int = 1, **settings: Any) -> Engine:
    workload = WorkloadSpec(source="unrelated", rate=100.0, limit=16, scale=0.25)
    return build_engine(EngineConfig(scheduler=settings, pipeline_parallel_size=pipeline, workload=workload))


@pytest.mark.parametrize(("overlap", "later"), [(False, 1), (True, 2)])
def test_what_arrives_during_a_step_is_first_computed_one_step_later_if_steps_overlap(
    overlap: bool, later: int
) -> None:
    source = Script([ask("a", 8, outputs=20), ask("b", 8, outputs=4, arrival_s=1e-9)])
    records = run(engine_of(source=source, async_scheduling=overlap))
    assert first_computed(records, 0) == 1
    assert first_computed(records, 1) == 1 + later


def test_a_step_is_planned_while_the_one_before_runs_and_told_when_its_results_are_here() -> None:
    records = run(engine_of(ask("a", 8, outputs=20), ask("b", 8, outputs=20), async_scheduling=True))
    for before, record in pairwise(records):
        assert record.planned_s is not None
        assert record.planned_s <= before.start_s < record.start_s == before.end_s
    assert sum(record.end_s - record.start_s for record in records) == pytest.approx(records[-1].totals.busy_s)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_block_is_told_once_by_the_step_that_took_it(overlap: bool) -> None:
    records = run(engine_of(ask("a", 60, outputs=30), max_num_batched_tokens=16, async_scheduling=overlap))
    grown = [ids for record in records for _, ids in table_growth(record.grown, record.grown_blocks)]
    blocks = [block for ids in grown for block in np.frombuffer(ids, dtype=np.int32).tolist()]
    assert len(blocks) == len(set(blocks)) == max(row_columns(record)["blocks"].max() for record in records)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("pipeline", [1, 3])
def test_overlap_changes_no_output(drafts: int, pipeline: int) -> None:
    requests = [(f"r{i}", 6 + 3 * i, 5 + 4 * i) for i in range(4)]
    outputs = []
    for settings in ({}, {"async_scheduling": True, "pipeline_depth": pipeline}):
        asked = [ask(name, prompt, outputs=count) for name, prompt, count in requests]
        engine = engine_of(*asked, num_speculative_tokens=drafts, num_blocks=24, **settings)
        run(engine)
        outputs.append([request.output_token_ids.tolist() for request in asked])
        assert engine.scheduler.state.kv.pool.num_free == 24
    assert outputs[0] == outputs[1]


def test_stages_hold_several_batches() -> None:
    """Two stages serve the same requests in less time than one after the other."""
    ends_s = [run(simulated(pipeline, async_scheduling=True))[-1].end_s for pipeline in (1, 2)]
    alone_s = run(simulated(1, async_scheduling=False))[-1].end_s
    assert ends_s[1] < 0.9 * min(ends_s[0], alone_s)


def test_results_of_a_request_that_has_ended_are_flagged_and_thrown_away() -> None:
    engine = engine_of(ask("a", 8, outputs=20), ask("b", 8, outputs=20), async_scheduling=True)
    engine.step()
    assert engine.abort(0)
    record = engine.step()
    assert record is not None
    rows = row_columns(record)
    assert [finish.number for finish in record.finishes] == [0]
    assert rows["request"].tolist() == [0, 1] and rows["emitted"].tolist() == [0, 1]
    assert (rows["flags"] & RowFlag.LATE).astype(bool).tolist() == [True, False]
    assert np.isnan(np.frombuffer(record.itl_s, np.float32)[0])


def test_deferred_requests_alone_are_no_work() -> None:
    engine = engine_of(async_scheduling=True)
    waiting = ask("a", 8)
    waiting.deferred = Limiter.GRAMMAR
    engine.submit(waiting)
    record = engine.step()
    assert record is not None and not record.executed and record.deferred == (("grammar", 1),)
    assert engine.step() is None
    engine.scheduler.make_ready(0)
    assert [finish.number for record in run(engine) for finish in record.finishes] == [0]


def test_deferred_requests_are_no_work_once_all_others_have_ended() -> None:
    engine = engine_of(ask("a", 8, outputs=4), async_scheduling=True)
    waiting = ask("b", 8)
    waiting.deferred = Limiter.GRAMMAR
    engine.submit(waiting)
    assert [finish.number for record in run_out(engine) for finish in record.finishes] == [0]
    assert engine.num_unfinished == 1


@pytest.mark.parametrize(
    ("settings", "pipeline"),
    [
        ({"async_scheduling": True, "num_blocks": 90}, 1),
        ({"async_scheduling": True, "num_blocks": 90, "num_speculative_tokens": 3}, 1),
        ({"async_scheduling": True, "num_blocks": 90, "policy": "priority"}, 2),
        ({"num_blocks": 90}, 2),
    ],
)
def test_a_recording_of_overlapping_steps_is_decided_the_same(
    settings: dict[str, Any], pipeline: int, tmp_path: Path
) -> None:
    engine = simulated(pipeline, **settings)
    with RecordingWriter(tmp_path / "run.schedtop", engine.header, engine.snapshot) as writer:
        for record in run(engine):
            writer.write(record)
    with Recording(tmp_path / "run.schedtop") as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps > 50 and verdict.admissions >= 15


@pytest.mark.parametrize("name", ["async-31-0", "asyncpipe-31-1", "asyncspec-31-3", "pipeline-31-3", "stop-31-1"])
def test_an_engine_that_serves_a_case_decides_as_recorded(name: str) -> None:
    case = read_case(GOLDEN / f"{name}.json")
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=str(GOLDEN / f"{name}.json"))))
    ids: dict[int, str] = {}
    decided = []
    for record in run(engine):
        ids |= {arrival.number: arrival.id for arrival in record.arrivals}
        rows = row_columns(record)
        columns = zip(*(rows[key].tolist() for key in ("request", "tokens", "drafts")), strict=True)
        if scheduled := [(ids[number], tokens, drafts) for number, tokens, drafts in columns if tokens]:
            decided.append(scheduled)
    assert case.steps is not None
    assert decided == [step.scheduled for step in case.steps if step.scheduled][: len(decided)]
    assert sum(bool(step.scheduled) for step in case.steps) - len(decided) <= 2, "at most late steps are left"


def test_rows_that_are_passed_over_take_no_draft_slots() -> None:
    """Two of three rows wait for their results: the budget of input rows is enough for the third."""
    asked = [ask("a", 1, outputs=8), ask("b", 2, outputs=8), ask("c", 24, outputs=8)]
    records = run(
        engine_of(*asked, async_scheduling=True, pipeline_depth=2, draft_slots=1, max_num_batched_tokens=16)
    )
    assert [row_columns(record)["tokens"].tolist() for record in records[:3]] == [[1, 2, 10], [0, 0, 14], [1, 1, 0]]


def test_drafts_are_not_turned_on_over_stages_without_asynchronous_scheduling() -> None:
    reply = simulated(2, async_scheduling=False).set_knobs({"num_speculative_tokens": 2})
    assert not reply.ok and "drafts over pipeline stages need async scheduling" in reply.text


def test_drafts_over_stages_need_asynchronous_scheduling() -> None:
    with pytest.raises(ConfigError, match="async"):
        simulated(2, num_speculative_tokens=2, async_scheduling=False)
    with pytest.raises(ConfigError, match="--async-scheduling: only for simulated devices"):
        build_engine(EngineConfig(device="cpu", model="m", scheduler={"async_scheduling": True}))
