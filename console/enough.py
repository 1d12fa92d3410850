"""How many samples a quantile must rest on, and how many seconds a rate: one rule for all figures. No drawing."""

from __future__ import annotations

import math

from schedtop.console.latency import Samples

_LEAST = 10
_BEYOND = 2

LEAST_S = 10.0
"""Seconds that a rate must rest on."""


def needed(share: float) -> int:
    """Samples from which on a quantile is a figure: ten, two of them beyond it. p50: 10, p95: 40, p99: 200."""
    return max(_LEAST, math.ceil(round(_BEYOND / (1 - share), 6)))


def quantile(samples: Samples, share: float) -> float | None:
    """The quantile in seconds; None of too few samples."""
    return samples.quantile(share) if samples.n >= needed(share) else None


def lack(share: float) -> str:
    """What stands in the place of a quantile of too few samples: `n<40`."""
    return f"n<{needed(share)}"
