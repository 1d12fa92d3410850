"""What a client feels: the scheduler's latency plus the time outside it, simulated or reported by the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schedtop.engine.contract.latencies.cohort import Cohort
from schedtop.engine.contract.latencies.front_end import FrontEnd, num_rows
from schedtop.engine.contract.latencies.percentiles import Percentiles
from schedtop.engine.contract.latencies.slo import served
from schedtop.engine.contract.telemetry import Arrival, Snapshot, StepRecord

if TYPE_CHECKING:
    from schedtop.engine.step.stretch.stretch import Requests


class ClientLatencies:
    """Takes in records in order; a request's time outside the scheduler comes from `front_end` or from its arrival."""

    def __init__(self, front_end: FrontEnd | None) -> None:
        self._front_end = front_end
        self._arrivals: dict[int, Arrival] = {}
        self._ttft_s, self._e2e_s = Percentiles(), Percentiles()

    def begin(self, snapshot: Snapshot) -> None:
        """Requests in flight before the first record."""
        for item in snapshot.requests:
            self._note(item.arrival)

    def _note(self, arrival: Arrival) -> None:
        if self._front_end is not None or arrival.client_wait_s is not None:
            self._arrivals[arrival.number] = arrival

    def add(self, record: StepRecord | Requests) -> None:
        """Take in the next record."""
        for arrival in record.arrivals:
            self._note(arrival)
        for refusal in record.refusals:
            self._arrivals.pop(refusal.number, None)
        if not self._arrivals:
            return
        for number, ttft_s in record.ttft_s:
            if (known := self._arrivals.get(number)) is not None:
                self._ttft_s.add(ttft_s + self._wait_s(known, record))
        for finish in record.finishes:
            known = self._arrivals.pop(finish.number, None)
            if known is not None and served(finish) and finish.e2e_s is not None:
                self._e2e_s.add(finish.e2e_s + self._wait_s(known, record))

    def document(self, cohorts: Mapping[str, Cohort]) -> dict[str, Any]:
        """`client_ttft_s` and `client_e2e_s`, where anything is known; `cohorts` are the scheduler's.

        An open latency has at least the front end's fixed time to come.
        """
        found = {"ttft_s": self._ttft_s, "e2e_s": self._e2e_s}
        if self._front_end is None and not any(values.count for values in found.values()):
            return {}
        fixed_s = self._front_end.fixed_s if self._front_end else 0.0
        return {
            f"client_{name}": values.cohort(cohorts[name].open_values() + fixed_s).document()
            for name, values in found.items()
        }

    def _wait_s(self, arrival: Arrival, record: StepRecord | Requests) -> float:
        """Time outside the scheduler of a known request, for a token of this record's step."""
        if arrival.client_wait_s is not None:
            return arrival.client_wait_s
        assert self._front_end is not None
        rows = num_rows(record) if isinstance(record, StepRecord) else record.num_rows
        return self._front_end.wait_s(rows, arrival.prompt_tokens)
