"""Latencies that have not ended: waits for a first token, and gaps that no token has closed yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from schedtop.engine.scheduler.books.state import SchedulerState

SecondsArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OpenLatencies:
    """Of every live request one figure, float64 seconds: since its arrival (`ttft`) while it has no token, since its
    newest token (`itl`) once it has, be it running or preempted."""

    ttft: SecondsArray
    itl: SecondsArray


def look(state: SchedulerState, now_s: float) -> OpenLatencies:
    """The open latencies at `now_s`. Walks the queue: not for every step."""
    table = state.table
    last_s = table.last_s[: table.size]
    arrivals_s = [table.requests[row].arrival_s for row in np.flatnonzero(np.isnan(last_s)).tolist()]
    tokens_s = last_s[~np.isnan(last_s)].tolist()
    for request in state.waiting:
        if request.last_token_s is None:
            arrivals_s.append(request.arrival_s)
        else:
            tokens_s.append(request.last_token_s)
    return OpenLatencies(
        now_s - np.array(arrivals_s, dtype=np.float64), now_s - np.array(tokens_s, dtype=np.float64)
    )
