"""Latency samples with exact quantiles: each distinct value once, and how often it occurred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import StepRecord

KINDS = ("ttft", "itl")

_UNIT_S = 1e-6


@dataclass(frozen=True, slots=True)
class Samples:
    """Durations in whole microseconds: sorted distinct `values`, and how often each occurred."""

    values: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """The quantile in seconds, interpolated linearly between neighbours; None of no samples."""
        n = self.n
        if not n:
            return None
        ends = np.cumsum(self.counts)
        position = share * (n - 1)
        below = int(position)
        low = self.values[np.searchsorted(ends, below, side="right")]
        high = self.values[np.searchsorted(ends, min(below + 1, n - 1), side="right")]
        return float(low + (high - low) * (position - below)) * _UNIT_S

    def within(self, limit_s: float) -> int:
        """How many are at most `limit_s`."""
        return int(self.counts[: np.searchsorted(self.values, round(limit_s / _UNIT_S), side="right")].sum())


EMPTY = Samples(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def collect(seconds: npt.NDArray[np.floating]) -> Samples:
    """Samples of durations in seconds; NaN means none."""
    # The requests of one step wait equally long: few of many are different, and only they need be converted.
    known, counts = np.unique(seconds, return_counts=True)
    if len(known) and np.isnan(known[-1]):  # the last in order
        known, counts = known[:-1], counts[:-1]
    return _summed(np.rint(known.astype(np.float64) / _UNIT_S).astype(np.int64), counts)


def merge(parts: Sequence[Samples]) -> Samples:
    """All samples of `parts` together."""
    parts = [part for part in parts if len(part.values)]
    if not parts:
        return EMPTY
    if len(parts) == 1:
        return parts[0]
    return _summed(np.concatenate([part.values for part in parts]), np.concatenate([part.counts for part in parts]))


def _summed(values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Samples:
    """Each value once, in order."""
    distinct, places = np.unique(values, return_inverse=True)
    return Samples(distinct, np.bincount(places, weights=counts, minlength=len(distinct)).astype(np.int64))


def of_records(records: Iterable[StepRecord]) -> dict[str, Samples]:
    """TTFT and ITL samples of some records."""
    records = list(records)
    itl = np.frombuffer(b"".join([record.itl_s for record in records]), dtype=np.float32)
    ttft = [seconds for record in records if record.ttft_s for _, seconds in record.ttft_s]
    return {"ttft": collect(np.array(ttft, dtype=np.float64)), "itl": collect(itl)}
