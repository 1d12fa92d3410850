"""Full blocks get their prefix-cache entries, many rows at once."""

from __future__ import annotations

from schedtop.engine.scheduler.books.request_table import IntArray, RowArray
from schedtop.engine.scheduler.books.state import State


def register(state: State, rows: RowArray, num_known: IntArray) -> None:
    """The rows fill blocks with `num_known` tokens in this step: these get their prefix-cache entries."""
    if not rows.size:
        return
    table, kv = state.table, state.kv
    if not kv.one_group:
        _register_one_by_one(state, rows, num_known)
        return
    num_full = num_known // kv.block
    full = num_full * kv.block
    table.next_full[rows] = full + kv.block
    if not kv.caching:
        return
    newest, in_store = table.block_bytes(rows, full - kv.block)
    width, end, requests = 4 * kv.block_size, 0, table.requests
    blocks: list[int] = []
    keys: list[bytes] = []
    for row, count, stored in zip(rows.tolist(), num_full.tolist(), in_store.tolist(), strict=True):
        request = requests[row]
        end += width
        if stored and request.num_registered == count - 1 == len(request.block_keys):
            hasher = request.key_hasher
            hasher.update(newest[end - width : end])
            key = hasher.digest()
            request.block_keys.append(key)
            request.num_registered = count
            blocks.append(request.block_ids[count - 1])
            keys.append(key)
        else:
            table.flush(row)
            kv.register(request, count * kv.block_size)
    kv.pool.register(blocks, keys)


def _register_one_by_one(state: State, rows: RowArray, num_known: IntArray) -> None:
    table, kv = state.table, state.kv
    for row, known in zip(rows.tolist(), num_known.tolist(), strict=True):
        table.flush(row)
        kv.register(table.requests[row], known)
        table.next_full[row] = kv.next_full(known)
