# mypy: allow-untyped-calls
"""Correctness and speed of the kernels on the GPU at hand, in one go of under four minutes.

    python benchmarks/gpu.py              measure, print one table last
    python benchmarks/gpu.py --interpret  tiny sizes through Triton's interpreter: proves this script, times nothing

Every speed stands beside a yardstick measured in the same run: a device-to-device copy for what moves bytes, a
matrix product for what multiplies, `scaled_dot_product_attention` for prefill. Times are medians over replays of
a CUDA graph that holds one call per input set, so that launches cost no host time and caches stay cold. Exits 1
when a result is wrong or a part failed, 0 otherwise, also without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import torch
except ImportError:
    print("torch is not installed: nothing to measure.")
    sys.exit(0)

import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from schedtop import kernels
except ImportError:
    # Not installed: map the import root onto the checkout, as the packaging does.
    package = types.ModuleType("schedtop")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["schedtop"] = package
    from schedtop import kernels

TIME_LIMIT_S = 240
BOUNDS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5}
BF16 = torch.bfloat16


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama-family decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    eps: float = 1e-5
    rope_theta: float = 500000.0


@dataclass(frozen=True)
class Sizes:
    """How large the problems are: `FULL` for a GPU, `TINY` for the interpreter."""

    copy_elements: int
    matmul: int
    pool_tokens: int
    heads: tuple[int, int]
    decode: tuple[tuple[int, int], ...]
    ragged: tuple[int, int, int]
    prefill: tuple[tuple[int, int], ...]
    chunk: tuple[int, int]
    tokens: int
    hidden: int
    vocab: int
    model: LlamaShape
    model_batches: tuple[int, ...]
    model_context: int


FULL = Sizes(
    copy_elements=2**29,
    matmul=8192,
    pool_tokens=2**19,
    heads=(32, 8),
    decode=((64, 4096), (256, 1024), (8, 32768), (1, 131072)),
    ragged=(64, 256, 8192),
    prefill=((8, 2048), (1, 16384)),
    chunk=(2048, 16384),
    tokens=16384,
    hidden=4096,
    vocab=128256,
    model=LlamaShape(16, 2048, 32, 8, 64, 8192, 128256),
    model_batches=(1, 8, 32, 128),
    model_context=1024,
)
TINY = Sizes(
    copy_elements=2**12,
    matmul=64,
    pool_tokens=1024,
    heads=(4, 2),
    decode=((3, 100),),
    ragged=(4, 5, 60),
    prefill=((2, 40),),
    chunk=(20, 50),
    tokens=8,
    hidden=64,
    vocab=500,
    model=LlamaShape(2, 128, 2, 1, 64, 96, 300),
    model_batches=(1, 3),
    model_context=20,
)


@dataclass
class Row:
    """A line of the table; empty cells stay blank."""

    what: str
    ms: float | None = None
    rate: str = ""
    share: str = ""
    note: str = ""


@dataclass
class Bench:
    """What a run shares: where, how large, since when, and what it has found."""

    device: torch.device
    sizes: Sizes
    interpreted: bool
    started: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)
    failures: int = 0
    copy_gb_s: float = 0.0
    matmul_tflop_s: float = 0.0

    def add(self, row: Row) -> None:
        if self.interpreted and row.ms is not None:
            row = Row(row.what, note="ran")
        self.rows.append(row)
        print(f"[{time.monotonic() - self.started:5.0f} s] {row.what}: {row_text(row)}", flush=True)

    def late(self) -> bool:
        """Whether optional work should be left out."""
        return time.monotonic() - self.started > 0.7 * TIME_LIMIT_S

    def moved(self, what: str, ms: float, num_bytes: float, note: str = "") -> None:
        rate = num_bytes / ms / 1e6
        self.add(Row(what, ms, f"{rate:.0f} GB/s", f"{rate / self.copy_gb_s:.0%} of copy", note))


def row_text(row: Row) -> str:
    ms = "" if row.ms is None else f"{row.ms:.3f} ms"
    return "  ".join(cell for cell in (ms, row.rate, row.share, row.note) if cell)


# Timing


def median_ms(bench: Bench, calls: Sequence[Callable[[], object]], seconds: float = 0.3) -> float:
    """Median time of one call, in ms; each call has its own input set."""
    for call in calls:
        call()
    if bench.interpreted:
        begin = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begin) * 1000 / len(calls)
    graph = captured(calls)
    first = event_ms(graph.replay)
    count = max(5, min(200, int(seconds * 1000 / max(first, 1e-3))))
    return statistics.median(event_ms(graph.replay) for _ in range(count)) / len(calls)


def captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """A graph of the calls; the warm-up before it compiles kernels and fills library workspaces."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def event_ms(call: Callable[[], object]) -> float:
    """Device time of one call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


# Yardsticks


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


# A paged problem


@dataclass
class Pool:
    """A paged cache of random keys and values, and a supply of its blocks in random order."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor

    @classmethod
    def random(
        cls, tokens: int, kv_heads: int, head_size: int, dtype: torch.dtype, device: torch.device, block_size: int
    ) -> Pool:
        shape = (tokens // block_size, block_size, kv_heads, head_size)
        caches = [torch.empty(shape, dtype=dtype, device=device).normal_() for _ in range(2)]
        return cls(caches[0], caches[1])

    def batch(self, query_lens: Sequence[int], seq_lens: Sequence[int], heads: int) -> PagedBatch:
        """Rows on random blocks, no block twice."""
        device, dtype = self.k_cache.device, self.k_cache.dtype
        num_blocks, block_size, _, head_size = self.k_cache.shape
        needed = [-(-length // block_size) for length in seq_lens]
        order = torch.randperm(num_blocks, device=device).int()
        table = torch.zeros(len(seq_lens), max(needed), dtype=torch.int32, device=device)
        for row, start in enumerate(itertools.accumulate(needed[:-1], initial=0)):
            table[row, : needed[row]] = order[start : start + needed[row]]
        query = torch.randn(sum(query_lens), heads, head_size, device=device).to(dtype)
        starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32, device=device)
        lengths = torch.tensor(seq_lens, dtype=torch.int32, device=device)
        tensors = (query, self.k_cache, self.v_cache, table, starts, lengths)
        return PagedBatch(tensors, torch.empty_like(query), max(query_lens), max(seq_lens))


@dataclass
class PagedBatch:
    """The tensors of an attention call, in the wrapper's order, and their host-side bounds."""

    tensors: tuple[torch.Tensor, ...]
    out: torch.Tensor
    max_query_len: int
    max_seq_len: int

    def attend(self, **options: Any) -> torch.Tensor:
        from schedtop.kernels.paged_attention import paged_attention

        return paged_attention(
            *self.tensors,
            max_query_len=self.max_query_len,
            max_seq_len=self.max_seq_len,
            scale=self.out.shape[-1] ** -0.5,
            out=self.out,
            **options,
        )

    def call(self, **options: Any) -> Callable[[], object]:
        return lambda: self.attend(**options)


# Correctness


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return float((out.double() - reference.double()).norm() / reference.double().norm().clamp_min(1e-300))


def check(bench: Bench, what: str, bound: float, errors: Callable[[], float]) -> None:
    """One correctness row; a kernel that fails to compile is a failure like a wrong result."""
    try:
        error = errors()
        good = error <= bound
        note = f"error {error:.1e}, bound {bound:.0e}"
    except Exception as problem:
        good, note = False, f"{type(problem).__name__}: {str(problem)[:160]}"
    bench.failures += not good
    bench.add(Row(what, None, "right" if good else "WRONG", "", note))


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


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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


def sampling_params(rows: int, device: torch.device, *, mixed: bool) -> Any:
    """Greedy rows, or every kind of row in turn."""
    from schedtop.kernels.sampling_params import SamplingParams

    turn = torch.arange(rows)
    zeros = torch.zeros(rows)
    params = SamplingParams(
        temperature=torch.tensor([0.0, 0.7, 1.0, 1.3])[turn % 4] if mixed else zeros,
        top_k=torch.tensor([0, 50, 5])[turn % 3].int() if mixed else zeros.int(),
        top_p=torch.tensor([1.0, 0.9, 0.5, 0.95, 1.0])[turn % 5] if mixed else zeros + 1,
        min_p=torch.tensor([0.0, 0.0, 0.05])[turn % 3] if mixed else zeros,
        seeds=torch.randint(0, 2**62, (rows,)),
        positions=turn + 5,
    )
    return moved_params(params, device)


def moved_params(params: Any, device: torch.device) -> Any:
    return replace(params, **{name: tensor.to(device) for name, tensor in vars(params).items()})


# Speed


def measure_decode(bench: Bench) -> None:
    """Bytes of keys, values, queries and outputs per second, one token per row."""
    sizes = bench.sizes
    pool = Pool.random(sizes.pool_tokens, sizes.heads[1], 128, BF16, bench.device, 16)
    rows, low, high = sizes.ragged
    ragged = torch.randint(low, high + 1, (rows,)).tolist()
    problems = [(f"{rows} x {length}", [length] * rows) for rows, length in sizes.decode]
    problems.append((f"{rows} x {low} to {high}", ragged))
    for index, (name, seq_lens) in enumerate(problems):
        batches = [pool.batch([1] * len(seq_lens), seq_lens, sizes.heads[0]) for _ in range(3)]
        row_bytes = sizes.heads[1] * 128 * 2
        num_bytes = 2 * sum(seq_lens) * row_bytes + 2 * batches[0].out.numel() * 2
        bench.moved(f"decode attention {name}", median_ms(bench, [b.call() for b in batches]), num_bytes)
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

    # The fallback that writes the whole score matrix is no yardstick, and would not fit at this length.
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


# A whole model


@dataclass
class Layer:
    """Weights of a layer; projections that read the same input are one matrix."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass
class Step:
    """A step's inputs: one entry per token, or per row for the last four tensors."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    logit_rows: torch.Tensor
    max_query_len: int
    max_seq_len: int


@dataclass
class Llama:
    """A Llama-family decoder out of this project's kernels and torch's matrix products."""

    shape: LlamaShape
    embedding: torch.Tensor
    layers: list[Layer]
    final_norm: torch.Tensor
    head: torch.Tensor
    cos_sin: torch.Tensor

    def logits(self, step: Step, caches: Sequence[Pool]) -> torch.Tensor:
        """Logits of the tokens at `logit_rows`; writes the step's keys and values to the caches."""
        from schedtop.kernels.activation import silu_mul
        from schedtop.kernels.norm import rms_norm

        shape = self.shape
        residual = F.embedding(step.tokens, self.embedding)
        hidden = rms_norm(residual, self.layers[0].input_norm, shape.eps)
        for index, layer in enumerate(self.layers):
            attended = self.attend(hidden, layer, step, caches[index])
            hidden = rms_norm(attended, layer.mlp_norm, shape.eps, residual=residual)
            gate, up = F.linear(hidden, layer.gate_up).chunk(2, dim=-1)
            mixed = F.linear(silu_mul(gate, up), layer.down)
            last = index + 1 == len(self.layers)
            norm = self.final_norm if last else self.layers[index + 1].input_norm
            hidden = rms_norm(mixed, norm, shape.eps, residual=residual)
        return F.linear(hidden[step.logit_rows], self.head)

    def attend(self, hidden: torch.Tensor, layer: Layer, step: Step, cache: Pool) -> torch.Tensor:
        from schedtop.kernels.kv_write import kv_write
        from schedtop.kernels.paged_attention import paged_attention
        from schedtop.kernels.rotary import rotary

        shape = self.shape
        heads = F.linear(hidden, layer.qkv).unflatten(1, (-1, shape.head_size))
        query, key, value = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        rotary(query, key, step.positions, self.cos_sin)
        kv_write(key, value, cache.k_cache, cache.v_cache, step.slot_mapping)
        out = paged_attention(
            query,
            cache.k_cache,
            cache.v_cache,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            max_query_len=step.max_query_len,
            max_seq_len=step.max_seq_len,
            scale=shape.head_size**-0.5,
        )
        return F.linear(out.flatten(1), layer.attention_out)

    def num_bytes(self) -> int:
        """Bytes of weights a step reads; the embedding is read a row per token, unless it is the head."""
        tensors = [self.head, self.final_norm]
        tensors += itertools.chain.from_iterable(vars(layer).values() for layer in self.layers)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def random_llama(shape: LlamaShape, dtype: torch.dtype, device: torch.device, max_positions: int) -> Llama:
    from schedtop.kernels.rotary import cos_sin_table

    def weight(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device=device).normal_(std=0.02)

    ones = torch.ones(shape.hidden, dtype=dtype, device=device)
    query_size = shape.heads * shape.head_size
    qkv_size = query_size + 2 * shape.kv_heads * shape.head_size
    layers = [
        Layer(
            ones,
            weight(qkv_size, shape.hidden),
            weight(shape.hidden, query_size),
            ones,
            weight(2 * shape.intermediate, shape.hidden),
            weight(shape.hidden, shape.intermediate),
        )
        for _ in range(shape.layers)
    ]
    exponents = torch.arange(0, shape.head_size, 2, device=device) / shape.head_size
    embedding = weight(shape.vocab, shape.hidden)
    table = cos_sin_table(shape.rope_theta**-exponents, max_positions)
    return Llama(shape, embedding, layers, ones, embedding, table)


def decode_step(shape: LlamaShape, rows: int, context: int, device: torch.device, block_size: int) -> Step:
    """One new token per row at the end of `context` tokens, each row on blocks of its own."""
    per_row = -(-context // block_size)
    integers: dict[str, Any] = {"dtype": torch.int32, "device": device}
    table = torch.randperm(rows * per_row, device=device).view(rows, per_row).int()
    last = context - 1
    slots = table[:, last // block_size].long() * block_size + last % block_size
    return Step(
        tokens=torch.randint(0, shape.vocab, (rows,), device=device),
        positions=torch.full((rows,), last, device=device),
        slot_mapping=slots,
        block_table=table,
        query_start_loc=torch.arange(rows + 1, **integers),
        seq_lens=torch.full((rows,), context, **integers),
        logit_rows=torch.arange(rows, device=device),
        max_query_len=1,
        max_seq_len=context,
    )


def measure_model(bench: Bench) -> None:
    """A decode step with greedy sampling: from the host call by call, and replayed as a graph."""
    from schedtop.kernels.sampling import sample

    shape, context = bench.sizes.model, bench.sizes.model_context
    model = random_llama(shape, BF16, bench.device, context)
    kv_token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * 2
    for rows in bench.sizes.model_batches:
        step = decode_step(shape, rows, context, bench.device, 16)
        blocks = step.block_table.numel()
        caches = [
            Pool.random(blocks * 16, shape.kv_heads, shape.head_size, BF16, bench.device, 16)
            for _ in range(shape.layers)
        ]
        params = sampling_params(rows, bench.device, mixed=False)
        kept: dict[str, torch.Tensor] = {}

        def run(step: Step = step, caches: Any = caches, params: Any = params, kept: Any = kept) -> None:
            kept["logits"] = model.logits(step, caches)
            sample(kept["logits"], params)

        run()
        expected = kept["logits"].clone()
        eager_ms = wall_ms(bench, run)
        num_bytes = model.num_bytes() + rows * context * kv_token_bytes
        what = f"model step, batch {rows}, context {context}"
        bench.moved(f"{what}, eager", eager_ms, num_bytes, "from the host")
        if bench.interpreted:
            continue
        graph_ms = median_ms(bench, [run])
        bench.moved(f"{what}, graph", graph_ms, num_bytes, f"{eager_ms / graph_ms:.1f} x eager")
        # `kept` now holds what the graph writes.
        graph = captured([run])
        kept["logits"].fill_(float("nan"))
        graph.replay()
        error = relative_error(kept["logits"], expected)
        check(bench, f"{what}, graph equals eager", BOUNDS[BF16], partial(float, error))


def wall_ms(bench: Bench, call: Callable[[], object]) -> float:
    """Median host time of a call and the wait for its end."""
    times = []
    for _ in range(2 if bench.interpreted else 20):
        begin = time.perf_counter()
        call()
        if not bench.interpreted:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


# The run

PARTS: tuple[Callable[[Bench], None], ...] = (
    measure_copy,
    measure_matmul,
    check_elementwise,
    check_sampling,
    check_attention,
    measure_decode,
    measure_prefill,
    measure_elementwise,
    measure_sampling,
    measure_model,
)


def run_parts(bench: Bench) -> None:
    for part in PARTS:
        if time.monotonic() - bench.started > 0.9 * TIME_LIMIT_S:
            bench.add(Row(part.__name__, note="left out: no time left"))
            continue
        try:
            part(bench)
        except Exception as problem:
            bench.failures += 1
            bench.add(Row(part.__name__, note=f"FAILED {type(problem).__name__}: {str(problem)[:160]}"))
        if not bench.interpreted:
            torch.cuda.empty_cache()


def print_table(bench: Bench) -> None:
    cells = [("what", "ms", "rate", "share", "note")]
    cells += [
        (row.what, "" if row.ms is None else f"{row.ms:.3f}", row.rate, row.share, row.note) for row in bench.rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    print()
    for what, ms, rate, share, note in cells:
        line = f"{what:<{widths[0]}}  {ms:>{widths[1]}}  {rate:>{widths[2]}}  {share:<{widths[3]}}  {note}"
        print(line.rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--interpret", action="store_true", help="tiny sizes on the CPU; proves the script only")
    interpret = parser.parse_args().interpret
    device = torch.device("cpu" if interpret else "cuda")
    reason = kernels.unavailable_reason(device)
    if reason is not None:
        print(f"{reason}: nothing to measure.")
        return 0
    import triton

    bench = Bench(device, TINY if interpret else FULL, interpret)
    name = "Triton's interpreter, times mean nothing" if interpret else torch.cuda.get_device_name()
    title = f"{name}; torch {torch.__version__}, triton {triton.__version__}"
    print(title, flush=True)
    with torch.inference_mode():
        run_parts(bench)
    print_table(bench)
    print(f"\n{title}; {time.monotonic() - bench.started:.0f} s; {bench.failures} failed")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
