"""The end of a request: its reason, the blocks it frees, and the figures of its life."""

from __future__ import annotations

from array import array

import numpy as np
from schedtop.engine.contract.telemetry import Finish, FinishReason
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.scheduler.books.state import SchedulerState


def stop_at(state: SchedulerState, request: Request) -> int:
    """`num_tokens` at which a request ends by length: its own limit, the model's, or the pool's.

    The last token needs no slot, so a pool of c tokens carries a sequence of c + 1. A pooling request never gets there.
    """
    if state.config.pooling:
        return request.num_tokens + 1
    limit = min(request.num_prompt_tokens + request.max_tokens, state.config.max_model_len)
    capacity = state.kv.capacity_tokens
    return limit if capacity is None else min(limit, capacity + 1)


def reason_of(state: SchedulerState, request: Request, stopped: bool) -> FinishReason:
    """The finish reason of a request with all its outputs; `stopped`: the last one is a stop token."""
    if stopped:
        return FinishReason.STOP
    if not state.config.pooling and request.num_tokens < min(
        request.num_prompt_tokens + request.max_tokens, state.config.max_model_len
    ):
        return FinishReason.KV_CAPACITY
    return FinishReason.LENGTH


def end_request(state: SchedulerState, request: Request, reason: FinishReason, now_s: float) -> Finish:
    """Free a request's blocks and sum up its life. It must have left the queue or be about to leave the table."""
    if state.loads is None:
        state.kv.free(request)
    else:
        state.loads.give_back(state, request)
        state.loads.store.forget(request)
    if state.encoder is not None:
        state.encoder.leave(request)
    request.status = Status.FINISHED
    state.gone.append(request.number)
    state.num_finished += 1
    del state.requests[request.number]
    outputs = len(request.output_token_ids)
    first_s, last_s = request.first_token_s, request.last_token_s
    ttft_s = e2e_s = tpot_s = None
    if first_s is not None and last_s is not None:
        ttft_s, e2e_s = first_s - request.arrival_s, last_s - request.arrival_s
        tpot_s = (last_s - first_s) / (outputs - 1) if outputs > 1 else None
    elif state.config.pooling and reason is FinishReason.LENGTH:
        e2e_s = now_s - request.arrival_s
    queue_s = None if request.first_scheduled_s is None else request.first_scheduled_s - request.arrival_s
    return Finish(
        number=request.number,
        reason=str(reason.value),
        output_tokens=outputs,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        tpot_s=tpot_s,
        queue_s=queue_s,
        requeued_s=request.requeued_s,
        itl_p95_s=percentile_of_gaps(request.gaps_s, 0.95),
        preemptions=request.num_preemptions,
        recomputed_tokens=request.recomputed_tokens,
    )


def percentile_of_gaps(gaps_s: array[float], share: float) -> float | None:
    """Percentile of a request's delivery gaps with linear interpolation; None without a gap."""
    if not gaps_s:
        return None
    gaps = np.frombuffer(gaps_s, dtype=np.float32)
    gaps = gaps[gaps == gaps]  # NaN is not a gap
    gaps.sort()
    if not gaps.size:
        return None
    place = share * (gaps.size - 1)
    low = int(place)
    high = min(low + 1, gaps.size - 1)
    return float(gaps[low] + (gaps[high] - gaps[low]) * (place - low))
