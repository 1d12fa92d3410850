"""Linear layers of the lean route: several fused into one, packed once for the processor where that pays."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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


def can_pack(weight: torch.Tensor) -> bool:
    """Whether packing serves this weight: bfloat16 on a processor that multiplies it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.bfloat16
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def make_linear(modules: Sequence[torch.nn.Linear]) -> Linear:
    """One linear layer that gives the outputs of all `modules`, side by side; their own weights are let go."""
    weights = [module.weight.detach() for module in modules]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [module.bias.detach() for module in modules if module.bias is not None]
    bias = torch.cat(biases) if biases else None
    for module in modules:
        module.weight = module.bias = None  # type: ignore[assignment]
    kind = PackedLinear if can_pack(weight) else Linear
    return kind(weight, bias)
