# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Attention of a step's tokens over the paged cache, prefill chunks and decodes in one launch.

softmax(scale * q k^T) v is computed tile by tile with a running maximum and sum (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023). Long contexts with few rows
are split over programs whose parts `split_reduce` joins (Dao et al., "Flash-Decoding", 2023). Soft capping,
cap * tanh(score / cap), follows the Gemma 2 report (2024). Block tables follow Kwon et al. (SOSP 2023).

Query heads that share a key head (Ainslie et al., "GQA", 2023) share a tile: its rows are tokens x heads of
the group, so each key is read once for all of them. Scores are kept in units of log2, for exp2 is the
exponential the hardware has.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from schedtop.kernels import interpreted
from schedtop.kernels.checks import (
    FLOATS,
    check_batch_values,
    check_cache_pair,
    check_last_contiguous,
    check_number,
    check_runnable,
    check_tensor,
    check_writable,
)
from schedtop.kernels.split_reduce import split_reduce
from schedtop.kernels.tiling import Tiling, choose_num_splits, choose_tiling

LOG2_E = math.log2(math.e)


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
def _paged_attention(
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


@lru_cache(maxsize=16)
def _device_limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory per program."""
    if device.type != "cuda":
        return 8, 228 * 1024
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", 96 * 1024)
    return int(properties.multi_processor_count), int(shared)


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    out: torch.Tensor | None = None,
    num_splits: int | None = None,
    tiling: Tiling | None = None,
    check_values: bool = False,
) -> torch.Tensor:
    """Causal attention of every token to its own row's cache; the tokens' keys must be written already.

    query: [num_tokens, num_heads, head_size], rows one after the other.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_size] with equal strides; num_kv_heads
        divides num_heads.
    block_table: int32 [num_rows, max_blocks]; only the blocks that hold visible keys are read.
    query_start_loc: int32 [num_rows + 1]; row r owns tokens query_start_loc[r] to query_start_loc[r + 1].
    seq_lens: int32 [num_rows]; tokens in the row's cache, this step's included. The last query of a row is at
        position seq_len - 1. A padding row has no queries, or length 0, which gives zeros.
    max_query_len, max_seq_len: upper bounds of what the tensors hold, in tokens, known on the host. A graph
        captured with them stays valid for every batch within them.
    scale: factor on the scores, usually head_size ** -0.5.
    window: a token sees the last `window` tokens, itself included; None for all.
    soft_cap: scores become soft_cap * tanh(score / soft_cap); None for none.
    out: where to write, same shape and dtype as query; tokens of no row are left as they were.
    num_splits: parts per row's keys; None chooses by the load of the device.
    tiling: share of one program; None chooses.
    check_values: also check the numbers in the batch's tensors, which waits for the device.

    Returns `out`, [num_tokens, num_heads, head_size].
    """
    _check_shapes(query, k_cache, v_cache, block_table, query_start_loc, seq_lens)
    _check_options(max_query_len, max_seq_len, scale, window, soft_cap, num_splits)
    out = _checked_out(out, query)
    num_tokens, num_heads, head_size = query.shape
    num_blocks, block_size, num_kv_heads, _ = k_cache.shape
    num_rows = seq_lens.shape[0]
    if check_values:
        check_batch_values(
            query_start_loc,
            seq_lens,
            block_table,
            num_tokens=num_tokens,
            max_query_len=max_query_len,
            num_blocks=num_blocks,
            block_size=block_size,
        )
    if num_tokens == 0 or num_rows == 0:
        return out
    group = num_heads // num_kv_heads
    head_pad = triton.next_power_of_2(head_size)
    num_sms, shared_bytes = _device_limits(query.device)
    if tiling is None:
        tiling = choose_tiling(max_query_len, group, head_pad, k_cache.element_size(), shared_bytes)
    tile_q = tiling.tile_m // group
    if tile_q == 0:
        raise ValueError(f"tiling: tile_m {tiling.tile_m} is below the {group} query heads of a key head")
    one_tile = max_query_len <= tile_q
    num_tiles = num_rows if one_tile else num_tokens // tile_q + num_rows
    if num_splits is None:
        reach = max_seq_len if window is None else min(max_seq_len, window + max_query_len)
        num_splits = choose_num_splits(num_tiles * num_kv_heads, reach, num_sms)
    part_out, part_lse = out, out
    if num_splits > 1:
        shape = (num_tokens, num_heads, num_splits)
        part_out = torch.empty((*shape, head_size), dtype=torch.float32, device=query.device)
        part_lse = torch.empty(shape, dtype=torch.float32, device=query.device)
    _paged_attention[(num_kv_heads, num_tiles, num_splits)](
        out,
        part_out,
        part_lse,
        query,
        k_cache,
        v_cache,
        block_table,
        query_start_loc,
        seq_lens,
        scale * LOG2_E,
        (soft_cap or 0.0) * LOG2_E,
        2.0 * scale * LOG2_E / soft_cap if soft_cap else 0.0,
        window or 0,
        num_rows,
        *out.stride()[:2],
        *query.stride()[:2],
        *k_cache.stride()[:3],
        block_table.stride(0),
        num_heads=num_heads,
        group=group,
        tile_m=tiling.tile_m,
        tile_q=tile_q,
        tile_n=tiling.tile_n,
        head_size=head_size,
        head_pad=head_pad,
        block_size=block_size,
        # The one-tile launch does not look rows up; a constant here spares it a compilation per batch size.
        rows_pad=1 if one_tile else triton.next_power_of_2(num_rows),
        num_splits=num_splits,
        one_tile=one_tile,
        has_window=window is not None,
        has_cap=soft_cap is not None,
        precision="tf32x3",
        # The interpreter keeps bfloat16 as raw bits and would multiply those.
        widen=interpreted() and query.dtype == torch.bfloat16,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if num_splits > 1:
        split_reduce(part_out, part_lse, query_start_loc, out)
    return out


def _check_shapes(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    check_tensor("query", query, shape=(None, None, None), dtypes=FLOATS)
    check_runnable("query", query)
    check_last_contiguous("query", query)
    device = query.device
    check_cache_pair(k_cache, v_cache, device)
    check_tensor("query", query, shape=query.shape, dtypes=(k_cache.dtype,))
    _, num_heads, head_size = query.shape
    num_kv_heads = k_cache.shape[2]
    if head_size != k_cache.shape[3]:
        raise ValueError(f"query: head size {head_size} does not match k_cache's {k_cache.shape[3]}")
    if num_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"query: {num_heads} heads are not a multiple of k_cache's {num_kv_heads}")
    integer = (torch.int32,)
    check_tensor("seq_lens", seq_lens, shape=(None,), dtypes=integer, device=device)
    num_rows = seq_lens.shape[0]
    check_tensor("query_start_loc", query_start_loc, shape=(num_rows + 1,), dtypes=integer, device=device)
    check_tensor("block_table", block_table, shape=(num_rows, None), dtypes=integer, device=device)
    for name, tensor in (
        ("seq_lens", seq_lens),
        ("query_start_loc", query_start_loc),
        ("block_table", block_table),
    ):
        check_last_contiguous(name, tensor)


def _check_options(
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    num_splits: int | None,
) -> None:
    check_number("max_query_len", max_query_len, at_least=1)
    check_number("max_seq_len", max_seq_len, at_least=0)
    check_number("scale", scale, above=0)
    if window is not None:
        check_number("window", window, at_least=1)
    if soft_cap is not None:
        check_number("soft_cap", soft_cap, above=0)
    if num_splits is not None:
        check_number("num_splits", num_splits, at_least=1)


def _checked_out(out: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor:
    if out is None:
        return torch.empty_like(query, memory_format=torch.contiguous_format)
    check_tensor("out", out, shape=query.shape, dtypes=(query.dtype,), device=query.device)
    check_last_contiguous("out", out)
    check_writable("out", out)
    return out
