"""What clients felt in a window: the scheduler's latencies and the time outside it. No drawing here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from schedtop.console.past.latency import BUCKET_S
from schedtop.console.past.past import MAX_RECORDS, Moment, Past
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.contract.latencies.front_end import FrontEnd, front_end_of, num_rows
from schedtop.engine.contract.latencies.slo import served
from schedtop.engine.contract.telemetry import Arrival, StepRecord


def client_latencies(history: Past, moment: Moment, window_s: float) -> dict[str, Cohort]:
    """TTFT and E2E of the window that ends at `moment`, by kind, those still open included.

    Empty where no front end is simulated and no request came with its time before the scheduler. Of a long window,
    the last `MAX_RECORDS` records count.
    """
    waits = Waits(history, moment)
    first_s = (int(moment.clock_s // BUCKET_S) - max(1, round(window_s / BUCKET_S)) + 1) * BUCKET_S
    found: dict[str, list[float]] = {"ttft": [], "e2e": []}
    for record in history.between_times(first_s, moment.seq, MAX_RECORDS):
        for kind, client_s in waits.latencies(record):
            found[kind].append(client_s)
    if not waits.known:
        return {}
    now_s, lives = moment.clock_s, moment.state.requests.values()
    open_s = [(item, now_s - item.arrival.arrival_s + waits.least_s(item.arrival)) for item in lives]
    return {
        "ttft": cohort(found["ttft"], [age_s for item, age_s in open_s if item.first_token_s is None]),
        "e2e": cohort(found["e2e"], [age_s for _, age_s in open_s]),
    }


class Waits:
    """Each client's time outside the scheduler: as its request told it, or by the simulated front end."""

    def __init__(self, history: Past, moment: Moment) -> None:
        self._history = history
        self._told: dict[int, Arrival | None] = {n: item.arrival for n, item in moment.state.requests.items()}
        header = history.header
        self._front_end: FrontEnd | None = None if header is None else front_end_of(header.settings)

    @property
    def known(self) -> bool:
        """Whether there is any such time."""
        return self._front_end is not None or any(
            arrival is not None and arrival.client_wait_s is not None for arrival in self._told.values()
        )

    def latencies(self, record: StepRecord) -> Iterator[tuple[str, float]]:
        """The latencies that end with a record, by kind, as clients feel them."""
        for arrival in record.arrivals:
            self._told[arrival.number] = arrival
        for number, ttft_s in record.ttft_s:
            if (wait_s := self._wait_s(number, record)) is not None:
                yield "ttft", ttft_s + wait_s
        for finish in record.finishes:
            wait_s = self._wait_s(finish.number, record)
            if served(finish) and finish.e2e_s is not None and wait_s is not None:
                yield "e2e", finish.e2e_s + wait_s

    def _wait_s(self, number: int, record: StepRecord) -> float | None:
        if number not in self._told:
            self._told[number] = self._history.finished.get(number, (None,))[0]
        arrival = self._told[number]
        if arrival is not None and arrival.client_wait_s is None and self._front_end is not None:
            return self._front_end.wait_s(num_rows(record), arrival.prompt_tokens)
        return None if arrival is None else arrival.client_wait_s

    def least_s(self, arrival: Arrival) -> float:
        """What a latency that is still open has at least on top; NaN where that is not known."""
        if arrival.client_wait_s is not None:
            return arrival.client_wait_s
        return np.nan if self._front_end is None else self._front_end.fixed_s
