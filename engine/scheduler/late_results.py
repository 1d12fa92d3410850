"""Results for rows that have moved or left in the meantime: ended requests, and preempted ones."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS, Finish, RowFlag
from schedtop.engine.handoff.plan import StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.ending import end_request, reason_of, stop_at
from schedtop.engine.scheduler.books.request_table import ONE, IntArray, RequestTable, RowArray
from schedtop.engine.scheduler.books.state import PlannedBatch, SchedulerState

ACCEPTED, COMPUTED, NEEDED, EMITTED, FLAGS = (
    ROW_FIELDS.index(name) for name in ("accepted", "computed", "needed", "emitted", "flags")
)


class Present(NamedTuple):
    """The rows of a batch whose requests still run: `rows` in the table, `at` in the batch's columns.

    `places` are theirs in the plan (None: all of them), `late` those of the others.
    """

    rows: slice | RowArray
    at: slice | RowArray
    places: RowArray | None
    late: list[int]

    def of(self, column: IntArray) -> IntArray:
        """What a column of the plan or its result says of them."""
        return column if self.places is None else column[self.places]


class Late(NamedTuple):
    """The outcome of results for rows that have left."""

    first_tokens: list[tuple[int, float]]
    finishes: list[Finish]
    output_tokens: int
    rejected_drafts: int
    accepted_drafts: int
    ended_before: list[int]


NO_LATE = Late([], [], 0, 0, 0, [])


def find_present(table: RequestTable, batch: PlannedBatch) -> Present:
    """Where the rows of a batch are now."""
    if batch.layout == table.layout:
        return Present(batch.busy, batch.busy, None, [])
    rows = table.rows_of(batch.plan.numbers, batch.slots)
    here = np.flatnonzero(rows >= 0)
    at = here if isinstance(batch.busy, slice) else batch.busy[here]
    return Present(rows[here], at, here, np.flatnonzero(rows < 0).tolist())


def place_after_results(state: SchedulerState, batch: PlannedBatch) -> None:
    """Drafts rejected since a batch was planned have moved its rows back; here they are put right."""
    table = state.table
    if not (state.config.async_scheduling and table.has_drafts):
        return
    present, columns, computed = find_present(table, batch), batch.columns, batch.plan.computed
    moved = table.num_computed[present.rows] - table.in_flight[present.rows] - columns[COMPUTED, present.at]
    columns[NEEDED, present.at] += moved
    columns[COMPUTED, present.at] += moved
    computed[slice(None) if present.places is None else present.places] = columns[COMPUTED, present.at]


def agreed_drafts(result: StepResult) -> IntArray:
    """Drafts that the model agreed with, a row each (-1: not sampled)."""
    return result.num_sampled - ONE if result.accepted is None else result.accepted


def settle_late(
    state: SchedulerState,
    batch: PlannedBatch,
    result: StepResult,
    places: list[int],
    itl_s: npt.NDArray[np.float32],
    now_s: float,
) -> Late:
    """Give preempted requests their outputs, which may end them; results of ended ones are discarded."""
    late = Late([], [], 0, 0, 0, [])
    outputs = rejected = accepted = 0
    all_agreed = agreed_drafts(result)
    for place in places:
        number = batch.plan.numbers.item(place)
        column = place if isinstance(batch.busy, slice) else batch.busy.item(place)
        batch.columns[FLAGS, column] |= RowFlag.LATE
        request = state.requests.get(number)
        if request is None:
            late.ended_before.append(number)
            continue
        pooled = state.config.pooling and bool(batch.plan.samples[place])
        sampled = [] if pooled else result.sampled[place, : result.num_sampled[place]].tolist()
        if sampled and request.first_token_s is None:
            request.first_token_s = now_s
            late.first_tokens.append((number, now_s - request.arrival_s))
        ids, stopped = _until_end(state, request, sampled)
        stopped |= number in result.stopped
        if ids:
            itl_s[column] = _deliver(request, ids, now_s)
        num_drafts = batch.plan.drafts.item(place)
        agreed = min(max(all_agreed.item(place), 0), num_drafts)
        batch.columns[EMITTED, column], batch.columns[ACCEPTED, column] = len(ids), agreed
        outputs, accepted = outputs + len(ids), accepted + agreed
        rejected += num_drafts - min(max(len(ids) - 1, 0), num_drafts)
        request.num_late -= 1
        if stopped or pooled or request.num_tokens >= stop_at(state, request):
            _tell_preemption(state, batch, number)
            state.waiting.remove(request)
            if state.loads is not None:
                state.loads.keep(state, request, 0)
            late.finishes.append(end_request(state, request, reason_of(state, request, stopped), now_s))
        elif not request.num_late:
            state.waiting.make_ready(request)
    return late._replace(output_tokens=outputs, rejected_drafts=rejected, accepted_drafts=accepted)


def _until_end(state: SchedulerState, request: Request, ids: list[int]) -> tuple[list[int], bool]:
    """The outputs up to where the request ends, and whether that is by a stop token."""
    ids = ids[: max(stop_at(state, request) - request.num_tokens, 0)]
    for place, token in enumerate(ids):
        if token in request.stop_token_ids:
            return ids[: place + 1], True
    return ids, False


def _deliver(request: Request, ids: list[int], now_s: float) -> float:
    """Append outputs as one delivery; returns the seconds since the one before (NaN: none)."""
    gap_s = float("nan") if request.last_token_s is None else now_s - request.last_token_s
    request.output_token_ids.extend(ids)
    request.gaps_s.extend(array("f", [gap_s, *[float("nan")] * (len(ids) - 1)]))
    request.last_token_s = now_s
    return gap_s


def _tell_preemption(state: SchedulerState, batch: PlannedBatch, number: int) -> None:
    """A request ends before the step that preempted it is reported: its preemption is reported with its end."""
    for later in state.under_way:
        entries = [entry for entry in later.planned.preemptions if entry.number == number]
        batch.planned.preemptions.extend(entries)
        for entry in entries:
            later.planned.preemptions.remove(entry)


def in_order_of(batch: PlannedBatch, finishes: list[Finish], late: list[Finish]) -> list[Finish]:
    """All ends in the order in which the step computed the requests."""
    if not late:
        return finishes
    place = {number: place for place, number in enumerate(batch.plan.numbers.tolist())}
    return sorted([*finishes, *late], key=lambda finish: place.get(finish.number, -1))
