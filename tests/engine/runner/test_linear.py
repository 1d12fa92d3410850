"""Every kind of linear layer against float64, for few rows and many, outputs that fill no panel, and biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from schedtop.engine.runner.models.linear import (
    Linear,
    NativeLinear,
    PackedLinear,
    can_pack,
    load_products,
    make_linear,
)
from schedtop.engine.runner.models.native import native_choices

ROWS = (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130)


Make = Callable[[torch.Tensor, torch.Tensor | None], Linear]

PACKED = [PackedLinear] if can_pack(torch.zeros(1).bfloat16()) else []
NATIVE = {
    choice.instructions: partial(NativeLinear, native=choice)
    for choice in native_choices(torch.bfloat16)
    if choice.panel_width
}
each_native = [pytest.param(make, id=name) for name, make in NATIVE.items()]


@pytest.mark.parametrize("kind", [Linear, *PACKED, *each_native])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (576, 100), (1200, 50), (2, 1), (34, 960)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_right_for_any_shape(kind: Make, inputs: int, outputs: int, biased: bool) -> None:
    weight = torch.randn(outputs, inputs).bfloat16()
    bias = torch.randn(outputs).bfloat16() if biased else None
    linear = kind(weight, bias)
    for rows in ROWS:
        x = torch.randn(rows, inputs).bfloat16()
        wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        got = linear(x).double()
        assert got.shape == wanted.shape
        assert (got - wanted).norm() / wanted.norm() < 4e-3, rows


@pytest.mark.parametrize("kind", [Linear, *each_native])
def test_a_row_does_not_depend_on_those_beside_it(kind: Make) -> None:
    """Rows that are not dense, rows with infinities beside them: each is its own product."""
    linear = kind(torch.randn(96, 64).bfloat16(), None)
    wide = torch.randn(9, 128).bfloat16()
    x = wide[:, 32:96]
    alone = torch.cat([linear(x[i : i + 1].contiguous()) for i in range(9)])
    wide[4] = float("inf")
    together = linear(x)
    keep = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.allclose(together[keep].float(), alone[keep].float(), rtol=2**-6, atol=2**-6)


def test_several_layers_become_one() -> None:
    parts = [torch.nn.Linear(64, size).bfloat16() for size in (48, 10, 30)]
    x = torch.randn(5, 64).bfloat16()
    wanted = torch.cat([x.double() @ part.weight.double().T + part.bias.double() for part in parts], dim=-1)
    fused = make_linear(parts, load_products(parts[0].weight))
    assert (fused(x).double() - wanted.detach()).norm() / wanted.norm() < 4e-3
