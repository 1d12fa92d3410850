"""How many samples a quantile must rest on, and how many seconds a rate: one rule for all figures. No drawing."""

from __future__ import annotations

import math

from schedtop.engine.contract.latencies.cohort import Bounded, Cohort
from schedtop.engine.contract.latencies.samples import Samples

_LEAST = 10

LEAST_S = 10.0
"""Seconds that a rate must rest on."""


def needed(share: float) -> int:
    """Samples from which on a quantile is a figure: ten, one of them beyond it. p50: 10, p95: 20, p99: 100."""
    return max(_LEAST, math.ceil(round(1 / (1 - share), 6)))


def quantile(samples: Samples, share: float) -> float | None:
    """The quantile in seconds; None of too few samples."""
    return samples.quantile(share) if samples.n >= needed(share) else None


def bounded(members: Cohort, share: float) -> Bounded | None:
    """The same of a cohort, those still open included."""
    return members.quantile(share) if members.n + members.num_open >= needed(share) else None


LACK = "–"
"""What stands in the place of a quantile of too few samples."""
