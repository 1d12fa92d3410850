"""Latencies that are still open at a moment: waits for a first token, and gaps that no token has ended. No drawing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from schedtop.console.past.latency import Samples
from schedtop.console.past.past import Moment, Past
from schedtop.console.past.state import EMITTED, NUMBER
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.contract.telemetry import row_matrix

Floats = npt.NDArray[np.float64]

_MOST_RECORDS = 512
"""How far back a newest delivery is looked for; a gap that began earlier is reported as this long at least."""


def unended(history: Past, moment: Moment) -> Mapping[str, Floats]:
    """What the open latencies have come to at `moment`, seconds, by kind; a gap that has not begun is none yet."""
    state, now_s = moment.state, moment.clock_s
    waits = [now_s - item.arrival.arrival_s for item in state.requests.values() if item.first_token_s is None]
    served = {number for number, item in state.requests.items() if item.first_token_s is not None}
    gaps_s = [now_s - last_s for last_s in _deliveries(history, moment, served) if last_s < now_s]
    return {"ttft": np.maximum(np.array(waits, dtype=np.float64), 0.0), "itl": np.array(gaps_s, dtype=np.float64)}


def _deliveries(history: Past, moment: Moment, missing: set[int]) -> list[float]:
    """When each of these requests got its newest output, or a moment before which it must have been."""
    found: list[float] = []
    index = history.index(moment.seq)
    oldest_s = moment.clock_s
    for place in range(-1 if index is None else index, -1, -1):
        if not missing or index is None or index - place >= _MOST_RECORDS:
            break
        record = history.records[place]
        oldest_s = record.start_s
        if record.rows:
            rows = row_matrix(record)
            here = missing.intersection(rows[NUMBER][rows[EMITTED] > 0].tolist())
            found += [record.end_s] * len(here)
            missing -= here
    return found + [oldest_s] * len(missing)


def cohort_of(samples: Samples, open_s: Floats) -> Cohort:
    """Samples of a window, and those still open at its end, in seconds."""
    return cohort(samples.values * 1e-6, open_s, samples.counts)
