"""Full blocks get their prefix-cache entries, many rows at once."""

from __future__ import annotations

from schedtop.engine.scheduler.books.request_table import IntArray, RowArray
from schedtop.engine.scheduler.books.state import SchedulerState

Full = tuple[int, int, bool, bytes]
"""A block of a row: which of its blocks, and its token ids, where they are in the store."""


def register(state: SchedulerState, rows: RowArray, num_known: IntArray) -> None:
    """The rows fill blocks with `num_known` tokens in this step: these get their prefix-cache entries."""
    if not rows.size:
        return
    if state.kv.one_group:
        enter(state, full_blocks(state, rows, num_known))
    else:
        _register_one_by_one(state, rows, num_known)


def full_blocks(state: SchedulerState, rows: RowArray, num_known: IntArray) -> list[Full]:
    """The rows fill blocks with `num_known` tokens each, whose ids are there; `enter` gives them their entries."""
    table, kv = state.table, state.kv
    num_full = num_known // kv.block
    full = num_full * kv.block
    table.next_full[rows] = full + kv.block
    if not kv.caching or not rows.size:
        return []
    ids, in_store = table.block_bytes(rows, full - kv.block)
    width = 4 * kv.block_size
    newest = [ids[place : place + width] for place in range(0, len(ids), width)]
    return list(zip(rows.tolist(), num_full.tolist(), in_store.tolist(), newest, strict=True))


def enter(state: SchedulerState, full: list[Full]) -> None:
    """Give the blocks their prefix-cache entries."""
    table, kv, requests = state.table, state.kv, state.table.requests
    blocks: list[int] = []
    keys: list[bytes] = []
    for row, count, stored, newest in full:
        request = requests[row]
        if stored and request.num_registered == count - 1 == len(request.block_keys):
            hasher = request.key_hasher
            hasher.update(newest)
            key = hasher.digest()
            request.block_keys.append(key)
            request.num_registered = count
            blocks.append(request.block_ids[count - 1])
            keys.append(key)
        else:
            table.flush(row)
            kv.register(request, count * kv.block_size)
    kv.pool.register(blocks, keys)


def _register_one_by_one(state: SchedulerState, rows: RowArray, num_known: IntArray) -> None:
    table, kv = state.table, state.kv
    for row, known in zip(rows.tolist(), num_known.tolist(), strict=True):
        table.flush(row)
        kv.register(table.requests[row], known)
        table.next_full[row] = kv.next_full(known)
