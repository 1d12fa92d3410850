"""After the model ran: outputs join their requests, rejected drafts go back, finished rows leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS, Finish, RowFlag
from schedtop.engine.handoff.plan import StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.ending import end_request, reason_of
from schedtop.engine.scheduler.books.overlap import newly_known
from schedtop.engine.scheduler.books.register import register
from schedtop.engine.scheduler.books.request_table import ONE, ZERO, IntArray, RequestTable, RowArray
from schedtop.engine.scheduler.books.state import PlannedBatch, PlannedStep, SchedulerState
from schedtop.engine.scheduler.late_results import (
    NO_LATE,
    Present,
    agreed_drafts,
    find_present,
    in_order_of,
    settle_late,
)

ACCEPTED, EMITTED, FLAGS = (ROW_FIELDS.index(name) for name in ("accepted", "emitted", "flags"))


class Settled(msgspec.Struct, frozen=True):
    """The outcome of a step. `rows` and `itl_s` are a telemetry record's fields; counts are tokens.

    `ended_before` are requests that had ended before these results came.
    """

    planned: PlannedStep
    rows: bytes
    itl_s: bytes
    first_tokens: list[tuple[int, float]]
    finishes: list[Finish]
    output_tokens: int
    rejected_drafts: int
    accepted_drafts: int
    ended_before: list[int]


class Drafts(NamedTuple):
    """The outcome of a step's drafts. `cut_off`: those that the model agreed with behind each row's end."""

    accepted: int
    rejected: int
    cut_off: IntArray | None

    def without(self, left: list[int]) -> Drafts:
        """These rows have left the table."""
        return self if self.cut_off is None else self._replace(cut_off=np.delete(self.cut_off, left))


NO_DRAFTS = Drafts(0, 0, None)


def settle(state: SchedulerState, batch: PlannedBatch, result: StepResult, now_s: float) -> Settled:
    """Apply a worker's result to the rows it was planned for. `now_s`: when the outputs are delivered."""
    table, columns = state.table, batch.columns
    failures, cut = _settle_loads(state, batch, result, now_s)
    present = find_present(table, batch)
    rows = present.rows
    emitted, stopped = _outputs(state, batch, result, present)
    drafts = _settle_drafts(state, batch, result, present, emitted, cut)
    num_outputs = int(np.count_nonzero(emitted))
    itl_s, first_rows = _note_deliveries(table, rows, emitted, now_s, all_got=num_outputs == len(emitted))
    if drafts is not NO_DRAFTS:
        num_outputs = int(np.add.reduce(emitted))
    table.append_outputs(rows, present.of(result.sampled), emitted, itl_s)
    columns[EMITTED, present.at] = emitted
    if len(itl_s) != columns.shape[1]:
        itl_s = _with_others(itl_s, present, columns.shape[1])
    _go_on(state, batch, result, present, emitted)
    first_tokens = note_first_tokens(table, first_rows, now_s)
    if cut and state.loads is not None:
        failed, left = state.loads.cut_rows(state, cut, now_s)
        failures += failed
        if left:
            stopped = [row - sum(one < row for one in left) for row in stopped if row not in left]
            present, drafts = find_present(table, batch), drafts.without(left)
    finishes = _end_rows(state, batch, present, stopped, drafts.cut_off, now_s)
    late = settle_late(state, batch, result, present.late, itl_s, now_s) if present.late else NO_LATE
    if state.loads is not None:
        state.loads.report(state)
    return Settled(
        planned=batch.planned,
        rows=columns.tobytes(),
        itl_s=itl_s.tobytes(),
        first_tokens=first_tokens + late.first_tokens,
        finishes=[*failures, *in_order_of(batch, finishes, late.finishes)],
        output_tokens=num_outputs + late.output_tokens,
        rejected_drafts=drafts.rejected + late.rejected_drafts,
        accepted_drafts=drafts.accepted + late.accepted_drafts,
        ended_before=late.ended_before,
    )


def _outputs(
    state: SchedulerState, batch: PlannedBatch, result: StepResult, present: Present
) -> tuple[IntArray, list[int]]:
    """How many of its outputs each row gets, and the table rows that a stop token or a stop string ends."""
    table, rows = state.table, present.rows
    emitted = present.of(result.num_sampled)
    if state.config.pooling:
        emitted = np.zeros_like(emitted)
    if batch.plan.draft_token_ids is not None:
        emitted = np.minimum(emitted, table.stop_at[rows] - table.num_tokens[rows])
    stopped: list[int] = []
    if table.num_with_stops:
        emitted, stopped = _apply_stop_tokens(table, rows, present.of(result.sampled), emitted)
    if result.stopped:
        ended = set(result.stopped)
        stopped += [row for row, request in enumerate(table.requests) if request.number in ended]
    return emitted, stopped


def _settle_loads(
    state: SchedulerState, batch: PlannedBatch, result: StepResult, now_s: float
) -> tuple[list[Finish], dict[int, int]]:
    """Requests that end because of a failed load, and those it cuts back to so many tokens: such rows have no
    results."""
    if state.loads is None:
        return [], {}
    state.loads.free_due(state)
    failures, cut = state.loads.settle_failures(state, batch, now_s)
    for place in np.flatnonzero(np.isin(batch.plan.numbers, list(cut))).tolist():
        result.num_sampled[place] = 0
    return failures, cut


