"""The course of a run against the records it was made of, however often its bins had to grow."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import StepRecord, itl_column
from schedtop.engine.whatif.course_of_run import FIRST_BIN_S, RATIO, Course, Tracer, courses, size_s


@cache
def records() -> tuple[StepRecord, ...]:
    workload = WorkloadSpec(source="mixed", rate=3.0, limit=25)
    engine = build_engine(
        EngineConfig(device="sim:llama-3.1-8b@l4", workload=workload, scheduler={"num_blocks": 400})
    )
    told = []
    while not engine.exhausted:
        record = engine.step()
        assert record is not None
        told.append(record)
    return tuple(told)


def traced(chosen: tuple[StepRecord, ...], start_s: float) -> Tracer:
    tracer = Tracer(start_s)
    for record in chosen:
        tracer.add(record)
    return tracer


@pytest.mark.parametrize("pending", [1, 7, 5000])
@pytest.mark.parametrize("first", [0, 100])
def test_every_bin_holds_the_steps_that_ended_in_it(
    monkeypatch: pytest.MonkeyPatch, first: int, pending: int
) -> None:
    monkeypatch.setattr("schedtop.engine.whatif.course_of_run.PENDING", pending)
    chosen = records()[first:]
    start_s = chosen[0].start_s
    (course,) = courses([traced(chosen, start_s)])
    assert course.bin_s > FIRST_BIN_S and course.span_s == pytest.approx(chosen[-1].end_s - start_s)
    places = [int((record.end_s - start_s) / course.bin_s) for record in chosen]
    for name, of in (
        ("steps", lambda record: 1),
        ("decode", lambda record: record.decode_tokens),
        ("waiting", lambda record: record.waiting),
        ("preemptions", lambda record: len(record.preemptions)),
    ):
        wanted = np.zeros(len(course.longest_s))
        np.add.at(wanted, places, [of(record) for record in chosen])
        assert course.sums[name] == wanted.tolist()
    assert max(course.longest_s) == max(record.end_s - record.start_s for record in chosen)


def test_latencies_are_within_a_size_of_what_they_were() -> None:
    chosen = records()
    (course,) = courses([traced(chosen, 0.0)])
    gaps = np.concatenate([itl_column(record) for record in chosen])
    gaps = np.sort(gaps[~np.isnan(gaps)])
    sizes = np.repeat(np.array(size_s())[course.itl.sizes], course.itl.counts)
    assert len(sizes) == len(gaps)
    assert np.all(np.abs(np.sort(sizes) / gaps - 1) < RATIO - 1)


def test_runs_of_unlike_length_come_in_like_bins() -> None:
    short, long = courses([traced(records()[:50], 0.0), traced(records(), 0.0)])
    assert short.bin_s == long.bin_s and len(short.longest_s) < len(long.longest_s)
    assert sum(short.sums["steps"]) == 50


def test_a_run_without_a_step() -> None:
    (course,) = courses([Tracer(3.0)])
    assert isinstance(course, Course) and course.span_s == 0.0 and sum(course.sums["steps"]) == 0
