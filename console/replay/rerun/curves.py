"""The courses of runs as columns of a chart: one value a column, whatever the zoom. No drawing here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from schedtop.console.replay.rerun.runs import Course, Spread

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.signedinteger]


class Span(NamedTuple):
    """Seconds since the runs' start that a chart shows."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def column(self, at_s: float, width: int) -> int | None:
        """Where a time lies in a chart of `width` columns; None outside."""
        if not self.begin_s <= at_s <= self.end_s or self.length_s <= 0:
            return None
        return min(width - 1, int((at_s - self.begin_s) / self.length_s * width))

    def middle_s(self, column: int, width: int) -> float:
        return self.begin_s + (column + 0.5) / width * self.length_s


class Curves:
    """One run. `sizes_s` are the latencies that the sizes of its spreads stand for."""

    def __init__(self, course: Course, sizes_s: Floats) -> None:
        self.course = course
        self._sizes_s = sizes_s
        self._num = len(course.longest_s)
        names = [name for name in course.sums if name != "preemptions"]
        sums = np.array([course.sums[name] for name in names]).reshape(len(names), -1)
        self._sums = dict(zip(names, _running(self._filled(sums, names.index("steps"))), strict=True))
        self._preemptions = _running(np.array([course.sums["preemptions"]]))[0]
        self._spreads = {"ttft": self._dense(course.ttft), "itl": self._dense(course.itl)}

    def _filled(self, sums: Floats, steps: int) -> Floats:
        """A bin in which no step ended but one was under way is like the bin in which that step ended."""
        stepped = np.flatnonzero(sums[steps])
        if not len(stepped):
            return sums
        bins = np.arange(self._num)
        after = np.searchsorted(stepped, bins)
        ends = stepped[np.minimum(after, len(stepped) - 1)]
        longest_s = np.array(self.course.longest_s)
        inside = (after < len(stepped)) & ((ends - bins) * self.course.bin_s <= longest_s[ends])
        return np.where(inside, sums[:, ends], 0.0)

    def _dense(self, spread: Spread) -> Ints:
        """How many latencies of each size had been seen before each bin."""
        counts = np.zeros((self._num + 1, len(self._sizes_s)), dtype=np.int32)
        np.add.at(
            counts,
            (np.array(spread.bins, dtype=np.int64) + 1, np.array(spread.sizes, dtype=np.int64)),
            np.array(spread.counts, dtype=np.int64),
        )
        return counts.cumsum(axis=0, out=counts)

    def _edges(self, span: Span, width: int) -> tuple[Ints, Ints]:
        """First and last (exclusive) bin of each column; neighbours share one where bins are wider than columns."""
        edges = (span.begin_s + np.arange(width + 1) / width * span.length_s) / self.course.bin_s
        first = np.clip(np.floor(edges[:-1] + 1e-9).astype(np.int64), 0, self._num)
        last = np.clip(np.maximum(np.ceil(edges[1:] - 1e-9).astype(np.int64), first + 1), 0, self._num)
        return first, np.maximum(first, last)

    def mean(self, name: str, span: Span, width: int) -> Floats:
        """A sum's mean over the steps of each column; NaN where none ran."""
        first, last = self._edges(span, width)
        sums, steps = (self._sums[key][last] - self._sums[key][first] for key in (name, "steps"))
        return _ratio(sums, steps)

    def per_minute(self, span: Span, width: int) -> Floats:
        """Preemptions a minute; NaN where the run is over."""
        first, last = self._edges(span, width)
        counts = self._preemptions[last] - self._preemptions[first]
        seconds: Floats = np.asarray((last - first) * self.course.bin_s, dtype=np.float64)
        return _ratio(60 * counts, seconds)

    def quantile(self, kind: str, share: float, span: Span, width: int) -> Floats:
        """A latency's quantile in seconds; NaN of no samples."""
        first, last = self._edges(span, width)
        counts = (self._spreads[kind][last] - self._spreads[kind][first]).cumsum(axis=1)
        totals = counts[:, -1]
        places = (counts >= np.ceil(np.maximum(totals, 1) * share)[:, None]).argmax(axis=1)
        found: Floats = np.where(totals > 0, self._sizes_s[places], np.nan)
        return found


def _ratio(parts: Floats, wholes: Floats) -> Floats:
    """NaN of nothing."""
    found: Floats = np.divide(parts, wholes, out=np.full(len(parts), np.nan), where=wholes > 0)
    return found


def _running(sums: Floats) -> Floats:
    """Sums before each bin, with a last entry behind all of them."""
    before: Floats = np.c_[np.zeros(len(sums)), sums.cumsum(axis=1)]
    return before


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: what it is called, its unit, and which values it shows of a run."""

    name: str
    unit: str
    source: str
    scale: float = 1.0
    least: float = 0.0

    def values(self, curves: Curves, span: Span, width: int) -> Floats:
        match self.source:
            case "ttft" | "itl":
                return curves.quantile(self.source, 0.95, span, width) * self.scale
            case "preemptions":
                return curves.per_minute(span, width)
            case "tokens":
                return np.array(sum(curves.mean(name, span, width) for name in TOKENS))
        return curves.mean(self.source, span, width) * self.scale


TOKENS = ("decode", "prefill", "draft")
BATCH = Chart("Batch", "tok", "tokens")
CHARTS = (
    Chart("TTFT p95", "ms", "ttft", 1000.0),
    Chart("ITL p95", "ms", "itl", 1000.0),
    Chart("KV in use", "%", "usage", 100.0, least=100.0),
    Chart("Running", "", "running"),
    Chart("Waiting", "", "waiting"),
    Chart("Preempt", "/min", "preemptions"),
)
"""`least` is the least that the full height stands for."""
