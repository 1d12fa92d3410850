# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Join the parts that split attention leaves: softmax over the parts' log-sums weighs their outputs.

With lse_i the log2 of part i's sum of exponentials and o_i its normalised output,
out = sum_i 2^(lse_i - m) o_i / sum_i 2^(lse_i - m), m = max_i lse_i (Dao et al., "Flash-Decoding", 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from schedtop.kernels.checks import check_contiguous, check_last_contiguous, check_tensor


@triton.jit
def _split_reduce(
    part_out,
    part_lse,
    query_start_loc,
    out,
    num_rows,
    out_token_stride,
    out_head_stride,
    num_heads: tl.constexpr,
    num_splits: tl.constexpr,
    splits_pad: tl.constexpr,
    head_size: tl.constexpr,
    head_pad: tl.constexpr,
):
    """One program per (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(query_start_loc + num_rows):
        return
    splits = tl.arange(0, splits_pad)
    dims = tl.arange(0, head_pad)
    parts = (token * num_heads + head) * num_splits + splits
    lse = tl.load(part_lse + parts, mask=splits < num_splits, other=float("-inf"))
    largest = tl.max(lse, 0)
    weights = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest))
    live = (splits < num_splits)[:, None] & (dims < head_size)[None, :]
    values = tl.load(part_out + parts[:, None] * head_size + dims[None, :], mask=live, other=0.0)
    total = tl.sum(weights, 0)
    result = tl.sum(weights[:, None] * values, 0) / tl.where(total == 0.0, 1.0, total)
    place = out + token * out_token_stride + head * out_head_stride + dims
    tl.store(place, result.to(out.dtype.element_ty), mask=dims < head_size)


def split_reduce(
    part_out: torch.Tensor, part_lse: torch.Tensor, query_start_loc: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the joined parts to `out`.

    part_out: float32 [num_tokens, num_heads, num_splits, head_size], each part normalised by its own sum.
    part_lse: float32 [num_tokens, num_heads, num_splits], log2 of that sum; -inf for a part without keys.
    query_start_loc: int32 [num_rows + 1]; tokens from its last entry on are padding and left as they were.
    out: [num_tokens, num_heads, head_size].
    """
    check_tensor("part_out", part_out, shape=(None,) * 4, dtypes=(torch.float32,))
    num_tokens, num_heads, num_splits, head_size = part_out.shape
    check_tensor("part_lse", part_lse, shape=part_out.shape[:3], dtypes=(torch.float32,), device=part_out.device)
    check_contiguous("part_out", part_out)
    check_contiguous("part_lse", part_lse)
    check_tensor("query_start_loc", query_start_loc, shape=(None,), dtypes=(torch.int32,), device=part_out.device)
    check_tensor("out", out, shape=(num_tokens, num_heads, head_size), dtypes=(out.dtype,), device=part_out.device)
    check_last_contiguous("out", out)
    _split_reduce[(num_tokens, num_heads)](
        part_out,
        part_lse,
        query_start_loc,
        out,
        query_start_loc.shape[0] - 1,
        *out.stride()[:2],
        num_heads=num_heads,
        num_splits=num_splits,
        splits_pad=triton.next_power_of_2(num_splits),
        head_size=head_size,
        head_pad=triton.next_power_of_2(head_size),
        num_warps=4,
    )
