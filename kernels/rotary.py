# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rotary position embedding of queries and keys, in place.

The pair (x_i, x_{i + half}) turns by the angle position * frequency_i (Su et al., "RoFormer", 2021, in the
half-split order that Llama-family checkpoints use). Scaled variants (Llama 3, YaRN) only change the table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from schedtop.kernels.checks import (
    FLOATS,
    check_bounds,
    check_contiguous,
    check_last_contiguous,
    check_runnable,
    check_tensor,
    check_writable,
)


def cos_sin_table(inverse_frequencies: torch.Tensor, num_positions: int, *, scaling: float = 1.0) -> torch.Tensor:
    """The table `rotary` reads: float32 [num_positions, rotary_size], cosines before sines.

    inverse_frequencies: [rotary_size / 2], radians per position. scaling: factor on both halves (YaRN's
    attention factor). Angles are computed in float64: position times frequency in float32 is off by up to
    2^-24 of its size, which is a thousandth of a radian from position 16384 on.
    """
    positions = torch.arange(num_positions, dtype=torch.float64, device=inverse_frequencies.device)
    angles = positions[:, None] * inverse_frequencies.double()[None, :]
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling).float()


@triton.jit
def _rotate_heads(
    heads_of_token,
    head_stride,
    cos,
    sin,
    num_heads: tl.constexpr,
    heads_pad: tl.constexpr,
    half: tl.constexpr,
    half_pad: tl.constexpr,
):
    heads = tl.arange(0, heads_pad)[:, None]
    dims = tl.arange(0, half_pad)[None, :]
    live = (heads < num_heads) & (dims < half)
    first_places = heads_of_token + heads * head_stride + dims
    second_places = first_places + half
    first = tl.load(first_places, mask=live, other=0.0).to(tl.float32)
    second = tl.load(second_places, mask=live, other=0.0).to(tl.float32)
    dtype = heads_of_token.dtype.element_ty
    tl.store(first_places, (first * cos - second * sin).to(dtype), mask=live)
    tl.store(second_places, (second * cos + first * sin).to(dtype), mask=live)


@triton.jit
def _rotary(
    query,
    key,
    positions,
    cos_sin,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    num_heads: tl.constexpr,
    heads_pad: tl.constexpr,
    num_kv_heads: tl.constexpr,
    kv_heads_pad: tl.constexpr,
    half: tl.constexpr,
    half_pad: tl.constexpr,
):
    """One program per token: all its query heads, then all its key heads."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    dims = tl.arange(0, half_pad)
    angles = cos_sin + position * (2 * half) + dims
    cos = tl.load(angles, mask=dims < half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(angles + half, mask=dims < half, other=0.0).to(tl.float32)[None, :]
    query_heads = query + token * query_token_stride
    key_heads = key + token * key_token_stride
    _rotate_heads(query_heads, query_head_stride, cos, sin, num_heads, heads_pad, half, half_pad)
    _rotate_heads(key_heads, key_head_stride, cos, sin, num_kv_heads, kv_heads_pad, half, half_pad)


def rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    check_values: bool = False,
) -> None:
    """Rotate queries and keys by their positions, in place.

    query: [num_tokens, num_heads, head_size]; key: [num_tokens, num_kv_heads, head_size]; any strides but a
        contiguous last axis.
    positions: int64 [num_tokens], rows of the table.
    cos_sin: [num_positions, rotary_size] of any float dtype, see `cos_sin_table`; rotary_size is even and at
        most head_size, and head elements from it on stay as they are.
    check_values: also check positions against the table, which waits for the device.
    """
    check_tensor("query", query, shape=(None, None, None), dtypes=FLOATS)
    check_runnable("query", query)
    num_tokens, num_heads, head_size = query.shape
    check_tensor("key", key, shape=(num_tokens, None, head_size), dtypes=(query.dtype,), device=query.device)
    for name, tensor in (("query", query), ("key", key)):
        check_last_contiguous(name, tensor)
        check_writable(name, tensor)
    check_tensor("positions", positions, shape=(num_tokens,), dtypes=(torch.int64,), device=query.device)
    check_last_contiguous("positions", positions)
    check_tensor("cos_sin", cos_sin, shape=(None, None), dtypes=FLOATS, device=query.device)
    check_contiguous("cos_sin", cos_sin)
    num_positions, rotary_size = cos_sin.shape
    if rotary_size % 2 or not 2 <= rotary_size <= head_size:
        raise ValueError(f"cos_sin: {rotary_size} columns do not fit head size {head_size}")
    if check_values:
        check_bounds("positions", positions, 0, num_positions)
    num_kv_heads = key.shape[1]
    if num_tokens == 0:
        return
    _rotary[(num_tokens,)](
        query,
        key,
        positions,
        cos_sin,
        *query.stride()[:2],
        *key.stride()[:2],
        num_heads=num_heads,
        heads_pad=triton.next_power_of_2(num_heads),
        num_kv_heads=num_kv_heads,
        kv_heads_pad=triton.next_power_of_2(num_kv_heads),
        half=rotary_size // 2,
        half_pad=triton.next_power_of_2(rotary_size // 2),
        num_warps=4,
    )
