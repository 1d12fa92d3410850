"""Latencies that are still open at a moment: waits for a first token, and gaps that no token has ended. No drawing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from schedtop.console.past.past import Moment, Past
from schedtop.console.past.state import LiveState
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.contract.latencies.samples import KINDS, Samples, merge

Floats = npt.NDArray[np.float64]


def unended(state: LiveState) -> Mapping[str, Floats]:
    """What the open latencies have come to, seconds, by kind; a gap that has not begun is none yet."""
    now_s, delivered_s = state.clock_s, state.delivered_s
    waits = [now_s - item.arrival.arrival_s for item in state.requests.values() if item.first_token_s is None]
    gaps = [now_s - last_s for last_s in delivered_s.values() if last_s < now_s]
    return {"ttft": np.maximum(np.array(waits, dtype=np.float64), 0.0), "itl": np.array(gaps, dtype=np.float64)}


def cohorts(history: Past, moment: Moment, window_s: float) -> Mapping[str, Cohort]:
    """Latencies of the window that ends at `moment`, by kind: of those who got theirs, and of those who wait."""
    open_s = unended(moment.state)
    return {
        kind: cohort_of(merge(history.latency_columns(kind, moment, window_s, 1)), open_s[kind]) for kind in KINDS
    }


def cohort_of(samples: Samples, open_s: Floats) -> Cohort:
    """Samples of a window, and those still open at its end, in seconds."""
    return cohort(samples.values * 1e-6, open_s, samples.counts)
