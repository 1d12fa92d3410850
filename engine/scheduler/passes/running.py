"""The running pass: every running request, in order, closes part of its gap under the budgets."""

from __future__ import annotations

import numpy as np
from schedtop.engine.contract.telemetry import Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.overlap import await_results, hold_back
from schedtop.engine.scheduler.books.register import register
from schedtop.engine.scheduler.books.request_table import BoolArray, IntArray, RowArray
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState
from schedtop.engine.scheduler.passes.chunks import cut, plan_in_turn
from schedtop.engine.scheduler.passes.preemption import pick_victim, preempt


def run_pass(state: SchedulerState, planned: PlannedStep, decodes: IntArray | None = None) -> None:
    """Set `tokens` of every row and take the blocks for them, preempting where the pool runs out.

    `decodes`: what that is bound to be, one token of each row at most.
    """
    row: int | None = 0
    if decodes is not None:
        state.table.tokens[: state.table.size] = decodes
        row = _take_blocks(state, planned, state.table.size)
    while row is not None and row < state.table.size:
        end = _plan_tokens(state, planned, row)
        row = _take_blocks(state, planned, end)
    if state.encoder is not None:
        state.encoder.charge()


def _plan_tokens(state: SchedulerState, planned: PlannedStep, first: int) -> int:
    """Give rows from `first` on as many tokens as their gaps want and the budgets leave; returns up to which row."""
    table, limits, size = state.table, state.limits, state.table.size
    slots = state.config.draft_slots
    computed = table.num_computed[first:size]
    wanted = table.tokens[first:size]
    np.subtract(table.num_expected[first:size], computed, wanted)
    if table.has_drafts:
        wanted += table.num_spec[first:size]
        # Only drafts can reach past the model's length: everything else ends before.
        np.minimum(wanted, state.config.max_model_len - 1 - computed, out=wanted)
    if state.config.async_scheduling:
        hold_back(state, first, wanted)
    cap = state.chunk_cap()
    if cap is not None:
        np.minimum(wanted, cap, out=wanted)
    token_left, input_left = limits.token_budget, limits.input_budget
    if first:
        given = table.tokens[:first]
        used = int(np.add.reduce(given))
        token_left -= used
        input_left -= used + slots * int(np.count_nonzero(given))
    planned.limiter = Limiter.NONE
    if state.shrinks:
        return plan_in_turn(state, planned, first, token_left, input_left)
    total = int(np.add.reduce(wanted))
    if total > token_left or total + slots * (size - first) > input_left:
        planned.limiter = cut(wanted, token_left, input_left, slots)
    return size


def _take_blocks(state: SchedulerState, planned: PlannedStep, behind: int) -> int | None:
    """Serve the rows that need blocks or fill one; others need nothing, nor do those that were served before.

    Rows from `behind` on are not planned yet. Returns the row to plan from next, again if a preemption changed what
    follows; None when the pass is over.
    """
    table, kv, size = state.table, state.kv, state.table.size
    tokens = table.tokens[:size]
    end = table.num_computed[:size] + tokens
    known = np.minimum(end, table.num_tokens[:size])
    short = end > table.room[:size]
    if not kv.at_once:
        short |= _can_release(state)
    short_rows = short.nonzero()[0]
    full_rows = (known >= table.next_full[:size]).nonzero()[0]
    if full_rows.size:  # a row that is passed over may have got to know its block's last token meanwhile
        full_rows = full_rows[tokens[full_rows] > 0]
    failed = _grow(state, planned, short_rows, end[short_rows]) if short_rows.size else None
    if failed is not None:
        # As if rows were served one by one: those before the failed one have registered their blocks.
        full_rows = full_rows[full_rows < failed]
    register(state, full_rows, known[full_rows])
    return behind if failed is None else _make_room(state, planned, failed, end.item(failed))


def _can_release(state: SchedulerState) -> BoolArray:
    """Rows scheduled in this step that hold blocks which no later token needs."""
    table, size = state.table, state.table.size
    applied = table.num_computed[:size] - table.in_flight[:size]
    released: BoolArray = (applied >= table.next_release[:size]) & (table.tokens[:size] > 0)
    return released


