"""Requests that admission passes over without blocking others: those not ready, and those whose adapter does not
fit."""

from __future__ import annotations

from schedtop.engine.contract.telemetry import Head, Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState


def deferred_head(state: SchedulerState) -> Head | None:
    """The first deferred request with its reason, as the head of a queue without ready requests."""
    deferred = state.waiting.deferred
    if not deferred:
        return None
    reason = deferred[0].deferred
    assert reason is not None
    return Head(deferred[0].number, reason)


def pass_deferred(state: SchedulerState, planned: PlannedStep, stopped: bool) -> None:
    """The waiting pass has admitted every ready request. `stopped`: a limit kept it from looking further."""
    planned.looked_at_all = not stopped
    planned.head = deferred_head(state)
    shut = state.waiting.ready.shut()
    if shut and not (
        planned.head and state.waiting.place(state.requests[planned.head.number]) < state.waiting.place(shut[0])
    ):
        slots = state.config.max_loras
        planned.head = Head(shut[0].number, Limiter.LORA, slots, slots)
    if planned.head is not None and planned.limiter is Limiter.NONE:
        planned.limiter = Limiter(planned.head.reason)


def skipped(state: SchedulerState, planned: PlannedStep) -> list[Request]:
    """Those that the step's waiting pass looked at and passed over, in order. Call it before anything else."""
    place = state.waiting.place
    passed_over = [*state.waiting.deferred, *planned.passed_over]
    if planned.passed_over:
        passed_over.sort(key=place)
    if shut := state.waiting.ready.shut():
        passed_over = sorted([*passed_over, *shut], key=place)
    if planned.looked_at_all:
        return [*planned.held_back, *passed_over]
    if planned.last_look is None:
        return planned.held_back
    last = place(planned.last_look)
    return [*planned.held_back, *(request for request in passed_over if place(request) < last)]
