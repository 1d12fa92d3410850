# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Write the keys and values of a step's tokens into the paged cache.

A slot is the flat place of a token: slot = block * block_size + offset in the block (the paged layout of Kwon
et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from schedtop.kernels.checks import (
    FLOATS,
    check_bounds,
    check_cache_pair,
    check_last_contiguous,
    check_runnable,
    check_tensor,
)


@triton.jit
def _kv_write(
    key,
    value,
    k_cache,
    v_cache,
    slot_mapping,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    offset_stride,
    head_stride,
    num_heads: tl.constexpr,
    heads_pad: tl.constexpr,
    head_size: tl.constexpr,
    head_pad: tl.constexpr,
    block_size: tl.constexpr,
):
    """One program per token; a tile of heads by head elements."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    block = slot // block_size
    offset = slot % block_size
    heads = tl.arange(0, heads_pad)[:, None]
    dims = tl.arange(0, head_pad)[None, :]
    live = (heads < num_heads) & (dims < head_size)
    new_key = tl.load(key + token * key_token_stride + heads * key_head_stride + dims, mask=live)
    new_value = tl.load(value + token * value_token_stride + heads * value_head_stride + dims, mask=live)
    place = block * block_stride + offset * offset_stride + heads * head_stride + dims
    tl.store(k_cache + place, new_key.to(k_cache.dtype.element_ty), mask=live)
    tl.store(v_cache + place, new_value.to(v_cache.dtype.element_ty), mask=live)


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    check_values: bool = False,
) -> None:
    """Copy each token's key and value to its slot, in place.

    key, value: [num_tokens, num_kv_heads, head_size], any strides but a contiguous last axis.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_size] with equal strides. A wider dtype is
        rounded to theirs.
    slot_mapping: int64 [num_tokens]; a negative slot marks padding, which is skipped. Two tokens must not
        share a slot: which of them stays would be left to chance.
    check_values: also check slots against the cache, which waits for the device.
    """
    check_tensor("key", key, shape=(None, None, None), dtypes=FLOATS)
    check_runnable("key", key)
    num_tokens, num_heads, head_size = key.shape
    check_tensor("value", value, shape=key.shape, dtypes=(key.dtype,), device=key.device)
    check_last_contiguous("key", key)
    check_last_contiguous("value", value)
    check_cache_pair(k_cache, v_cache, key.device)
    if tuple(k_cache.shape[2:]) != (num_heads, head_size):
        raise ValueError(f"k_cache: heads {tuple(k_cache.shape[2:])} do not match key's {(num_heads, head_size)}")
    check_tensor("slot_mapping", slot_mapping, shape=(num_tokens,), dtypes=(torch.int64,), device=key.device)
    check_last_contiguous("slot_mapping", slot_mapping)
    if check_values:
        _check_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])
    if num_tokens == 0:
        return
    _kv_write[(num_tokens,)](
        key,
        value,
        k_cache,
        v_cache,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *k_cache.stride()[:3],
        num_heads=num_heads,
        heads_pad=triton.next_power_of_2(num_heads),
        head_size=head_size,
        head_pad=triton.next_power_of_2(head_size),
        block_size=k_cache.shape[1],
        num_warps=4,
    )


def _check_slots(slot_mapping: torch.Tensor, num_slots: int) -> None:
    used = slot_mapping[slot_mapping >= 0]
    check_bounds("slot_mapping", used, 0, num_slots)
    if used.unique().numel() != used.numel():
        raise ValueError("slot_mapping: two tokens share a slot")