def _grow(state: SchedulerState, planned: PlannedStep, rows: RowArray, needs: IntArray) -> int | None:
    """Give each row slots for `needs` tokens in total; returns the first row that the pool cannot serve."""
    table, kv = state.table, state.kv
    room = table.room[rows]
    counts = -((room - needs) // kv.block)
    blocks = kv.pool.take(int(np.add.reduce(counts))) if kv.at_once else None
    if blocks is None:
        return _grow_one_by_one(state, planned, rows, needs)
    pieces, requests = _split(blocks, counts), table.requests
    for row, piece in zip(rows.tolist(), pieces, strict=True):
        requests[row].block_ids += piece
    planned.new_blocks.update(zip(table.request[rows].tolist(), pieces, strict=True))
    table.blocks[rows] += counts
    table.room[rows] = room + counts * kv.block
    return None


def _split(blocks: list[int], counts: IntArray) -> list[list[int]]:
    """The blocks in pieces of these lengths."""
    if len(blocks) == len(counts):  # as while everybody decodes
        return [[block] for block in blocks]
    ends = np.add.accumulate(counts).tolist()
    return [blocks[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _grow_one_by_one(state: SchedulerState, planned: PlannedStep, rows: RowArray, needs: IntArray) -> int | None:
    table, kv, failed = state.table, state.kv, None
    for index, row in enumerate(rows.tolist()):
        request = table.requests[row]
        kv.release_before_window(request, table.num_computed.item(row) - table.in_flight.item(row))
        blocks = kv.grow(request, needs.item(index))
        if blocks is None:
            failed, rows = row, rows[: index + 1]
            break
        if blocks:
            _note_growth(state, planned, request, blocks)
    table.note_blocks(rows, [kv.standing(table.requests[row]) for row in rows.tolist()])
    return failed


def _note_growth(state: SchedulerState, planned: PlannedStep, request: Request, blocks: list[int]) -> None:
    planned.new_blocks[request.number] = blocks
    if state.kv.several:
        planned.group_growth[request.number] = state.kv.last_growth()


def _make_room(state: SchedulerState, planned: PlannedStep, row: int, need: int) -> int | None:
    """Preempt until a row gets its blocks; returns the row to plan again from, None if the row itself was preempted."""
    table, kv = state.table, state.kv
    request = table.requests[row]
    while (blocks := kv.grow(request, need)) is None:
        if _is_alone(state) and (_drop_drafts(state) or await_results(state) or _shorten_chunk(state)):
            need = table.num_computed.item(0) + table.tokens.item(0)
            continue
        victim = pick_victim(state)
        if state.loads is not None and state.loads.store.consumes and table.in_flight.item(victim):
            table.tokens[row : table.size] = 0
            return None
        preempt(state, planned, victim, request)
        if victim == row:
            table.tokens[row : table.size] = 0
            return None
        row -= victim < row
    _note_growth(state, planned, request, blocks)
    rows = np.array([row])
    table.note_blocks(rows, [kv.standing(request)])
    known = min(need, table.num_tokens.item(row))
    if known >= table.next_full.item(row):
        register(state, rows, np.array([known]))
    return row + 1


def _is_alone(state: SchedulerState) -> bool:
    """Only one request runs, and no other holds a block."""
    return state.table.size == 1 and (state.loads is None or state.holds_all(state.table.requests[0]))


def _drop_drafts(state: SchedulerState) -> bool:
    """A request that is alone gives up its drafts before its place: they must not make it impossible."""
    table = state.table
    past_end = table.num_computed.item(0) + table.tokens.item(0) - table.num_expected.item(0)
    table.num_spec[0] = 0
    table.tokens[0] -= max(past_end, 0)
    return past_end > 0


def _shorten_chunk(state: SchedulerState) -> bool:
    """Under a window, a chunk of a raised budget can ask for more than the pool at once: it takes what is free."""
    table = state.table
    wanted = table.tokens.item(0)
    fits = state.kv.most_growth(table.requests[0], table.num_computed.item(0), wanted)
    if not 0 < fits < wanted:
        return False
    table.tokens[0] = fits
    return True
