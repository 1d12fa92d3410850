# mypy: allow-untyped-calls
"""Every kernel, compiled, against its float64 answer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from gpu_parts.bench import BF16, BOUNDS, Bench, check, dtype_name, relative_error
from gpu_parts.inputs import Pool, moved_params, sampling_params


def check_attention(bench: Bench) -> None:
    from schedtop.kernels import reference

    long = 60 if bench.interpreted else 1500
    mixed = ([1, long // 2, 1, 0, 17, 1], [1, long // 2, long, 0, long, 33])
    decode = ([1, 1, 1, 0, 1], [long, 1, 16, 0, 2 * long])
    cases: list[tuple[str, int, int, torch.dtype, Any, dict[str, Any]]] = []
    for case, head_size in enumerate((64, 80, 96, 128, 256)):
        cases.append(("mixed", head_size, (8, 16, 32)[case % 3], BF16, mixed, {}))
        cases.append(("split decode", head_size, (32, 16, 8)[case % 3], BF16, decode, {"num_splits": 4}))
    for head_size in (64, 128, 256):
        cases.append(("mixed", head_size, 16, torch.float16, mixed, {"num_splits": 1}))
        cases.append(("mixed", head_size, 16, torch.float32, mixed, {"num_splits": 1}))
    cases.append(("decode", 128, 16, torch.float16, decode, {"num_splits": 1}))
    cases.append(("decode", 80, 8, torch.float32, decode, {"num_splits": 2}))
    for shape in (mixed, decode):
        options = {"window": 33, "soft_cap": 20.0}
        cases.append(("window and cap", 128, 16, BF16, shape, options))
        cases.append(("window and cap", 256, 32, BF16, shape, options))
    for name, head_size, block_size, dtype, (query_lens, seq_lens), options in cases:

        def errors(
            head_size: int = head_size,
            block_size: int = block_size,
            dtype: torch.dtype = dtype,
            lens: tuple[list[int], list[int]] = (query_lens, seq_lens),
            options: dict[str, Any] = options,
        ) -> float:
            pool = Pool.random(16 * long, 2, head_size, dtype, bench.device, block_size)
            batch = pool.batch(*lens, heads=8)
            batch.out.fill_(float("nan"))
            out = batch.attend(check_values=True, **options)
            shared = {key: value for key, value in options.items() if key != "num_splits"}
            return relative_error(out, reference.paged_attention(*batch.tensors, scale=head_size**-0.5, **shared))

        check(bench, f"{name}, head {head_size}, block {block_size}, {dtype_name(dtype)}", BOUNDS[dtype], errors)


def check_elementwise(bench: Bench) -> None:
    from schedtop.kernels import reference
    from schedtop.kernels.activation import silu_mul
    from schedtop.kernels.kv_write import kv_write
    from schedtop.kernels.norm import rms_norm
    from schedtop.kernels.rotary import cos_sin_table, rotary

    def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(*shape, device=bench.device).to(dtype)

    def norm_error(dtype: torch.dtype, add_one: bool) -> float:
        x, residual = random(2, 37, 576, dtype=dtype)
        weight = random(576, dtype=dtype)
        expected, total = reference.rms_norm(x, weight, 1e-5, residual=residual, add_one=add_one)
        out = rms_norm(x, weight, 1e-5, residual=residual, add_one=add_one)
        return max(relative_error(out, expected), relative_error(residual, total))

    def rotary_error(dtype: torch.dtype) -> float:
        query, key = random(19, 6, 96, dtype=dtype), random(19, 2, 96, dtype=dtype)
        table = cos_sin_table(torch.rand(48, device=bench.device), 100)
        positions = torch.randint(0, 100, (19,), device=bench.device)
        expected = [reference.rotate(tensor, positions, table) for tensor in (query, key)]
        rotary(query, key, positions, table, check_values=True)
        return max(relative_error(query, expected[0]), relative_error(key, expected[1]))

    def gate_error(dtype: torch.dtype) -> float:
        gate, up = random(2, 13, 1500, dtype=dtype)
        return relative_error(silu_mul(gate, up), reference.silu_mul(gate, up))

    def write_error(dtype: torch.dtype) -> float:
        key, value = random(2, 21, 3, 80, dtype=dtype)
        slots = torch.randperm(64, device=bench.device)[:21]
        slots[4] = -1
        written, expected = (torch.zeros(2, 8, 8, 3, 80, dtype=dtype, device=bench.device) for _ in range(2))
        kv_write(key, value, written[0], written[1], slots, check_values=True)
        reference.kv_write(key, value, expected[0], expected[1], slots)
        return relative_error(written, expected)

    for dtype, bound in BOUNDS.items():
        name = dtype_name(dtype)
        check(bench, f"rms norm with residual, {name}", bound, partial(norm_error, dtype, False))
        check(bench, f"rotary, {name}", bound, partial(rotary_error, dtype))
        check(bench, f"silu times up, {name}", bound, partial(gate_error, dtype))
        check(bench, f"K/V write, {name}", 0.0, partial(write_error, dtype))
    check(bench, "rms norm of 1 + weight, bfloat16", BOUNDS[BF16], partial(norm_error, BF16, True))


def check_sampling(bench: Bench) -> None:
    """Share of rows whose token differs from the reference's; the noise is the same, so none should."""
    from schedtop.kernels import reference
    from schedtop.kernels.sampling import sample

    rows, vocab = (6, 300) if bench.interpreted else (64, 32000)
    cpu = torch.device("cpu")

    def differing(dtype: torch.dtype) -> float:
        logits = (3 * torch.randn(rows, vocab)).to(dtype)
        params = sampling_params(rows, cpu, mixed=True)
        tokens = sample(logits.to(bench.device), moved_params(params, bench.device), check_values=True)
        return float((tokens.cpu() != reference.sample(logits, params)).double().mean())

    # A sum that straddles top-p's share by a rounding error may change the set on rare rows.
    check(bench, "sampling, float32: share of other tokens", 0.02, partial(differing, torch.float32))
    check(bench, "sampling, bfloat16: share of other tokens", 0.02, partial(differing, BF16))
