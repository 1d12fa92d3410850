"""Forecasts for an attached engine: its step times are fitted to the steps seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from schedtop.console.cli.forecast_process import ForecastError, ForecastProcess
from schedtop.console.feed import Link
from schedtop.engine.contract.commands import Incoming
from schedtop.engine.contract.telemetry import Arrival, Header, Outgoing, Snapshot, StepRecord
from schedtop.engine.sim.fit import FitError, fit, measure
from schedtop.engine.sim.spec import PREFIX
from schedtop.engine.whatif.forecast import Forecast

LEAST_STEPS = 200
MOST_STEPS = 1_000
"""Most recent steps kept: how the server behaves now, not an hour ago."""
MOST_ENDS = 500


class SeenSteps:
    """The newest steps of an engine, and the lengths of its answers."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=MOST_STEPS)
        self._ends: dict[int, int] = {}
        self._started_at = 0.0

    def through(self, link: Link) -> Link:
        """`link`, observed."""
        return _Watched(link, self)

    def begin(self, header: Header) -> None:
        """Steps of another session say nothing about this one."""
        if header.started_at != self._started_at:
            self._started_at = header.started_at
            self._records.clear()
            self._ends.clear()

    def take(self, record: StepRecord) -> None:
        self._records.append(record)
        for finish in record.finishes:
            self._ends[finish.number] = finish.output_tokens
        while len(self._ends) > MOST_ENDS:
            del self._ends[next(iter(self._ends))]

    def records(self) -> list[StepRecord]:
        return list(self._records)

    def as_long(self, arrival: Arrival) -> Arrival:
        """With the outputs it got, where it has ended: clients often allow far more."""
        outputs = self._ends.get(arrival.number)
        return arrival if not outputs else msgspec.structs.replace(arrival, max_tokens=outputs)


class _Watched:
    def __init__(self, link: Link, seen: SeenSteps) -> None:
        self._link, self._seen = link, seen

    def receive(self, timeout_s: float) -> Outgoing | None:
        message = self._link.receive(timeout_s)
        if isinstance(message, Header):
            self._seen.begin(message)
        if isinstance(message, StepRecord):
            self._seen.take(message)
        return message

    def send(self, command: Incoming) -> None:
        self._link.send(command)

    def close(self) -> None:
        self._link.close()


class AttachedForecast:
    """Callable as the console asks. Raises `ForecastError`, whose text says what is missing."""

    def __init__(self, seen: SeenSteps) -> None:
        self._seen, self._process = seen, ForecastProcess()

    def __call__(
        self, header: Header, snapshot: Snapshot, staged: Mapping[str, Any], recent: Sequence[Arrival]
    ) -> Forecast:
        if header.device.startswith(PREFIX):
            return self._process(header, snapshot, staged, recent)
        records = self._seen.records()
        num_steps = sum(record.executed for record in records)
        if num_steps < LEAST_STEPS:
            raise ForecastError(f"n/a under {LEAST_STEPS} steps, of which {num_steps} were seen")
        try:
            fitted = fit(measure(records))
        except FitError as error:
            raise ForecastError(str(error)) from None
        known = [self._seen.as_long(arrival) for arrival in recent]
        found = self._process(header, snapshot, staged, known, fitted.cost)
        off = fitted.held_out
        note = f"steps priced by the last {num_steps:,}: off by {off.p50:.0%} at the median, {off.p95:.0%} at p95"
        return msgspec.structs.replace(found, note=note)

    def close(self) -> None:
        self._process.close()
