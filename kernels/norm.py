# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Root-mean-square normalisation, alone or with the residual added first.

y = x / sqrt(mean(x^2) + eps) * w (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). Gemma
stores w - 1, hence `add_one`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from schedtop.kernels.checks import (
    FLOATS,
    check_last_contiguous,
    check_number,
    check_runnable,
    check_tensor,
    check_writable,
)

# Elements of one program's tile: short rows (q/k norm over one head) share a program.
TILE_ELEMENTS = 2048
LARGEST_SIZE = 65536


@triton.jit
def _rms_norm(
    out,
    x,
    residual,
    weight,
    eps,
    num_rows,
    out_outer_stride,
    out_inner_stride,
    x_outer_stride,
    x_inner_stride,
    residual_outer_stride,
    residual_inner_stride,
    inner: tl.constexpr,
    size: tl.constexpr,
    size_pad: tl.constexpr,
    tile_rows: tl.constexpr,
    has_residual: tl.constexpr,
    add_one: tl.constexpr,
):
    """One program per `tile_rows` rows; row r is (r // inner, r % inner) of the two leading axes."""
    rows = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    outer = rows // inner
    middle = rows % inner
    columns = tl.arange(0, size_pad)
    live = (rows < num_rows)[:, None] & (columns < size)[None, :]
    x_places = x + (outer * x_outer_stride + middle * x_inner_stride)[:, None] + columns[None, :]
    values = tl.load(x_places, mask=live, other=0.0).to(tl.float32)
    if has_residual:
        start = outer * residual_outer_stride + middle * residual_inner_stride
        residual_places = residual + start[:, None] + columns[None, :]
        values += tl.load(residual_places, mask=live, other=0.0).to(tl.float32)
        total = values.to(residual.dtype.element_ty)
        tl.store(residual_places, total, mask=live)
        # The model normalises the sum as it is stored, rounding included.
        values = total.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 1) / size + eps)
    scale = tl.load(weight + columns, mask=columns < size, other=0.0).to(tl.float32)
    if add_one:
        scale += 1.0
    result = values * inverse[:, None] * scale[None, :]
    out_places = out + (outer * out_outer_stride + middle * out_inner_stride)[:, None] + columns[None, :]
    tl.store(out_places, result.to(out.dtype.element_ty), mask=live)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    add_one: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Normalise the last axis of x, or of x + residual.

    x: [num_tokens, size] or, for a norm per head, [num_tokens, num_heads, size]; any strides but a contiguous
        last axis.
    weight: [size], any float dtype; the factor is weight, or 1 + weight with `add_one`.
    eps: added to the mean square.
    residual: same shape and dtype as x; receives x + residual, rounded, which is what is normalised.
    out: where to write, same shape and dtype as x; may be x itself.

    Returns `out`. Sums are float32 and rounded once at the end, so a bfloat16 result may differ in the last
    bit from a model that also rounds before multiplying by the weight.
    """
    check_tensor("x", x, shape=(None,) * (3 if x.dim() == 3 else 2), dtypes=FLOATS)
    check_runnable("x", x)
    check_last_contiguous("x", x)
    size = x.shape[-1]
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"x: last axis has {size} elements, expected 1 to {LARGEST_SIZE}")
    check_tensor("weight", weight, shape=(size,), dtypes=FLOATS, device=x.device)
    check_last_contiguous("weight", weight)
    check_number("eps", eps, at_least=0)
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None:
            check_tensor(name, tensor, shape=x.shape, dtypes=(x.dtype,), device=x.device)
            check_last_contiguous(name, tensor)
            check_writable(name, tensor)
    num_rows = x.numel() // size
    if num_rows == 0:
        return out
    size_pad = triton.next_power_of_2(size)
    tile_rows = max(1, TILE_ELEMENTS // size_pad)
    _rms_norm[(triton.cdiv(num_rows, tile_rows),)](
        out,
        x,
        residual if residual is not None else x,
        weight,
        eps,
        num_rows,
        *_leading_strides(out),
        *_leading_strides(x),
        *_leading_strides(residual if residual is not None else x),
        inner=x.shape[1] if x.dim() == 3 else 1,
        size=size,
        size_pad=size_pad,
        tile_rows=tile_rows,
        has_residual=residual is not None,
        add_one=add_one,
        num_warps=min(16, max(4, size_pad // 1024)),
    )
    return out


def _leading_strides(tensor: torch.Tensor) -> tuple[int, int]:
    """Strides of the two leading axes; a 2-d tensor has no second one."""
    return tensor.stride(0), tensor.stride(1) if tensor.dim() == 3 else 0
