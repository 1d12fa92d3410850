"""Capacity pressure and preempt loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenes import Run, ask, numbers, serve
from schedtop.console.explain import catalogue
from schedtop.console.explain.diagnosis import Diagnosis
from schedtop.engine.contract.config import WorkloadSpec


def pressed(blocks: int) -> Run:
    return serve(WorkloadSpec(source="pressure", rate=4.0, seed=1), 30, num_blocks=blocks)


def looping(**scheduler: Any) -> Run:
    """A long answer holds half the pool; a prompt that needs more than the rest comes behind it."""
    return serve(
        [ask(0, 300, 600), ask(1, 900, 10)],
        3,
        num_blocks=64,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        **scheduler,
    )


def test_evidence_names_requests_that_are_gone() -> None:
    run = pressed(9000)
    diagnosis = Diagnosis()
    for message in run.messages:
        diagnosis.take(message)
    ids = {arrival.number: arrival.id for record in run.records for arrival in record.arrivals}
    finished = {finish.number for record in run.records for finish in record.finishes}
    helped = {event.for_number for record in run.records for event in record.preemptions}
    assert helped & finished
    assert all(diagnosis.facts.name(number) == ids[number] for number in helped)


def test_preemptions_that_cost_work() -> None:
    run = pressed(9000)
    finding = run.findings()["preemption-pressure"]
    reported, window = numbers(finding), run.window()
    events = [p for r in window for p in r.preemptions]
    assert reported["preemptions"] == finding.n == len(events) >= 3
    assert reported["lost_tokens"] == sum(p.lost_tokens for p in events)
    recomputed, scheduled = sum(r.recomputed_tokens for r in window), sum(r.scheduled_tokens for r in window)
    assert reported["recomputed_tokens"] == recomputed
    assert reported["recomputed_share"] == pytest.approx(recomputed / scheduled)
    assert reported["usage_before"] == pytest.approx(np.mean([p.usage_before for p in events]))
    first = next(r.seq for r in window if r.preemptions)
    since = [t for r in window if r.seq >= first for _, t in r.ttft_s]
    before = [t for r in window if r.seq < first for _, t in r.ttft_s]
    assert reported["ttft_p50_s"] == pytest.approx(np.quantile(since, 0.5))
    assert len(before) >= catalogue.MIN_FIRSTS.value
    assert reported["ttft_p50_before_s"] == pytest.approx(np.quantile(before, 0.5))
    assert [(a.knob, a.direction) for a in finding.advice] == [
        ("max_num_seqs", "down"),
        ("watermark", "up"),
        ("num_blocks", "up"),
    ]
    at = {s.first_seq for s in finding.steps}
    assert at <= {r.seq for r in window if r.preemptions}
    assert "ttft-pool" not in run.findings()


def test_a_pool_with_room_is_silent() -> None:
    found = pressed(60_000).findings()
    assert "preemption-pressure" not in found
    assert "preempt-loop" not in found


def test_a_loop_is_named() -> None:
    run = looping(scheduler_reserve_full_isl=False)
    finding = run.findings()["preempt-loop"]
    reported = numbers(finding)
    loops = [p for r in run.window() for p in r.preemptions if p.loop]
    assert finding.n == len(loops) > 0
    assert reported["number"] == 1
    assert reported["preemptions"] == max(p.count for r in run.window() for p in r.preemptions)
    assert finding.advice[0].knob == "scheduler_reserve_full_isl"
    assert finding.advice[0].direction == "on"
    assert "preemption-pressure" not in run.findings()


def test_reserving_the_whole_sequence_breaks_the_loop() -> None:
    found = looping(scheduler_reserve_full_isl=True).findings()
    assert "preempt-loop" not in found
    assert "preemption-pressure" not in found
