"""Latencies as clients saw them in a window: the scheduler's and the time outside it. No drawing here."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import chain

import numpy as np
from schedtop.console.past.latency import BUCKET_S, LatencyBuckets
from schedtop.console.past.past import MAX_RECORDS, Moment, Past
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.contract.latencies.front_end import FrontEnd, front_end_of, num_rows
from schedtop.engine.contract.latencies.slo import served
from schedtop.engine.contract.telemetry import Arrival, StepRecord

KINDS = ("ttft", "e2e")
Felt = tuple["array[float]", "array[float]"]
"""Latencies of `KINDS` that ended in a second, as clients saw them."""


def client_latencies(history: Past, moment: Moment, window_s: float) -> dict[str, Cohort]:
    """TTFT and E2E of the window that ends at `moment`, by kind, open ones included.

    Empty where no front end is simulated and no request reports its time before the scheduler. Only the last
    `MAX_RECORDS` records of a long window count.
    """
    return KeptClientLatencies().window(history, moment, window_s)


class KeptClientLatencies:
    """`client_latencies` for repeated use: each record is read once."""

    def __init__(self) -> None:
        self._kept_of: LatencyBuckets | None = None
        self._first = 0
        self._read = -1  # the newest record's seq
        self._felt: dict[int, Felt] = {}
        self._reported = False  # a request's time before the scheduler, so far

    def window(self, history: Past, moment: Moment, window_s: float) -> dict[str, Cohort]:
        last = int(moment.clock_s // BUCKET_S)
        first = last - max(1, round(window_s / BUCKET_S)) + 1
        waits = Waits(history, moment)
        goes_on = self._kept_of is history.latency and first >= self._first and moment.seq >= self._read
        records = list(self._unread(history, moment, first, last))
        self._reported |= waits.known or any(
            arrival.client_wait_s is not None for record in records for arrival in record.arrivals
        )
        # Whoever ended since the last time was live then, or arrived since.
        for record in records if self._reported or not goes_on else ():
            for kind, client_s in waits.latencies(record):
                second = self._felt.setdefault(int(record.end_s // BUCKET_S), (array("d"), array("d")))
                second[KINDS.index(kind)].append(client_s)
        window = [felt for second, felt in self._felt.items() if second >= first]
        if not waits.known and not any(map(len, chain(*window))):
            return {}
        now_s, lives = moment.clock_s, moment.state.requests.values()
        open_s = [(item, now_s - item.arrival.arrival_s + waits.least_s(item.arrival)) for item in lives]
        ttft, e2e = (np.frombuffer(b"".join(felt)) for felt in zip(*window, strict=True)) if window else ((), ())
        return {
            "ttft": cohort(ttft, [age_s for item, age_s in open_s if item.first_token_s is None]),
            "e2e": cohort(e2e, [age_s for _, age_s in open_s]),
        }

    def _unread(self, history: Past, moment: Moment, first: int, last: int) -> Iterator[StepRecord]:
        """Forget what is not of this session, before second `first` or after the moment; the records to read then."""
        read, whole = self._read, last + 1
        if self._kept_of is not history.latency or first < self._first:
            whole = first
        elif moment.seq < read:
            whole = last  # the seconds before that of the moment are
        self._kept_of, self._first, self._read = history.latency, first, moment.seq
        self._felt = {second: felt for second, felt in self._felt.items() if first <= second < whole}
        if whole > last:
            return history.between(max(read, moment.seq - MAX_RECORDS) + 1, moment.seq)
        return history.between_times(math.nextafter(whole * BUCKET_S, -math.inf), moment.seq, MAX_RECORDS)


class Waits:
    """Each client's time outside the scheduler: as its request reports it, or by the simulated front end."""

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
        """The latencies that end with a record, by kind, as clients see them."""
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
        """The least that the time outside the scheduler adds to an open latency; NaN where that is unknown."""
        if arrival.client_wait_s is not None:
            return arrival.client_wait_s
        return np.nan if self._front_end is None else self._front_end.fixed_s
