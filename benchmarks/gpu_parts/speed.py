# mypy: allow-untyped-calls
"""The speed of every kernel beside yardsticks measured in the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_parts.bench import BF16, Bench, Row, median_ms
from gpu_parts.inputs import PagedBatch, Pool, sampling_params
from torch.nn.attention import SDPBackend, sdpa_kernel


def measure_copy(bench: Bench) -> None:
    """Bytes read plus bytes written per second, of a device-to-device copy."""
    count = bench.sizes.copy_elements
    source = torch.randint(0, 255, (2, count), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    calls = [lambda i=i: target[i].copy_(source[i]) for i in range(2)]
    ms = median_ms(bench, calls)
    bench.copy_gb_s = 2 * count / ms / 1e6
    bench.add(Row("copy, device to device", ms, f"{bench.copy_gb_s:.0f} GB/s", "", "yardstick"))


def measure_matmul(bench: Bench) -> None:
    """Multiplications and additions per second of a square bfloat16 product."""
    size = bench.sizes.matmul
    left, right = (torch.randn(2, size, size, device=bench.device).to(BF16) for _ in range(2))
    out = torch.empty_like(left)
    calls = [lambda i=i: torch.mm(left[i], right[i], out=out[i]) for i in range(2)]
    ms = median_ms(bench, calls)
    bench.matmul_tflop_s = 2 * size**3 / ms / 1e9
    bench.add(Row(f"matrix product {size}^3 bf16", ms, f"{bench.matmul_tflop_s:.0f} TFLOP/s", "", "yardstick"))


def measure_decode(bench: Bench) -> None:
    """Bytes of keys, values, queries and outputs per second, one token per row."""
    sizes = bench.sizes
    pool = Pool.random(sizes.pool_tokens, sizes.heads[1], 128, BF16, bench.device, 16)
    rows, low, high = sizes.ragged
    ragged = torch.randint(low, high + 1, (rows,)).tolist()
    problems = [(f"{count}x{length}", [length] * count) for count, length in sizes.decode]
    problems.append((f"{rows}x{low}-{high}", ragged))
    for index, (name, seq_lens) in enumerate(problems):
        batches = [pool.batch([1] * len(seq_lens), seq_lens, sizes.heads[0]) for _ in range(3)]
        row_bytes = sizes.heads[1] * 128 * 2
        num_bytes = 2 * sum(seq_lens) * row_bytes + 2 * batches[0].out.numel() * 2
        ms = median_ms(bench, [b.call() for b in batches])
        bench.moved(f"decode attention {name}", ms, num_bytes)
        bench.reach(f"decode {name}", num_bytes / ms / 1e6 / bench.copy_gb_s)
        if index in (0, len(problems) - 2):
            sweep_decode(bench, name, batches, num_bytes)


def sweep_decode(bench: Bench, name: str, batches: list[PagedBatch], num_bytes: float) -> None:
    """Other splits and tilings, to see what the default choice leaves."""
    from schedtop.kernels.tiling import Tiling

    shapes = [(64, 4, 3), (64, 4, 7), (32, 4, 5), (128, 4, 5), (64, 8, 5), (128, 8, 3)]
    options: list[dict[str, Any]] = [{"num_splits": splits} for splits in (1, 2, 4, 8, 16, 32)]
    options += [{"tiling": Tiling(16, *shape)} for shape in shapes]
    report_best(bench, f"decode attention {name}", batches, options, num_bytes / 1e6, "GB/s")


def report_best(
    bench: Bench, what: str, batches: list[PagedBatch], options: list[dict[str, Any]], work: float, unit: str
) -> None:
    """One row for the fastest of some options; `work` over ms gives the rate."""
    times: list[tuple[float, dict[str, Any]]] = []
    for option in options[: 2 if bench.interpreted else None]:
        if bench.late():
            break
        try:
            times.append((median_ms(bench, [b.call(**option) for b in batches], seconds=0.1), option))
        except Exception as problem:
            print(f"    {option}: {type(problem).__name__}: {str(problem)[:120]}", flush=True)
            continue
        print(f"    {option}: {times[-1][0]:.3f} ms, {work / times[-1][0]:.0f} {unit}", flush=True)
    if times:
        ms, option = min(times, key=lambda pair: pair[0])
        yardstick, name = (bench.copy_gb_s, "copy") if unit == "GB/s" else (bench.matmul_tflop_s, "product")
        share = f"{work / ms / yardstick:.0%} of {name}"
        bench.add(Row(f"{what}, best of sweep", ms, f"{work / ms:.0f} {unit}", share, str(option)))


def attention_tflop(query_len: int, seq_len: int, heads: int, head_size: int) -> float:
    """Multiplications and additions of the two causal products of one row, in 10^12."""
    pairs = query_len * seq_len - query_len * (query_len - 1) // 2
    return 4 * pairs * heads * head_size / 1e12


def measure_prefill(bench: Bench) -> None:
    sizes = bench.sizes
    heads, kv_heads = sizes.heads
    pool = Pool.random(sizes.pool_tokens, kv_heads, 128, BF16, bench.device, 16)
    for index, (rows, length) in enumerate(sizes.prefill):
        batches = [pool.batch([length] * rows, [length] * rows, heads) for _ in range(2)]
        work = rows * attention_tflop(length, length, heads, 128)
        ms = median_ms(bench, [b.call() for b in batches])
        dense = measure_sdpa(bench, rows, length, heads, kv_heads, 128)
        share = f"{work / ms * 1e3 / bench.matmul_tflop_s:.0%} of product, {dense / ms:.2f} x SDPA"
        bench.add(Row(f"prefill attention {rows} x {length}", ms, f"{work / ms * 1e3:.0f} TFLOP/s", share))
        bench.reach(f"prefill {rows}x{length}", dense / ms)
        if index == len(sizes.prefill) - 1:
            sweep_prefill(bench, f"prefill attention {rows} x {length}", batches, work)
    query_len, seq_len = sizes.chunk
    chunk = [pool.batch([query_len], [seq_len], heads) for _ in range(2)]
    ms = median_ms(bench, [b.call() for b in chunk])
    rate = attention_tflop(query_len, seq_len, heads, 128) / ms * 1e3
    share = f"{rate / bench.matmul_tflop_s:.0%} of product"
    bench.add(Row(f"chunk of {query_len} ending at {seq_len}", ms, f"{rate:.0f} TFLOP/s", share))
    rows, length = sizes.decode[0]
    mixed = [
        pool.batch([query_len, *[1] * (rows - 1)], [query_len, *[length] * (rows - 1)], heads) for _ in range(2)
    ]
    ms = median_ms(bench, [b.call() for b in mixed])
    bench.add(Row(f"chunk of {query_len} beside {rows - 1} decodes at {length}", ms, note="one launch"))


def sweep_prefill(bench: Bench, what: str, batches: list[PagedBatch], work: float) -> None:
    from schedtop.kernels.tiling import Tiling

    shapes = [(128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 5), (128, 32, 8, 5), (64, 64, 4, 3), (128, 64, 4, 3)]
    options: list[dict[str, Any]] = [{"tiling": Tiling(*shape)} for shape in shapes]
    report_best(bench, what, batches, options, work * 1e3, "TFLOP/s")


def measure_sdpa(bench: Bench, rows: int, length: int, heads: int, kv_heads: int, head_size: int) -> float:
    """Time of torch's own attention on the same dense problem: the better of shared and repeated key heads."""
    shape = (2, rows, heads, length, head_size)
    query = torch.randn(shape, device=bench.device, dtype=torch.float32).to(BF16)
    key, value = (query[:, :, :kv_heads].contiguous() * scale for scale in (1.0, 0.5))
    wide_key, wide_value = (tensor.repeat_interleave(heads // kv_heads, dim=2) for tensor in (key, value))

    def shared(i: int) -> Callable[[], object]:
        return lambda: F.scaled_dot_product_attention(query[i], key[i], value[i], is_causal=True, enable_gqa=True)

    def repeated(i: int) -> Callable[[], object]:
        return lambda: F.scaled_dot_product_attention(query[i], wide_key[i], wide_value[i], is_causal=True)

    # The fallback that writes the whole score matrix is not a yardstick, and would not fit at this length.
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    backends += [SDPBackend.MATH] if bench.interpreted else []
    times: dict[str, float] = {}
    for name, kind in (("shared", shared), ("repeated", repeated)):
        try:
            with sdpa_kernel(backends):
                times[name] = median_ms(bench, [kind(0), kind(1)])
        except RuntimeError as problem:
            print(f"    SDPA with {name} key heads: {str(problem)[:120]}", flush=True)
    best = min(times, key=lambda name: times[name])
    rate = rows * attention_tflop(length, length, heads, head_size) / times[best] * 1e3
    share = f"{rate / bench.matmul_tflop_s:.0%} of product"
    bench.add(Row(f"SDPA {rows} x {length}", times[best], f"{rate:.0f} TFLOP/s", share, f"{best} key heads"))
    return times[best]


def measure_elementwise(bench: Bench) -> None:
    from schedtop.kernels.activation import silu_mul
    from schedtop.kernels.kv_write import kv_write
    from schedtop.kernels.norm import rms_norm
    from schedtop.kernels.rotary import cos_sin_table, rotary

    tokens, hidden, device = bench.sizes.tokens, bench.sizes.hidden, bench.device
    heads, kv_heads = bench.sizes.heads
    sets = range(3)
    x = torch.randn(3, tokens, hidden, device=device).to(BF16)
    other, out = torch.randn_like(x), torch.empty_like(x[0])
    weight = torch.ones(hidden, device=device, dtype=BF16)
    plane = tokens * hidden * 2
    norms = [lambda i=i: rms_norm(x[i], weight, 1e-5, out=out) for i in sets]
    bench.moved("rms norm", median_ms(bench, norms), 2 * plane)
    # Repeated residual adds would overflow: the added part is tiny.
    x *= 1e-3
    norms = [lambda i=i: rms_norm(x[i], weight, 1e-5, residual=other[i], out=out) for i in sets]
    bench.moved("rms norm with residual", median_ms(bench, norms), 4 * plane)
    gates = [lambda i=i: silu_mul(x[i], other[i], out=out) for i in sets]
    bench.moved("silu times up", median_ms(bench, gates), 3 * plane)

    query = torch.randn(3, tokens, heads, 128, device=device).to(BF16)
    key = torch.randn(3, tokens, kv_heads, 128, device=device).to(BF16)
    table = cos_sin_table(10000.0 ** (-torch.arange(64, device=device) / 64), tokens)
    positions = torch.arange(tokens, device=device)
    turns = [lambda i=i: rotary(query[i], key[i], positions, table) for i in sets]
    num_bytes = 2 * 2 * (query[0].numel() + key[0].numel()) + table.numel() * 4
    bench.moved("rotary", median_ms(bench, turns), num_bytes)

    pool = Pool.random(2 * tokens, kv_heads, 128, BF16, device, 16)
    slots = [torch.randperm(2 * tokens, device=device)[:tokens] for _ in sets]
    writes = [lambda i=i: kv_write(key[i], key[i - 1], pool.k_cache, pool.v_cache, slots[i]) for i in sets]
    bench.moved("K/V write, random slots", median_ms(bench, writes), 4 * 2 * key[0].numel())


def measure_sampling(bench: Bench) -> None:
    from schedtop.kernels.sampling import sample

    for rows in (1, 4 if bench.interpreted else 64):
        logits = [torch.randn(rows, bench.sizes.vocab, device=bench.device).to(BF16) for _ in range(3)]
        for name, mixed in (("greedy", False), ("every kind of row", True)):
            params = sampling_params(rows + 1, bench.device, mixed=mixed)
            # From the second row on, so that the single row of a mixed batch is one that filters.
            params = replace(params, **{key: tensor[1:].contiguous() for key, tensor in vars(params).items()})
            calls = [lambda l=l, p=params: sample(l, p) for l in logits]  # noqa: E741
            what = f"sampling {name}, {rows} x {bench.sizes.vocab}"
            bench.add(Row(what, median_ms(bench, calls)))
