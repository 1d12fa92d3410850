"""An engine taken from a snapshot goes on as the one that was there, with what was under way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import Limiter, Snapshot, StepRecord
from schedtop.engine.decide_again.restore import restore
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.engine import Engine

from tests.engine.harness import ask, run_out

KINDS: list[tuple[int, dict[str, Any]]] = [
    (1, {"async_scheduling": False}),
    (1, {"async_scheduling": True}),
    (1, {"async_scheduling": True, "num_speculative_tokens": 3}),
    (2, {"async_scheduling": True}),
    (3, {"async_scheduling": True, "policy": "priority"}),
    (2, {"async_scheduling": False}),
]
TOLD = ("request", "tokens", "drafts", "accepted", "computed", "needed", "emitted", "flags")


def engine_of(stages: int, settings: dict[str, Any]) -> Engine:
    workload = WorkloadSpec(source="unrelated", rate=1e5, limit=12, scale=0.25)
    scheduler = {"num_blocks": 200, "enable_prefix_caching": False, **settings}
    return build_engine(EngineConfig(scheduler=scheduler, pipeline_parallel_size=stages, workload=workload))


def taken_over(engine: Engine, snapshot: Snapshot) -> Engine:
    worker = engine.worker
    assert isinstance(worker, SimWorker)
    return restore(engine.header, snapshot, worker.cost)


def story(records: list[StepRecord]) -> list[Any]:
    """What was decided and when; blocks have other names, and made-up tokens other previews."""
    return [
        (
            (record.start_s, record.end_s, record.planned_s, record.execute_s),
            {name: row_columns(record)[name].tolist() for name in TOLD},
            (record.admissions, [finish.number for finish in record.finishes]),
            [entry.number for entry in record.preemptions],
            (record.running, record.waiting, record.limiter, record.blocks, record.blocks_in_use),
        )
        for record in records
    ]


@given(st.sampled_from(KINDS), st.integers(6, 150))
def test_an_engine_taken_from_a_snapshot_goes_on_the_same(kind: tuple[int, dict[str, Any]], steps: int) -> None:
    engine = engine_of(*kind)
    for _ in range(steps):
        engine.step()
    restored = taken_over(engine, engine.snapshot())
    restored.scheduler.audit()
    assert story(run_out(restored)) == story(run_out(engine))


@pytest.mark.parametrize("reason", ["grammar", "streaming_input"])
def test_deferred_requests_stay_deferred(reason: str) -> None:
    engine = engine_of(1, {})
    engine.step()
    request = ask("late", 8)
    request.deferred = Limiter(reason)
    engine.submit(request)
    restored = taken_over(engine, engine.snapshot())
    waiting = {one.number: one.deferred for one in restored.scheduler.state.waiting}
    assert waiting == {request.number: Limiter(reason)}
    assert any(record.finishes for record in run_out(restored))
    restored.scheduler.make_ready(request.number)
    assert [finish.number for record in run_out(restored) for finish in record.finishes] == [request.number]


def test_growth_under_way_is_told_by_group() -> None:
    workload = WorkloadSpec(source="unrelated", rate=1e5, limit=8, scale=0.25)
    scheduler = {"num_blocks": 900, "enable_prefix_caching": False}
    engine = build_engine(EngineConfig(device="sim:gpt-oss-20b@h100", scheduler=scheduler, workload=workload))
    for _ in range(40):
        engine.step()
    while not any(step.grown for step in engine.snapshot().under_way):
        engine.step()
    restored = taken_over(engine, engine.snapshot())
    restored.scheduler.audit()
    here, there = run_out(restored), run_out(engine)
    assert story(here) == story(there)
    assert [(record.grown, record.grown_groups) for record in here] == [
        (record.grown, record.grown_groups) for record in there
    ]
    assert any(set(record.grown_groups) == {0, 1} for record in there)


def test_an_admission_that_ended_before_it_was_told_is_counted() -> None:
    engine = engine_of(1, {"async_scheduling": True})
    engine.step()
    late = ask("late", 40)
    engine.submit(late)
    engine.step()
    assert any(entry.number == late.number for step in engine.snapshot().under_way for entry in step.admissions)
    engine.abort(late.number)
    restored = taken_over(engine, engine.snapshot())
    counts, reported = restored.observer.totals(), engine.observer.totals()
    run_out(restored), run_out(engine)
    for name in ("admitted", "prompt_tokens", "cached_tokens", "cache_queries"):
        here, there = restored.observer.totals(), engine.observer.totals()
        assert getattr(here, name) - getattr(counts, name) == getattr(there, name) - getattr(reported, name), name
