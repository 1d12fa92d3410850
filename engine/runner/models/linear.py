"""Linear layers of the lean route: several fused into one, packed once for the processor where that pays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from schedtop.engine.runner.models.native import Native, load_native

PACK_ROWS = 8
"""Batch rows the packed layout is chosen for; it serves any number of rows."""


class Linear:
    """`x` [T, inputs] to [T, outputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


class PackedLinear(Linear):
    """The weight in oneDNN's blocked layout: no reordering per call, half the time for a few rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS), bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


class NativeLinear(Linear):
    """The weight in the panels of `c/linear.h`, whose products keep a few rows at the speed of memory."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, native: Native) -> None:
        self._outputs, inputs = weight.shape
        self._pairs, width = inputs // 2, native.panel_width
        padded = torch.nn.functional.pad(weight, (0, 0, 0, -self._outputs % width))
        panels = padded.view(-1, width, self._pairs, 2).transpose(1, 2).contiguous()
        super().__init__(panels, bias)
        self._linear = native.linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x, bias = x.contiguous(), 0 if self._bias is None else self._bias.data_ptr()
        out = x.new_empty((x.shape[0], self._outputs))
        where = (x.data_ptr(), self._weight.data_ptr(), bias, out.data_ptr())
        self._linear(*where, x.shape[0], self._pairs, self._outputs, torch.get_num_threads())
        return out


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN's packing serves this weight: bfloat16 on a processor that multiplies it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.bfloat16
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def load_products(weight: torch.Tensor) -> Native | None:
    """The compiled products for weights like this one; None where the processor or the build lacks them."""
    native = load_native(weight.dtype, weight.device)
    return native if native is not None and native.panel_width else None


def make_linear(modules: Sequence[torch.nn.Linear], products: Native | None = None) -> Linear:
    """One linear layer that gives the outputs of all `modules`, side by side; their own weights are released."""
    weights = [module.weight.detach() for module in modules]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [module.bias.detach() for module in modules if module.bias is not None]
    bias = torch.cat(biases) if biases else None
    for module in modules:
        module.weight = module.bias = None  # type: ignore[assignment]
    if products is not None and weight.shape[1] % 2 == 0:
        return NativeLinear(weight, bias, products)
    kind = PackedLinear if can_pack(weight) else Linear
    return kind(weight, bias)
