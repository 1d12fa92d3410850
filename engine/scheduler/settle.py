"""After the model ran: outputs join their requests, rejected drafts go back, finished rows leave."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS, Finish, FinishReason
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.scheduler.request_table import IntArray, RequestTable, RowArray
from schedtop.engine.scheduler.state import State


class Settled(msgspec.Struct, frozen=True):
    """What a step came to. `rows` and `itl_s` are a telemetry record's fields; counts are tokens."""

    rows: bytes
    itl_s: bytes
    first_tokens: list[tuple[int, float]]
    finishes: list[Finish]
    output_tokens: int
    recomputed_tokens: int
    rejected_drafts: int
    accepted_drafts: int = 0


def settle(state: State, plan: StepPlan, result: StepResult, now_s: float) -> Settled:
    """Apply a worker's result to the rows it was planned for. `now_s`: when the outputs are delivered."""
    table, size = state.table, state.table.size
    rows: RowArray | slice = slice(0, size)
    if plan.num_rows != size:
        rows = np.flatnonzero(table.tokens[:size])
        table.emitted[:size] = 0
    emitted = result.num_sampled
    if plan.draft_token_ids is not None:
        emitted = np.minimum(emitted, table.stop_at[rows] - table.num_tokens[rows])
    stopped: list[int] = []
    if table.num_with_stops:
        emitted, stopped = _apply_stop_tokens(table, rows, result.sampled, emitted)
    if result.stopped:
        ended = set(result.stopped)
        stopped += [row for row, request in enumerate(table.requests) if request.number in ended]
    rejected = accepted = 0
    if plan.draft_token_ids is not None:
        rejected, accepted = _reject_drafts(table, rows, plan, result, emitted)
    num_outputs = int(np.count_nonzero(emitted))
    one_each = num_outputs == plan.num_rows and plan.draft_token_ids is None
    recomputed = _count_recomputed(table, size) if table.num_recomputing else 0
    gaps_s, first_rows = _note_deliveries(table, rows, emitted, now_s, all_got=num_outputs == plan.num_rows)
    table.append_outputs(rows, result.sampled, emitted, gaps_s, one_each)
    table.emitted[rows] = emitted
    if result.drafts is not None and result.num_drafts is not None:
        _keep_drafts(table, rows, result.drafts, result.num_drafts, emitted)
    if plan.draft_token_ids is not None:
        num_outputs = int(emitted.sum())
    itl_s = gaps_s.astype(np.float32)
    if plan.num_rows != size:
        itl_s, some = np.full(size, np.nan, dtype=np.float32), itl_s
        itl_s[rows] = some
    first_tokens = _first_tokens(table, first_rows, now_s)
    columns = table.data[: len(ROW_FIELDS), :size].tobytes()
    ends = (table.num_tokens[:size] >= table.stop_at[:size]).nonzero()[0].tolist()
    finishes = finish(state, sorted({*ends, *stopped}), set(stopped), now_s) if ends or stopped else []
    return Settled(columns, itl_s.tobytes(), first_tokens, finishes, num_outputs, recomputed, rejected, accepted)


def _note_deliveries(
    table: RequestTable, rows: RowArray | slice, emitted: IntArray, now_s: float, all_got: bool
) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Each row's gap since its previous delivery (NaN: none), and the table rows that got their first output."""
    last_s = table.last_s[rows]
    gaps_s = now_s - last_s
    if not all_got:
        got = emitted > 0
        gaps_s[~got] = np.nan
        first = (got & np.isnan(last_s)).nonzero()[0]  # before the write: `last_s` may be a view of the table
        table.last_s[rows] = np.where(got, now_s, last_s)
        table.decoding[rows] |= got
    else:
        first = np.isnan(last_s).nonzero()[0]
        table.last_s[rows] = now_s
        table.decoding[rows] = 1
    return gaps_s, (first if isinstance(rows, slice) else rows[first]).tolist()


def _apply_stop_tokens(
    table: RequestTable, rows: RowArray | slice, sampled: IntArray, emitted: IntArray
) -> tuple[IntArray, list[int]]:
    """Cut each row's outputs after its first stop token; also returns the table rows that met one."""
    emitted = emitted.copy()
    places = np.arange(table.size) if isinstance(rows, slice) else rows
    stopped = []
    for index, row in enumerate(places.tolist()):
        stops = table.requests[row].stop_token_ids
        if not stops:
            continue
        for place in range(int(emitted[index])):
            if int(sampled[index, place]) in stops:
                emitted[index] = place + 1
                stopped.append(row)
                break
    return emitted, stopped


def _reject_drafts(
    table: RequestTable, rows: RowArray | slice, plan: StepPlan, result: StepResult, emitted: IntArray
) -> tuple[int, int]:
    """Take back the positions of drafts that became no output; returns how many, and how many the model agreed with.

    The two overlap where a request ends before it delivers all that was agreed on.
    """
    agreed = result.num_sampled - 1 if result.accepted is None else result.accepted
    table.accepted[rows] = accepted = np.minimum(np.maximum(agreed, 0), plan.drafts)
    rejected = plan.drafts - np.minimum(np.maximum(emitted - 1, 0), plan.drafts)
    table.num_computed[rows] -= rejected
    return int(rejected.sum()), int(accepted.sum())


def _count_recomputed(table: RequestTable, size: int) -> int:
    """Tokens of this step that lie below the highest position a row had computed before a preemption."""
    begin = table.computed[:size]
    end = np.minimum(table.high_water[:size], begin + table.tokens[:size])
    again = np.maximum(end - begin, 0)
    for row in np.flatnonzero(again).tolist():
        table.requests[row].recomputed_tokens += int(again[row])
    return int(again.sum())


def _keep_drafts(
    table: RequestTable, rows: RowArray | slice, drafts: IntArray, num_drafts: IntArray, emitted: IntArray
) -> None:
    """Rows that got outputs hold new drafts, to be verified in their next step."""
    table.draft_ids[rows, : drafts.shape[1]] = drafts
    table.num_spec[rows] = num_drafts * (emitted > 0)  # those of a scheduled row were dropped when it was planned
    table.has_drafts = True


def _first_tokens(table: RequestTable, rows: list[int], now_s: float) -> list[tuple[int, float]]:
    firsts = []
    for row in rows:
        request = table.requests[row]
        request.first_token_s = now_s
        firsts.append((request.number, now_s - request.arrival_s))
    return firsts


def finish(state: State, rows: list[int], stopped: set[int], now_s: float) -> list[Finish]:
    table = state.table
    finishes = []
    for row in rows:
        request = table.rest(row)
        if row in stopped:
            reason = FinishReason.STOP
        elif request.num_tokens < min(request.num_prompt_tokens + request.max_tokens, state.config.max_model_len):
            reason = FinishReason.KV_CAPACITY
        else:
            reason = FinishReason.LENGTH
        finishes.append(end_request(state, request, reason, now_s))
    if rows:
        table.remove(rows)
    return finishes


def end_request(state: State, request: Request, reason: FinishReason, now_s: float) -> Finish:
    """Free a request's blocks and sum up its life. It must have left the queue or be about to leave the table."""
    state.kv.free(request)
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
    gaps = gaps[gaps == gaps]  # NaN is no gap
    gaps.sort()
    if not gaps.size:
        return None
    place = share * (gaps.size - 1)
    low = int(place)
    high = min(low + 1, gaps.size - 1)
    return float(gaps[low] + (gaps[high] - gaps[low]) * (place - low))
