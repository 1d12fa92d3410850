"""The course of a run: its figures over time, in bins that grow wider as the run grows longer."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import StepRecord, blocks_in_use

MAX_BINS = 1024
FIRST_BIN_S = 0.01
PENDING = 1024
LEAST_S, RATIO, NUM_SIZES = 2e-5, 1.05, 420
"""Latencies are counted by size: the smallest, the ratio between neighbours (so a size is within 2.5 %), how many."""

SUMS = ("steps", "decode", "prefill", "draft", "budget", "usage", "running", "waiting", "preemptions")
"""Of every bin; `usage` is a share of the pool. All are sums over the bin's steps."""


class Spread(msgspec.Struct, frozen=True):
    """Latencies: in bin `bins[i]` there were `counts[i]` of size `sizes[i]` (see `size_s`)."""

    bins: list[int]
    sizes: list[int]
    counts: list[int]


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Sums by bin, over `span_s` seconds. `longest_s` is the longest step that ended in a bin."""

    span_s: float
    bin_s: float
    sums: dict[str, list[float]]
    longest_s: list[float]
    ttft: Spread
    itl: Spread


def size_s() -> list[float]:
    """The middle of each size of latency, in seconds."""
    return [LEAST_S * RATIO ** (size + 0.5) for size in range(NUM_SIZES)]


class Tracer:
    """Takes a run's records from `start_s` on, in order. Memory does not grow with the run."""

    def __init__(self, start_s: float) -> None:
        self.start_s = self.end_s = start_s
        self.bin_s = FIRST_BIN_S
        self._sums = np.zeros((MAX_BINS, len(SUMS)))
        self._longest_s = np.zeros(MAX_BINS)
        self._pending: list[StepRecord] = []
        self._spreads = {kind: np.zeros((MAX_BINS, NUM_SIZES), dtype=np.int64) for kind in ("ttft", "itl")}

    def add(self, record: StepRecord) -> None:
        """Take in the next record; one of an idle engine only moves the end."""
        self.end_s = max(self.end_s, record.end_s)
        if record.executed:
            self._pending.append(record)
            if len(self._pending) >= PENDING:
                self.settle()

    def settle(self) -> None:
        """Work in what was taken: many records at once cost little more than one."""
        records, self._pending = self._pending, []
        if not records:
            return
        at_s = np.maximum(np.array([record.end_s for record in records]) - self.start_s, 0.0)
        while at_s.max() >= MAX_BINS * self.bin_s:
            self._widen()
        places = (at_s / self.bin_s).astype(np.int64)
        np.add.at(self._sums, places, np.array([_sums_of(record) for record in records], dtype=np.float64))
        np.maximum.at(self._longest_s, places, np.array([record.end_s - record.start_s for record in records]))
        gaps = np.frombuffer(b"".join([record.itl_s for record in records]), dtype=np.float32)
        self._count("itl", np.repeat(places, [len(record.itl_s) // 4 for record in records]), gaps)
        late_s = np.array([late_s for record in records for _, late_s in record.ttft_s])
        self._count("ttft", np.repeat(places, [len(record.ttft_s) for record in records]), late_s)

    def _count(self, kind: str, places: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        """Count latencies by bin and size; NaN is none."""
        known = ~np.isnan(values)
        np.add.at(self._spreads[kind], (places[known], _sizes(values[known])), 1)

    def _widen(self) -> None:
        """Twice as wide bins: each takes in its neighbour."""
        self.bin_s *= 2
        bins: npt.NDArray[Any]
        for bins in (self._sums, *self._spreads.values()):
            bins[: MAX_BINS // 2], bins[MAX_BINS // 2 :] = bins[0::2] + bins[1::2], 0
        longest_s = np.maximum(self._longest_s[0::2], self._longest_s[1::2])
        self._longest_s[: MAX_BINS // 2], self._longest_s[MAX_BINS // 2 :] = longest_s, 0

    def course(self, bin_s: float) -> Course:
        """What was taken in, in bins of `bin_s`, which must be this tracer's width or a later one."""
        self.settle()
        while self.bin_s < bin_s:
            self._widen()
        num = min(MAX_BINS, math.floor((self.end_s - self.start_s) / self.bin_s) + 1)
        return Course(
            span_s=self.end_s - self.start_s,
            bin_s=self.bin_s,
            sums={name: self._sums[:num, place].tolist() for place, name in enumerate(SUMS)},
            longest_s=self._longest_s[:num].tolist(),
            ttft=_spread(self._spreads["ttft"]),
            itl=_spread(self._spreads["itl"]),
        )


def courses(tracers: list[Tracer]) -> list[Course]:
    """All of them in bins of the same width."""
    for tracer in tracers:
        tracer.settle()
    widest_s = max(tracer.bin_s for tracer in tracers)
    return [tracer.course(widest_s) for tracer in tracers]


def _sums_of(record: StepRecord) -> tuple[float, ...]:
    """In the order of `SUMS`."""
    blocks = record.blocks
    pool = blocks.held + blocks.shared + blocks.cached_free + blocks.empty
    return (
        1,
        record.decode_tokens,
        record.prefill_tokens,
        record.draft_tokens,
        record.token_budget,
        blocks_in_use(record) / pool,
        record.running,
        record.waiting,
        len(record.preemptions),
    )


def _sizes(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    sizes = np.floor(np.log(np.maximum(values, LEAST_S) / LEAST_S) / math.log(RATIO))
    found: npt.NDArray[np.int64] = np.minimum(sizes, NUM_SIZES - 1).astype(np.int64)
    return found


def _spread(counts: npt.NDArray[np.int64]) -> Spread:
    bins, sizes = np.nonzero(counts)
    return Spread(bins.tolist(), sizes.tolist(), counts[bins, sizes].tolist())
