# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The Triton body of paged attention; `paged_attention.paged_attention` checks and launches it.

softmax(scale * q k^T) v is computed tile by tile with a running maximum and sum (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023). Soft capping,
cap * tanh(score / cap), follows the Gemma 2 report (2024).

Query heads that share a key head (Ainslie et al., "GQA", 2023) share a tile: its rows are tokens x heads of
the group, so each key is read once for all of them. Scores are kept in units of log2, for exp2 is the
exponential the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_keys(cache, places, live, masked: tl.constexpr, head_size: tl.constexpr, head_pad: tl.constexpr):
    """Load [keys, head_pad] of one head from the cache; `places` says where each key starts."""
    dims = tl.arange(0, head_pad)
    pointers = cache + places[:, None] + dims[None, :]
    if masked:
        # A dead slot may hold NaN, and 0 * NaN would reach the output: it must not be loaded at all.
        return tl.load(pointers, mask=live[:, None] & (dims[None, :] < head_size), other=0.0)
    elif head_size != head_pad:
        return tl.load(pointers, mask=dims[None, :] < head_size, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    query,
    positions,
    tile_begin,
    tile_end,
    key_begin,
    key_end,
    k_head,
    v_head,
    table_row,
    block_stride,
    offset_stride,
    scale_log2,
    cap_log2,
    cap_scale,
    window,
    masked: tl.constexpr,
    has_window: tl.constexpr,
    has_cap: tl.constexpr,
    block_size: tl.constexpr,
    tile_n: tl.constexpr,
    head_size: tl.constexpr,
    head_pad: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
):
    """Fold key tiles `tile_begin` to `tile_end` into the running softmax; unmasked when all keys are seen."""
    for tile in tl.range(tile_begin, tile_end):
        keys = tile * tile_n + tl.arange(0, tile_n)
        live = (keys >= key_begin) & (keys < key_end)
        if masked:
            blocks = tl.load(table_row + keys // block_size, mask=live, other=0).to(tl.int64)
        else:
            blocks = tl.load(table_row + keys // block_size).to(tl.int64)
        places = blocks * block_stride + keys % block_size * offset_stride
        k = _load_keys(k_head, places, live, masked, head_size, head_pad)
        if widen:
            k = k.to(tl.float32)
        scores = tl.dot(query, tl.trans(k), input_precision=precision)
        if has_cap:
            # tanh(x) = 1 - 2 / (exp(2x) + 1), which saturates cleanly at both ends.
            scores = cap_log2 - 2.0 * cap_log2 / (tl.exp2(scores * cap_scale) + 1.0)
        else:
            scores = scores * scale_log2
        if masked:
            seen = live[None, :] & (keys[None, :] <= positions[:, None])
            if has_window:
                seen = seen & (keys[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        shift = new_max
        if masked:
            # A row that has seen no key yet would give -inf - -inf.
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weights, 1)
        v = _load_keys(v_head, places, live, masked, head_size, head_pad)
        weights = weights.to(v.dtype)
        if widen:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        acc = tl.dot(weights, v, acc=acc * decay[:, None], input_precision=precision)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def _find_row(query_start_loc, tile, num_rows, rows_pad: tl.constexpr, tile_q: tl.constexpr):
    """Which row a query tile belongs to, and which of the row's tiles it is.

    Row r owns the tiles from start[r] // tile_q + r: enough for its tokens whatever their alignment, and known
    without a prefix sum over the batch, so the grid needs nothing from the device.
    """
    rows = tl.arange(0, rows_pad)
    starts = tl.load(query_start_loc + rows, mask=rows < num_rows, other=0)
    first_tiles = starts // tile_q + rows
    row = tl.sum(((first_tiles <= tile) & (rows < num_rows)).to(tl.int32), 0) - 1
    first_tile = tl.load(query_start_loc + row) // tile_q + row
    return row, tile - first_tile


@triton.jit
def paged_attention_kernel(
    out,
    part_out,
    part_lse,
    query,
    k_cache,
    v_cache,
    block_table,
    query_start_loc,
    seq_lens,
    scale_log2,
    cap_log2,
    cap_scale,
    window,
    num_rows,
    out_token_stride,
    out_head_stride,
    query_token_stride,
    query_head_stride,
    block_stride,
    offset_stride,
    head_stride,
    table_stride,
    num_heads: tl.constexpr,
    group: tl.constexpr,
    tile_m: tl.constexpr,
    tile_q: tl.constexpr,
    tile_n: tl.constexpr,
    head_size: tl.constexpr,
    head_pad: tl.constexpr,
    block_size: tl.constexpr,
    rows_pad: tl.constexpr,
    num_splits: tl.constexpr,
    one_tile: tl.constexpr,
    has_window: tl.constexpr,
    has_cap: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
):
    """One program per (key head, query tile, split). With several splits, write parts instead of the output."""
    kv_head = tl.program_id(0)
    # Later tiles of a prefill see more keys: starting with them leaves the short ones to fill the gaps.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    split = tl.program_id(2)
    if one_tile:
        row = tile
        row_tile = 0
    else:
        row, row_tile = _find_row(query_start_loc, tile, num_rows, rows_pad, tile_q)
    query_start = tl.load(query_start_loc + row)
    query_len = tl.load(query_start_loc + row + 1) - query_start
    first = row_tile * tile_q
    if first >= query_len:
        return

    lanes = tl.arange(0, tile_m)
    in_row = first + lanes // group
    heads = kv_head * group + lanes % group
    lane_ok = (lanes // group < tile_q) & (in_row < query_len)
    dims = tl.arange(0, head_pad)
    live = lane_ok[:, None] & (dims[None, :] < head_size)
    tokens = (query_start + in_row).to(tl.int64)
    places = query + (tokens * query_token_stride + heads * query_head_stride)[:, None] + dims[None, :]
    q = tl.load(places, mask=live, other=0.0)
    if widen:
        q = q.to(tl.float32)

    context = tl.load(seq_lens + row) - query_len
    positions = context + in_row
    first_position = context + first
    last_position = context + tl.minimum(first + tile_q, query_len) - 1
    key_begin = 0
    if has_window:
        key_begin = tl.maximum(first_position - window + 1, 0)
    key_end = tl.maximum(last_position + 1, 0)

    # This split's tiles, then the stretch of them in which every query sees every key.
    tile_begin = key_begin // tile_n
    tile_end = tl.cdiv(key_end, tile_n)
    if num_splits > 1:
        per_split = tl.cdiv(tile_end - tile_begin, num_splits)
        tile_begin = tile_begin + split * per_split
        tile_end = tl.maximum(tl.minimum(tile_begin + per_split, tile_end), tile_begin)
    full_begin = tile_begin
    if has_window:
        full_begin = tl.cdiv(tl.maximum(last_position - window + 1, 0), tile_n)
        full_begin = tl.minimum(tl.maximum(full_begin, tile_begin), tile_end)
    full_end = tl.maximum(first_position + 1, 0) // tile_n
    full_end = tl.minimum(tl.maximum(full_end, full_begin), tile_end)

    k_head = k_cache + kv_head * head_stride
    v_head = v_cache + kv_head * head_stride
    table_row = block_table + row.to(tl.int64) * table_stride
    acc = tl.zeros([tile_m, head_pad], dtype=tl.float32)
    row_max = tl.full([tile_m], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([tile_m], dtype=tl.float32)
    for stretch in tl.static_range(3):
        # 0: keys that slide out of the window; 1: keys every query sees; 2: keys behind the diagonal's edge.
        if has_window or stretch > 0:
            begin = tile_begin if stretch == 0 else full_begin if stretch == 1 else full_end
            end = full_begin if stretch == 0 else full_end if stretch == 1 else tile_end
            acc, row_max, row_sum = _attend(
                acc,
                row_max,
                row_sum,
                q,
                positions,
                begin,
                end,
                key_begin,
                key_end,
                k_head,
                v_head,
                table_row,
                block_stride,
                offset_stride,
                scale_log2,
                cap_log2,
                cap_scale,
                window,
                stretch != 1,
                has_window,
                has_cap,
                block_size,
                tile_n,
                head_size,
                head_pad,
                precision,
                widen,
            )

    # A padding row has seen no key: its sum is 0 and its output 0.
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)
    result = acc / divisor[:, None]
    if num_splits == 1:
        places = out + (tokens * out_token_stride + heads * out_head_stride)[:, None] + dims[None, :]
        tl.store(places, result.to(out.dtype.element_ty), mask=live)
    else:
        parts = (tokens * num_heads + heads) * num_splits + split
        tl.store(part_out + parts[:, None] * head_size + dims[None, :], result, mask=live)
        lse = tl.where(row_sum == 0.0, float("-inf"), row_max + tl.log2(divisor))
        tl.store(part_lse + parts, lse, mask=lane_ok)
