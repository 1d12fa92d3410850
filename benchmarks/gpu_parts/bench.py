# mypy: allow-untyped-calls
"""What the parts of a run share: sizes, the table's rows, timing, and the judgement of a result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

TIME_LIMIT_S = 540
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
class Aim:
    """What a measure should reach, in per cent of its yardstick; `reached` stays None where it was not measured."""

    what: str
    yardstick: str
    percent: int
    reached: float | None = None

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "NOT MEASURED"
        return "MET" if self.reached >= self.percent else "MISSED"

    def as_line(self) -> str:
        if self.reached is None:
            return f"{self.what}: {self.verdict}"
        return f"{self.what}: {self.reached:.0f} % of {self.yardstick}, aim {self.percent}: {self.verdict}"


def aims() -> list[Aim]:
    """What a run is judged by."""
    decodes = ("64x4096", "256x1024", "8x32768", "1x131072", "64x256-8192")
    return [
        Aim("results", "those checked right", 100),
        Aim("worker 128x1024", "copy", 50),
        *(Aim(f"decode {shape}", "copy", 90) for shape in decodes),
        *(Aim(f"prefill {shape}", "SDPA", 100) for shape in ("8x2048", "1x16384")),
    ]


@dataclass
class Bench:
    """What a run shares: where, how large, since when, and what it has found."""

    device: torch.device
    sizes: Sizes
    interpreted: bool
    started: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=aims)
    checks: int = 0
    failures: int = 0
    copy_gb_s: float = 0.0
    matmul_tflop_s: float = 0.0

    def add(self, row: Row) -> None:
        if self.interpreted and row.ms is not None:
            row = Row(row.what, note="ran")
        self.rows.append(row)
        print(f"[{time.monotonic() - self.started:5.0f} s] {row.what}: {row_text(row)}", flush=True)

    def reach(self, what: str, share: float) -> None:
        """Note what share of its yardstick a measure reached, if there is an aim for it."""
        for aim in self.aims:
            if aim.what == what and not self.interpreted:
                aim.reached = 100 * share

    def late(self) -> bool:
        """Whether optional work should be left out."""
        return time.monotonic() - self.started > 0.7 * TIME_LIMIT_S

    def moved(self, what: str, ms: float, num_bytes: float, note: str = "") -> None:
        rate = num_bytes / ms / 1e6
        self.add(Row(what, ms, f"{rate:.0f} GB/s", f"{rate / self.copy_gb_s:.0%} of copy", note))


def row_text(row: Row) -> str:
    ms = "" if row.ms is None else f"{row.ms:.3f} ms"
    return "  ".join(cell for cell in (ms, row.rate, row.share, row.note) if cell)


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
    bench.checks += 1
    bench.failures += not good
    bench.add(Row(what, None, "right" if good else "WRONG", "", note))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
