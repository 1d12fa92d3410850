"""Readings of one engine over the last seconds: rates, and percentiles of what was added to the histograms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from schedtop.engine.scrape.page import PageReading

KEPT_S = 3600.0
MAX_READINGS = 4000


class Bound(NamedTuple):
    """A percentile of a histogram: above `low_s`, at most `high_s` (infinite: past the last bound), of `num_values`.

    `low_s` None: in the first bucket, which begins anywhere.
    """

    low_s: float | None
    high_s: float
    num_values: int


class ReadingWindow:
    """The readings of one engine, oldest first. A counter that fell restarted: `restarts` counts that."""

    def __init__(self) -> None:
        self.readings: deque[tuple[float, PageReading]] = deque(maxlen=MAX_READINGS)
        self.restarts = 0

    def add(self, at_s: float, reading: PageReading) -> None:
        """Take in a reading."""
        if self.readings and _fell(self.readings[-1][1], reading):
            self.restarts += 1
            self.readings.clear()
        self.readings.append((at_s, reading))
        while self.readings[0][0] < at_s - KEPT_S:
            self.readings.popleft()

    @property
    def newest(self) -> PageReading | None:
        return self.readings[-1][1] if self.readings else None

    def span(self, seconds: float) -> tuple[tuple[float, PageReading], tuple[float, PageReading]] | None:
        """The newest reading and the one `seconds` before it, or the oldest there is; None with fewer than two."""
        if len(self.readings) < 2:
            return None
        last = self.readings[-1]
        first = next(item for item in self.readings if item[0] >= last[0] - seconds)
        return None if first is last else (first, last)

    def added(self, counter: str, seconds: float) -> tuple[float, float] | None:
        """The increase of a counter, and over how many seconds; None if unknown."""
        if (span := self.span(seconds)) is None:
            return None
        (began_s, first), (ended_s, last) = span
        if counter not in first.counters or counter not in last.counters:
            return None
        return last.counters[counter] - first.counters[counter], ended_s - began_s

    def rate(self, counter: str, seconds: float) -> float | None:
        """Per second."""
        added = self.added(counter, seconds)
        return added[0] / added[1] if added is not None and added[1] > 0 else None

    def buckets(self, histogram: str, seconds: float) -> list[tuple[float, float]] | None:
        """The increase of each bucket (not cumulative), by upper bound; None if unknown."""
        if (span := self.span(seconds)) is None:
            return None
        (_, first), (_, last) = span
        now, before = last.histograms.get(histogram), dict(first.histograms.get(histogram, ()))
        if now is None or before.keys() != {bound for bound, _ in now}:
            return None
        added, below = [], 0.0
        for bound, count in now:
            total = count - before[bound]
            added.append((bound, max(0.0, total - below)))
            below = max(below, total)
        return added


def _fell(before: PageReading, now: PageReading) -> bool:
    return any(now.counters.get(name, value) < value for name, value in before.counters.items())


def merged(parts: Iterable[list[tuple[float, float]] | None]) -> list[tuple[float, float]] | None:
    """Buckets of several engines added up; None if one is not known or their bounds differ."""
    total: dict[float, float] = {}
    for part in parts:
        if part is None or (total and total.keys() != {bound for bound, _ in part}):
            return None
        for bound, count in part:
            total[bound] = total.get(bound, 0.0) + count
    return sorted(total.items()) if total else None


def percentile(buckets: list[tuple[float, float]] | None, share: float) -> Bound | None:
    """The bucket that contains the percentile; None without a value."""
    if buckets is None or not (count := sum(added for _, added in buckets)):
        return None
    below, low_s = 0.0, None
    for bound, added in buckets:
        below += added
        if below >= share * count:
            return Bound(low_s, bound, int(count))
        low_s = bound
    return Bound(low_s, math.inf, int(count))


def describe(bound: Bound | None) -> str:
    """A percentile as a console shows it: `≤10 ms`, `25–50 ms`, `>2.5 s`."""
    if bound is None:
        return "n/a"
    if bound.low_s is None:
        return f"≤{_time(bound.high_s)}"
    if math.isinf(bound.high_s):
        return f">{_time(bound.low_s)}"
    low, unit = _time(bound.low_s).split()
    high = _time(bound.high_s)
    return f"{low}–{high}" if high.endswith(f" {unit}") else f"{low} {unit}–{high}"


def _time(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
