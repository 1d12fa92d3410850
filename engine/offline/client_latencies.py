"""What a client feels: the scheduler's latency and the time outside it, simulated or told by the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schedtop.engine.contract.latencies.cohort import Cohort
from schedtop.engine.contract.latencies.front_end import FrontEnd, num_rows
from schedtop.engine.contract.latencies.percentiles import Percentiles
from schedtop.engine.contract.latencies.slo import served
from schedtop.engine.contract.telemetry import StepRecord

if TYPE_CHECKING:
    from schedtop.engine.step.stretch import Stretch


class ClientLatencies:
    """Takes in records in order; knows a request's time outside the scheduler by `front_end` or by its arrival."""

    def __init__(self, front_end: FrontEnd | None) -> None:
        self._front_end = front_end
        self._waits_s: dict[int, float] = {}
        self._ttft_s, self._e2e_s = Percentiles(), Percentiles()

    def add(self, record: StepRecord | Stretch) -> None:
        """Take in the next record, or many steps at once."""
        if isinstance(record, StepRecord):
            for arrival in record.arrivals:
                if arrival.client_wait_s is not None:
                    self._waits_s[arrival.number] = arrival.client_wait_s
        if not (record.ttft_s or record.finishes) or not (self._front_end or self._waits_s):
            return
        simulated_s = self._simulated_s(record)
        for number, ttft_s in record.ttft_s:
            self._ttft_s.add(ttft_s + self._waits_s.get(number, simulated_s))
        for finish in record.finishes:
            wait_s = self._waits_s.pop(finish.number, simulated_s)
            if served(finish) and finish.e2e_s is not None:
                self._e2e_s.add(finish.e2e_s + wait_s)

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

    def _simulated_s(self, record: StepRecord | Stretch) -> float:
        """What is not a number is not a member of a cohort: where nothing is simulated, only a told wait counts."""
        if self._front_end is None:
            return float("nan")
        rows = num_rows(record) if isinstance(record, StepRecord) else record.columns.shape[1]
        return self._front_end.wait_s(rows)
