"""Preemption: which request gives way when blocks run out, and at what cost."""

from __future__ import annotations

from schedtop.engine.contract.telemetry import Limiter, Preemption
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.scheduler.books.queues import urgency
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState

LOOP_LENGTH = 3
"""Preemptions of one request, with nothing finishing in between, that make a loop."""


def pick_victim(state: SchedulerState) -> int:
    """Row of the request to preempt: the last admitted, or under priority the least urgent."""
    table = state.table
    if state.config.policy != "priority":
        return table.size - 1
    return max(range(table.size), key=lambda row: urgency(table.requests[row]))


def preempt(state: SchedulerState, planned: PlannedStep, row: int, for_request: Request) -> None:
    """Take all blocks from a running request and queue it again; its outputs are kept, its state is not.

    Work the step had already planned for it is dropped with its row.
    """
    table, kv = state.table, state.kv
    request = table.rest(row)
    num_computed = table.num_computed.item(row)
    was_planned = row < table.requests.index(for_request) and table.tokens.item(row) > 0
    usage_before = kv.pool.usage
    if was_planned and not state.config.cache_unexecuted_blocks:
        kv.unregister(request, num_computed)
    if state.encoder is not None:
        state.encoder.leave(request)
        state.encoder.drop_plan(request)
    swapped = False
    if state.loads is not None and state.config.preemption_mode == "swap":
        swapped = state.loads.store.swap_out(request, num_computed)
    freed = kv.free(request) if state.loads is None else state.loads.give_back(state, request)
    planned.new_blocks.pop(request.number, None)
    table.remove([row])
    request.status = Status.PREEMPTED
    request.num_preemptions += 1
    request.high_water = max(request.high_water, num_computed)
    request.queued_since_s = planned.now_s
    same = request.finished_before == state.num_finished
    request.loop_length = request.loop_length + 1 if same else 1
    request.finished_before = state.num_finished
    request.num_late = sum(request.number in batch.plan.numbers for batch in state.under_way)
    request.deferred = Limiter.STALE_OUTPUT if request.num_late else None
    state.waiting.put_back(request)
    state.gone.append(request.number)
    planned.preemptions.append(
        Preemption(
            number=request.number,
            count=request.num_preemptions,
            lost_tokens=num_computed,
            freed_blocks=freed,
            usage_before=usage_before,
            usage_after=kv.pool.usage,
            for_number=for_request.number,
            was_planned=was_planned,
            loop=request.loop_length >= LOOP_LENGTH,
            swapped=swapped,
        )
    )
