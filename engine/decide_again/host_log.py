"""A recording of an engine with the host's memory behind its pool: copies end at times of their own, so time passes
here as it did there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from schedtop.engine.contract.telemetry import Arrival, Header, StepRecord
from schedtop.engine.decide_again.recorded_inputs import Driver, RecordedClock, request_of
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.host_store import HostLink, open_host_store
from schedtop.engine.step.engine import Engine

MOST_TURNS = 1000
"""Between two records, without a step."""


class CopyClock(RecordedClock):
    """Moves on by itself while an engine waits for a copy, up to `until_s`, when something came of which no record yet
    tells; a step ends when the recording says."""

    def __init__(self) -> None:
        super().__init__()
        self.until_s = 0.0
        self.num_in_vain = 0

    def skip_to(self, time_s: float) -> bool:
        """Raises `ValueError` if nothing recorded ever ends the wait."""
        before_s, self.clock_s = self.clock_s, max(self.clock_s, min(time_s, self.until_s))
        self.num_in_vain = self.num_in_vain + 1 if self.clock_s == before_s else 0
        if self.num_in_vain > MOST_TURNS:
            raise ValueError("a wait without end")
        return True


class Arrivals:
    """A source: requests arrive at their recorded times, as far as they are known."""

    def __init__(self) -> None:
        self.description: dict[str, Any] = {}
        self._due: deque[Arrival] = deque()

    def add(self, arrivals: Sequence[Arrival]) -> None:
        self._due.extend(arrivals)

    def take(self, clock_s: float, step: int) -> list[Request]:
        taken = []
        while self._due and self._due[0].arrival_s <= clock_s:
            taken.append(request_of(self._due.popleft()))
        return taken

    def next_arrival_s(self) -> float | None:
        return self._due[0].arrival_s if self._due else None

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        """They arrive as recorded."""


class HostDriver(Driver):
    """As `Driver`, with a host tier at the recorded link speed: its contents follow from the decisions."""

    clock: CopyClock

    def __init__(self, header: Header, path: str) -> None:
        super().__init__(header, path)
        self.clock, self.arrivals = CopyClock(), Arrivals()
        self._has_clients = False
        config = self.engine.scheduler.config
        tier = open_host_store(
            config, HostLink(*header.settings["host_link"]), self.clock.now_s, int(header.settings.get("seed") or 0)
        )
        self.engine = Engine(Scheduler(config, tier), self.worker, self.arrivals, self.clock, header, tier)

    @property
    def doubt(self) -> str:
        if not self._has_clients:
            return ""
        return "clients may have sent outputs again as prompts, of which no recording tells what the memory has"

    def _abort(self, number: int, at_s: float) -> None:
        """Time may have passed between the event and the record that reports it."""
        self.engine.abort(number)

    def play(self, record: StepRecord, following: Sequence[StepRecord]) -> StepRecord | None:
        engine, ran = self.engine, [each for each in following if each.executed]
        self.arrivals.add(record.arrivals)
        self._has_clients |= any(arrival.client_wait_s is not None for arrival in record.arrivals)
        self._outside(msgspec.structs.replace(record, arrivals=(), deferrals=()))
        self.clock.until_s, self.clock.end_s = record.start_s, record.end_s
        engine.paused = record.paused
        self._set_results(record, ran[0] if ran else None)
        if engine.paused and record.executed:
            engine.step_once()
        apart = bool(record.turns) and not engine.observer.has_events and not record.arrivals
        for _ in range(MOST_TURNS):
            if apart and self.clock.clock_s >= record.start_s:
                engine.set_apart()
            if (decided := engine.step()) is not None:
                return decided
        return None
