"""The running pass: every running request, in order, closes part of its gap under the budgets."""

from __future__ import annotations

import numpy as np
from schedtop.engine.scheduler.preemption import pick_victim, preempt
from schedtop.engine.scheduler.state import Draft, State
from schedtop.engine.telemetry import Limiter


def run_pass(state: State, draft: Draft) -> None:
    """Set `tokens` of every row and take the blocks for them, preempting where the pool runs out."""
    row: int | None = 0
    while row is not None and row < state.table.size:
        _plan_tokens(state, draft, row)
        row = _take_blocks(state, draft, row)


def _plan_tokens(state: State, draft: Draft, first: int) -> None:
    """Give rows from `first` on as many tokens as their gaps want and the budgets leave."""
    table, limits, size = state.table, state.limits, state.table.size
    computed = table.num_computed[first:size]
    wanted = table.num_tokens[first:size] + table.num_spec[first:size] - computed
    cap = state.chunk_cap()
    if cap is not None:
        np.minimum(wanted, cap, out=wanted)
    np.minimum(wanted, state.config.max_model_len - 1 - computed, out=wanted)
    np.maximum(wanted, 0, out=wanted)
    slots = state.config.draft_slots
    given = table.tokens[:first]
    token_left = limits.token_budget - int(given.sum())
    input_left = limits.input_budget - int(given.sum()) - slots * int(np.count_nonzero(given))
    total = int(wanted.sum())
    draft.limiter = Limiter.NONE
    if total > token_left or total + slots * int(np.count_nonzero(wanted)) > input_left:
        draft.limiter = _cut(wanted, token_left, input_left, slots)
    table.tokens[first:size] = wanted


def _cut(
    wanted: np.ndarray[tuple[int], np.dtype[np.int32]], token_left: int, input_left: int, slots: int
) -> Limiter:
    """Shorten the first row that the budgets cannot serve whole, and give nothing to those behind it."""
    active = wanted > 0
    before = np.cumsum(wanted) - wanted
    token_room = token_left - before
    input_room = input_left - before - slots * np.cumsum(active)
    room = np.minimum(token_room, input_room)
    row = int(np.argmax(active & (wanted > room)))
    wanted[row] = max(int(room[row]), 0)
    wanted[row + 1 :] = 0
    return Limiter.TOKEN_BUDGET if token_room[row] <= input_room[row] else Limiter.INPUT_BUDGET


def _take_blocks(state: State, draft: Draft, first: int) -> int | None:
    """Serve the rows from `first` on that need blocks or fill one; others need nothing.

    Returns the row to plan again from after a preemption changed what follows; None when the pass is over.
    """
    table, kv, size = state.table, state.kv, state.table.size
    block = kv.block_size
    tokens = table.tokens[first:size]
    end = table.num_computed[first:size] + tokens
    need = (end + (block - 1)) // block - table.num_blocks[first:size]
    full = np.minimum(end, table.num_tokens[first:size]) // block
    busy = tokens > 0
    touched = ((need > 0) | (full > table.num_full[first:size])) & busy
    if kv.window is not None:
        skipped = np.maximum(table.num_computed[first:size] - kv.window + 1, 0) // block
        touched |= (skipped > table.num_released[first:size]) & busy
    rows = np.flatnonzero(touched)
    for row, need_blocks, num_full in zip(
        (rows + first).tolist(), need[rows].tolist(), full[rows].tolist(), strict=True
    ):
        request = table.requests[row]
        if kv.window is not None:
            kv.release_before_window(request, table.num_computed.item(row))
            table.num_released[row] = request.num_released
        if need_blocks > 0:
            blocks = kv.pool.take(need_blocks)
            if blocks is None:
                return _make_room(state, draft, row, need_blocks, num_full)
            request.block_ids += blocks
            draft.new_blocks[request.number] = blocks
        table.flush(row)
        kv.register(request, num_full)
    return None


def _make_room(state: State, draft: Draft, row: int, need_blocks: int, num_full: int) -> int | None:
    """Preempt until a row gets its blocks; returns the row to plan again from, None if it had to go itself."""
    table, kv = state.table, state.kv
    request = table.requests[row]
    while (blocks := kv.pool.take(need_blocks)) is None:
        if table.size == 1 and _drop_drafts(state):
            return 0
        victim = pick_victim(state)
        preempt(state, draft, victim, request)
        if victim == row:
            table.tokens[row : table.size] = 0
            return None
        row -= victim < row
    request.block_ids += blocks
    draft.new_blocks[request.number] = blocks
    table.flush(row)
    kv.register(request, num_full)
    return row + 1


def _drop_drafts(state: State) -> bool:
    """A request that is alone gives up its drafts before its place: they must not make it impossible."""
    had_drafts = state.table.num_spec.item(0) > 0
    state.table.num_spec[0] = 0
    return had_drafts
