"""Attention of a step's tokens over the paged cache, prefill chunks and decodes in one launch.

Block tables follow Kwon et al., "PagedAttention" (SOSP 2023). Long contexts with few rows are split over programs
whose parts `split_reduce` joins (Dao et al., "Flash-Decoding", 2023). The body is in `attention_body`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from schedtop.kernels import interpreted
from schedtop.kernels.attention_body import paged_attention_kernel
from schedtop.kernels.checks import (
    FLOATS,
    check_batch_values,
    check_cache_pair,
    check_count,
    check_last_contiguous,
    check_number,
    check_runnable,
    check_tensor,
    check_writable,
)
from schedtop.kernels.split_reduce import split_reduce
from schedtop.kernels.tiling import Tiling, choose_num_splits, choose_tiling

LOG2_E = math.log2(math.e)


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
    num_tokens, num_rows = query.shape[0], seq_lens.shape[0]
    if check_values:
        check_batch_values(
            query_start_loc,
            seq_lens,
            block_table,
            num_tokens=num_tokens,
            max_query_len=max_query_len,
            num_blocks=k_cache.shape[0],
            block_size=k_cache.shape[1],
        )
    if num_tokens == 0 or num_rows == 0:
        return out
    plan = _plan(query, k_cache, num_rows, max_query_len, max_seq_len, window, num_splits, tiling)
    part_out, part_lse = out, out
    if plan.num_splits > 1:
        shape = (num_tokens, query.shape[1], plan.num_splits)
        part_out = torch.empty((*shape, query.shape[2]), dtype=torch.float32, device=query.device)
        part_lse = torch.empty(shape, dtype=torch.float32, device=query.device)
    batch = (query, k_cache, v_cache, block_table, query_start_loc, seq_lens)
    _launch(plan, (out, part_out, part_lse), batch, scale, window, soft_cap)
    if plan.num_splits > 1:
        split_reduce(part_out, part_lse, query_start_loc, out)
    return out


@dataclass(frozen=True)
class _Plan:
    """The grid of a launch and each program's share."""

    tiling: Tiling
    group: int
    tile_q: int
    num_tiles: int
    num_splits: int
    one_tile: bool


def _plan(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    num_rows: int,
    max_query_len: int,
    max_seq_len: int,
    window: int | None,
    num_splits: int | None,
    tiling: Tiling | None,
) -> _Plan:
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = k_cache.shape[2]
    group = num_heads // num_kv_heads
    num_sms, shared_bytes = _device_limits(query.device)
    if tiling is None:
        head_pad = triton.next_power_of_2(head_size)
        tiling = choose_tiling(max_query_len, group, head_pad, k_cache.element_size(), shared_bytes)
    tile_q = tiling.tile_m // group
    if tile_q == 0:
        raise ValueError(f"tiling: tile_m {tiling.tile_m} is below the {group} query heads of a key head")
    one_tile = max_query_len <= tile_q
    num_tiles = num_rows if one_tile else num_tokens // tile_q + num_rows
    if num_splits is None:
        reach = max_seq_len if window is None else min(max_seq_len, window + max_query_len)
        num_splits = choose_num_splits(num_tiles * num_kv_heads, reach, num_sms)
    return _Plan(tiling, group, tile_q, num_tiles, num_splits, one_tile)


def _launch(
    plan: _Plan,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    batch: tuple[torch.Tensor, ...],
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    query, k_cache, _, block_table, _, seq_lens = batch
    _, block_size, num_kv_heads, head_size = k_cache.shape
    num_rows = seq_lens.shape[0]
    paged_attention_kernel[(num_kv_heads, plan.num_tiles, plan.num_splits)](
        *outputs,
        *batch,
        scale * LOG2_E,
        (soft_cap or 0.0) * LOG2_E,
        2.0 * scale * LOG2_E / soft_cap if soft_cap else 0.0,
        window or 0,
        num_rows,
        *outputs[0].stride()[:2],
        *query.stride()[:2],
        *k_cache.stride()[:3],
        block_table.stride(0),
        num_heads=query.shape[1],
        group=plan.group,
        tile_m=plan.tiling.tile_m,
        tile_q=plan.tile_q,
        tile_n=plan.tiling.tile_n,
        head_size=head_size,
        head_pad=triton.next_power_of_2(head_size),
        block_size=block_size,
        # The one-tile launch does not look rows up; a constant here spares it a compilation per batch size.
        rows_pad=1 if plan.one_tile else triton.next_power_of_2(num_rows),
        num_splits=plan.num_splits,
        one_tile=plan.one_tile,
        has_window=window is not None,
        has_cap=soft_cap is not None,
        # Three products of the tensor cores, as accurate as float32; no effect on the half types.
        precision="tf32x3",
        # The interpreter keeps bfloat16 as raw bits and would multiply those.
        widen=interpreted() and query.dtype == torch.bfloat16,
        num_warps=plan.tiling.num_warps,
        num_stages=plan.tiling.num_stages,
    )


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
    check_count("max_query_len", max_query_len, at_least=1)
    check_count("max_seq_len", max_seq_len, at_least=0)
    check_number("scale", scale, above=0)
    if window is not None:
        check_count("window", window, at_least=1)
    if soft_cap is not None:
        check_number("soft_cap", soft_cap, above=0)
    if num_splits is not None:
        check_count("num_splits", num_splits, at_least=1)


def _checked_out(out: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor:
    if out is None:
        return torch.empty_like(query, memory_format=torch.contiguous_format)
    check_tensor("out", out, shape=query.shape, dtypes=(query.dtype,), device=query.device)
    check_last_contiguous("out", out)
    check_writable("out", out)
    return out
