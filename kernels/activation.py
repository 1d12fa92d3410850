# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gate of a SwiGLU feed-forward layer, silu(gate) * up (Shazeer, "GLU Variants Improve Transformer", 2020).

silu(x) = x / (1 + exp(-x)) (Elfwing, Uchibe and Doya, 2017).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from schedtop.kernels.checks import (
    FLOATS,
    check_last_contiguous,
    check_runnable,
    check_tensor,
    check_writable,
)

TILE_ELEMENTS = 1024


@triton.jit
def _silu_mul(
    out,
    gate,
    up,
    size,
    out_stride,
    gate_stride,
    up_stride,
    tile: tl.constexpr,
):
    """One program per (token, stretch of `tile` elements)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    live = columns < size
    gates = tl.load(gate + token * gate_stride + columns, mask=live, other=0.0).to(tl.float32)
    ups = tl.load(up + token * up_stride + columns, mask=live, other=0.0).to(tl.float32)
    # For a very negative gate exp overflows to inf, and the quotient is 0 as it should be.
    result = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=live)


def silu_mul(gate: torch.Tensor, up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up, computed in float32 and rounded once.

    gate, up: [num_tokens, size], any row stride, so that both may be halves of one projection.
    out: where to write, same shape and dtype; may be gate or up.

    Returns `out`.
    """
    check_tensor("gate", gate, shape=(None, None), dtypes=FLOATS)
    check_runnable("gate", gate)
    check_tensor("up", up, shape=gate.shape, dtypes=(gate.dtype,), device=gate.device)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    check_tensor("out", out, shape=gate.shape, dtypes=(gate.dtype,), device=gate.device)
    for name, tensor in (("gate", gate), ("up", up), ("out", out)):
        check_last_contiguous(name, tensor)
    check_writable("out", out)
    num_tokens, size = gate.shape
    if gate.numel() == 0:
        return out
    _silu_mul[(num_tokens, triton.cdiv(size, TILE_ELEMENTS))](
        out,
        gate,
        up,
        size,
        out.stride(0),
        gate.stride(0),
        up.stride(0),
        tile=TILE_ELEMENTS,
        num_warps=4,
    )
    return out