def _end_rows(
    state: SchedulerState,
    batch: PlannedBatch,
    present: Present,
    stopped: list[int],
    cut_off: IntArray | None,
    now_s: float,
) -> list[Finish]:
    """End the rows that have all their outputs, or were `stopped`; those without outputs end with their prompt."""
    table, size, rows = state.table, state.table.size, present.rows
    if state.config.pooling:
        sampled = batch.columns[FLAGS, present.at] & RowFlag.SAMPLED
        ends: list[int] = np.arange(size)[rows][sampled > 0].tolist()
    else:
        ends = (table.num_tokens[:size] >= table.stop_at[:size]).nonzero()[0].tolist()
    if state.encoder is not None and state.encoder.is_holding:
        state.encoder.settle(_computed(state, rows, {*ends, *stopped}))
    if not ends and not stopped:
        return []
    return finish(state, sorted({*ends, *stopped}), set(stopped), now_s, cut_off)


def _computed(state: SchedulerState, rows: RowArray | slice, ends: set[int]) -> Iterator[tuple[Request, int, bool]]:
    """Of each row, the tokens computed for certain, and whether it ends."""
    table, size = state.table, state.table.size
    certain = table.num_computed[:size] - table.num_expected[:size] + table.num_tokens[:size]
    for row in np.arange(size)[rows].tolist():
        yield table.requests[row], certain.item(row), row in ends


def _note_deliveries(
    table: RequestTable, rows: RowArray | slice, emitted: IntArray, now_s: float, all_got: bool
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Each row's gap since its previous delivery (NaN: none), and the table rows that got their first output."""
    last_s = table.last_s[rows]
    gaps_s = (now_s - last_s).astype(np.float32)
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


def _with_others(itl_s: npt.NDArray[np.float32], present: Present, num_rows: int) -> npt.NDArray[np.float32]:
    """The gaps among those of all rows that ran; the others have none."""
    gaps_s = np.full(num_rows, np.nan, dtype=np.float32)
    gaps_s[present.at] = itl_s
    return gaps_s


def _apply_stop_tokens(
    table: RequestTable, rows: RowArray | slice, sampled: IntArray, emitted: IntArray
) -> tuple[IntArray, list[int]]:
    """Cut each row's outputs after its first stop token; also returns the table rows that met one."""
    emitted = emitted.copy()
    places = np.arange(rows.stop) if isinstance(rows, slice) else rows
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


def _settle_drafts(
    state: SchedulerState,
    batch: PlannedBatch,
    result: StepResult,
    present: Present,
    emitted: IntArray,
    cut: dict[int, int],
) -> Drafts:
    """Note the drafts that the model agreed with; the positions of those that became no output are taken back."""
    if batch.plan.draft_token_ids is None:
        return NO_DRAFTS
    table, rows, drafts = state.table, present.rows, present.of(batch.plan.drafts)
    agreed = np.minimum(np.maximum(present.of(agreed_drafts(result)), ZERO), drafts)
    batch.columns[ACCEPTED, present.at] = agreed
    delivered = np.minimum(np.maximum(emitted - ONE, ZERO), drafts)
    rejected = drafts - delivered
    if cut:  # their results are ignored
        rejected[np.isin(present.of(batch.plan.numbers), list(cut))] = 0
    table.num_computed[rows] -= rejected
    if state.config.async_scheduling:
        table.num_expected[rows] -= rejected
    cut_off = None
    if state.loads is not None:
        cut_off = np.zeros(table.size, dtype=np.int32)
        cut_off[rows] = agreed - delivered
    return Drafts(int(np.add.reduce(agreed)), int(np.add.reduce(rejected)), cut_off)


def _go_on(
    state: SchedulerState, batch: PlannedBatch, result: StepResult, present: Present, emitted: IntArray
) -> None:
    """What the outputs make known is registered, and new drafts wait for the next step."""
    table, rows = state.table, present.rows
    if state.config.async_scheduling:
        register(state, *newly_known(state))
    elif result.drafts is not None and result.num_drafts is not None:
        own = result.drafts if present.places is None else result.drafts[present.places]
        _keep_drafts(table, rows, own, present.of(result.num_drafts), emitted)
    if state.overlaps:
        table.in_flight[rows] -= present.of(batch.plan.tokens)


def _keep_drafts(
    table: RequestTable, rows: RowArray | slice, drafts: IntArray, num_drafts: IntArray, emitted: IntArray
) -> None:
    """Rows that got outputs hold new drafts, to be verified in their next step."""
    table.draft_ids[rows, : drafts.shape[1]] = drafts
    # Those of a scheduled row were dropped when it was planned.
    table.num_spec[rows] = num_drafts * (emitted > ZERO)
    table.has_drafts = True


def note_first_tokens(table: RequestTable, rows: list[int], now_s: float) -> list[tuple[int, float]]:
    """The requests of these rows got their first outputs; returns their numbers and TTFTs."""
    firsts = []
    for row in rows:
        request = table.requests[row]
        request.first_token_s = now_s
        firsts.append((request.number, now_s - request.arrival_s))
    return firsts


def finish(
    state: SchedulerState, rows: list[int], stopped: set[int], now_s: float, cut_off: IntArray | None = None
) -> list[Finish]:
    """End the requests of these rows, which leave; those of `stopped` by a stop token.

    `cut_off`: accepted drafts of each row behind its end, which have been computed all the same.
    """
    finishes = end_in_place(state, rows, stopped, now_s, cut_off)
    if rows:
        state.table.remove(rows)
    return finishes


def end_in_place(
    state: SchedulerState, rows: list[int], stopped: set[int], now_s: float, cut_off: IntArray | None = None
) -> list[Finish]:
    """As `finish`, but the rows are the caller's to remove."""
    table = state.table
    finishes = []
    for row in rows:
        request = table.rest(row)
        if state.loads is not None:
            computed = table.num_computed.item(row) - table.in_flight.item(row)
            state.loads.keep(state, request, computed + (0 if cut_off is None else cut_off.item(row)))
        finishes.append(end_request(state, request, reason_of(state, request, row in stopped), now_s))
    return finishes
