"""Norm, rotary embedding and gate against float64 references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from schedtop.kernels import reference  # noqa: E402
from schedtop.kernels.activation import silu_mul  # noqa: E402
from schedtop.kernels.norm import rms_norm  # noqa: E402
from schedtop.kernels.rotary import cos_sin_table, rotary  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded")

ErrorOf = Callable[[Any, Any], float]
# The interpreter cuts float32 off to bfloat16 instead of rounding: up to 2^-7 instead of 2^-8.
BOUNDS = {torch.float16: 5e-4, torch.bfloat16: 8e-3, torch.float32: 1e-6}
DTYPES = list(BOUNDS)


def poisoned(tensor: Any) -> Any:
    return torch.full_like(tensor, float("nan"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add_one", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 64), (70, 80), (5, 576), (2, 4096), (2, 5000)])
def test_rms_norm(device: Any, relative_error: ErrorOf, dtype: Any, add_one: bool, rows: int, size: int) -> None:
    x = (3 * torch.randn(rows, size, device=device)).to(dtype)
    weight = torch.randn(size, device=device).to(dtype)
    out = rms_norm(x, weight, 1e-5, add_one=add_one, out=poisoned(x))
    expected, _ = reference.rms_norm(x, weight, 1e-5, add_one=add_one)
    assert relative_error(out, expected) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_adds_the_residual(device: Any, relative_error: ErrorOf, dtype: Any) -> None:
    x, residual = torch.randn(2, 9, 576, device=device).to(dtype)
    weight = torch.randn(576, device=device)
    expected, total = reference.rms_norm(x, weight, 1e-6, residual=residual)
    out = rms_norm(x, weight, 1e-6, residual=residual, out=poisoned(x))
    assert relative_error(out, expected) < BOUNDS[dtype]
    assert relative_error(residual, total) < BOUNDS[dtype]


def test_rms_norm_per_head_in_place(device: Any, relative_error: ErrorOf) -> None:
    packed = torch.randn(7, 10, 96, device=device)
    before = packed.clone()
    weight = torch.randn(96, device=device)
    heads = packed[:, :6]
    rms_norm(heads, weight, 1e-5, out=heads)
    expected, _ = reference.rms_norm(before[:, :6], weight, 1e-5)
    assert relative_error(heads, expected) < BOUNDS[torch.float32]
    assert torch.equal(packed[:, 6:], before[:, 6:])


def test_rms_norm_eps_counts(device: Any, relative_error: ErrorOf) -> None:
    x = 1e-4 * torch.randn(2, 64, device=device)
    weight = torch.ones(64, device=device)
    expected, _ = reference.rms_norm(x, weight, 1e-2)
    assert relative_error(rms_norm(x, weight, 1e-2), expected) < BOUNDS[torch.float32]
    assert not rms_norm(torch.zeros_like(x), weight, 1e-5).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "head_size", "rotary_size"),
    [((4, 2), 64, 64), ((3, 1), 80, 80), ((7, 1), 96, 96), ((8, 8), 128, 32), ((5, 3), 256, 256)],
)
def test_rotary(
    device: Any,
    relative_error: ErrorOf,
    dtype: Any,
    heads: tuple[int, int],
    head_size: int,
    rotary_size: int,
) -> None:
    packed = torch.randn(11, sum(heads) + 1, head_size, device=device).to(dtype)
    before = packed.clone()
    query, key = packed[:, : heads[0]], packed[:, heads[0] : sum(heads)]
    frequencies = 10000.0 ** (-torch.arange(0, rotary_size, 2, device=device) / rotary_size)
    table = cos_sin_table(frequencies, 5000, scaling=1.25)
    positions = torch.randint(0, 5000, (11,), device=device)
    positions[0], positions[1] = 0, 4999
    rotary(query, key, positions, table, check_values=True)
    for part, heads_before in ((query, before[:, : heads[0]]), (key, before[:, heads[0] : sum(heads)])):
        assert relative_error(part, reference.rotate(heads_before, positions, table)) < BOUNDS[dtype]
    assert torch.equal(packed[:, sum(heads) :], before[:, sum(heads) :])


def test_rotary_keeps_the_length_and_turns_by_the_angle(device: Any) -> None:
    table = cos_sin_table(torch.tensor([1.0], device=device), 8)
    query = torch.tensor([[[1.0, 0.0]]], device=device)
    key = query.clone()
    rotary(query, key, torch.tensor([2], device=device), table)
    turned = torch.tensor([2.0], dtype=torch.float64)
    wanted = torch.stack((turned.cos(), turned.sin()), dim=-1).float().to(device)
    assert torch.allclose(query[0], wanted)
    assert torch.allclose(key[0], wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 1024), (2, 1025), (5, 300)])
def test_silu_mul(device: Any, relative_error: ErrorOf, dtype: Any, rows: int, size: int) -> None:
    packed = (4 * torch.randn(rows, 2 * size, device=device)).to(dtype)
    gate, up = packed.chunk(2, dim=-1)
    out = silu_mul(gate, up, out=poisoned(gate.contiguous()))
    assert relative_error(out, reference.silu_mul(gate, up)) < BOUNDS[dtype]


def test_silu_mul_at_both_ends(device: Any) -> None:
    gate = torch.tensor([[-1e4, -100.0, 0.0, 1e4]], device=device)
    out = silu_mul(gate, torch.ones_like(gate))
    assert torch.allclose(out, torch.tensor([[0.0, 0.0, 0.0, 1e4]], device=device))
