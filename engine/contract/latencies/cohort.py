"""Known latencies and open ones as one cohort: the only place that sums them up.

A percentile over ended requests alone flatters a stalled engine: the survivors look fast while the rest wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_NONE: Floats = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A figure: at least `least`, at most `most`, which differ only while members are open.

    `is_bound`: it falls on an open member, or behind the smallest open one in order.
    """

    least: float
    most: float
    is_bound: bool


@dataclass(frozen=True)
class Cohort:
    """Sorted distinct `values`; how many members are known to have each, and how many have come to it so far."""

    values: Floats
    known: Counts
    open: Counts

    @cached_property
    def n(self) -> int:
        """Members whose figure is known."""
        return int(self.known.sum())

    @cached_property
    def num_open(self) -> int:
        return int(self.open.sum())

    @cached_property
    def _ends(self) -> Counts:
        """Members up to each value."""
        return np.cumsum(self.known + self.open)

    def quantile(self, share: float) -> Bounded | None:
        """Interpolated linearly between neighbours, an open member at what it has come to; None without members."""
        num, num_open = self.n + self.num_open, self.num_open
        if not num:
            return None
        place = share * (num - 1)
        least = _at(self.values, self._ends, place)
        if not num_open:
            return Bounded(least, least, False)
        smallest = int(self.open.nonzero()[0][0])
        # Among equals, known ones come first: they cannot grow.
        surely = int(self.known[: smallest + 1].sum() + self.open[:smallest].sum())
        beyond = place > num - num_open - 1
        most = float("inf") if beyond else _at(self.values, np.cumsum(self.known), place)
        return Bounded(least, most, place > surely - 1)

    def missing(self, num: int) -> Cohort:
        """With `num` more members of which nothing is known."""
        return self if num <= 0 else cohort(self.values, [*self.open_values(), *[0.0] * num], self.known)

    @property
    def mean(self) -> Bounded | None:
        members = self.known + self.open
        num, is_open = int(members.sum()), bool(self.num_open)
        if not num:
            return None
        mean = float(self.values @ members) / num
        return Bounded(mean, float("inf") if is_open else mean, is_open)

    def judged(self, bound: float) -> tuple[int, int]:
        """Members known to be within `bound`, and past it; one open within it is neither."""
        end = int(np.searchsorted(self.values, bound, side="right"))
        return int(self.known[:end].sum()), int(self.known[end:].sum() + self.open[end:].sum())

    def share_within(self, bound: float) -> float | None:
        """The share within the SLO; None while no member is judged."""
        within, past = self.judged(bound)
        return within / (within + past) if within + past else None

    def open_values(self) -> Floats:
        """What each open member has reached so far."""
        return np.repeat(self.values, self.open)

    def document(self) -> dict[str, Any]:
        """Plain JSON values: `mean` and percentiles, `n` known, `open`; `lower_bound` names those that are bounds.

        `at_most` says of each bound what it can become; None is anything.
        """
        found = {"mean": self.mean, **{name: self.quantile(share) for name, share in SHARES.items()}}
        return {
            **{name: None if figure is None else figure.least for name, figure in found.items()},
            "n": self.n,
            "open": self.num_open,
            "at_most": {
                name: None if figure.most == float("inf") else figure.most
                for name, figure in found.items()
                if figure is not None and figure.is_bound
            },
            "lower_bound": [name for name, figure in found.items() if figure is not None and figure.is_bound],
        }


def cohort(known: npt.ArrayLike, unended: npt.ArrayLike = (), counts: npt.ArrayLike | None = None) -> Cohort:
    """The cohort of these values in any order: `known` ones (each `counts` times, else once), and open ones.

    NaN is not a member.
    """
    values, times = np.asarray(known, dtype=np.float64).ravel(), None
    if counts is not None:
        times = np.asarray(counts, dtype=np.int64).ravel()
    ended, num = _summed(values, times)
    waits, num_waits = _summed(np.asarray(unended, dtype=np.float64).ravel(), None)
    if not len(waits):
        return Cohort(ended, num, np.zeros(len(ended), dtype=np.int64))
    all_values = np.union1d(ended, waits)
    parts: list[Counts] = [np.zeros(len(all_values), dtype=np.int64) for _ in range(2)]
    parts[0][np.searchsorted(all_values, ended)] = num
    parts[1][np.searchsorted(all_values, waits)] = num_waits
    return Cohort(all_values, *parts)


def together(parts: Sequence[Cohort]) -> Cohort:
    """The members of all of them as one cohort."""
    if not parts:
        return cohort(_NONE)
    values, known, still = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "known", "open")
    )
    return cohort(values, np.repeat(values, still), known)


def _summed(values: Floats, counts: Counts | None) -> tuple[Floats, Counts]:
    """Each value once, in order, and how often it occurs."""
    there = ~np.isnan(values)
    if counts is None:
        distinct, occurs = np.unique(values[there], return_counts=True)
        return distinct, occurs.astype(np.int64)
    there &= counts > 0
    if there.all() and (values[1:] > values[:-1]).all():  # as a window's samples are, thousands of them
        return values, counts
    distinct, places = np.unique(values[there], return_inverse=True)
    sums = np.bincount(places, weights=counts[there], minlength=len(distinct))
    return distinct, sums.astype(np.int64)


def _at(values: Floats, ends: Counts, place: float) -> float:
    """The value at a place in order, between two members where it is not a whole number."""
    last = int(ends[-1]) - 1
    below = min(int(place), last)
    low = float(values[np.searchsorted(ends, below, side="right")])
    high = float(values[np.searchsorted(ends, min(below + 1, last), side="right")])
    return low + (high - low) * (place - below)
