"""Requests by priority class: who came, who was served, who waits and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schedtop.engine.contract.latencies.lives import Lives
from schedtop.engine.contract.latencies.percentiles import Percentiles
from schedtop.engine.contract.telemetry import Snapshot, StepRecord


@dataclass(slots=True)
class _Class:
    arrived: int = 0
    admitted: int = 0
    ttft_s: Percentiles = field(default_factory=Percentiles)


class Classes:
    """Counts by priority, of records in order."""

    def __init__(self) -> None:
        self._of: dict[int, _Class] = {}

    def begin(self, snapshot: Snapshot) -> None:
        """Those in flight before the first record have arrived, and been admitted, before."""
        for item in snapshot.requests:
            self._of.setdefault(item.arrival.priority, _Class())

    def add(self, record: StepRecord, lives: Lives) -> None:
        """Take in a record before `lives` does."""
        priorities = {arrival.number: arrival.priority for arrival in record.arrivals}
        for priority in priorities.values():
            self._of.setdefault(priority, _Class()).arrived += 1

        def of(number: int) -> _Class | None:
            life = lives.of.get(number)
            priority = priorities.get(number) if life is None else life.arrival.priority
            return None if priority is None else self._of.get(priority)

        for admission in record.admissions:
            if not admission.resumed and (found := of(admission.number)) is not None:
                found.admitted += 1
        for number, ttft_s in record.ttft_s:
            if (found := of(number)) is not None:
                found.ttft_s.add(ttft_s)

    def document(self, lives: Lives, now_s: float) -> dict[str, Any]:
        """By priority, the most urgent (lowest) first: counts, the oldest wait, and the TTFT of the class's cohort."""
        plain = {}
        for priority, found in sorted(self._of.items()):
            mine = [life for life in lives.of.values() if life.arrival.priority == priority]
            waits_s = [now_s - life.arrival.arrival_s for life in mine if life.waiting and not life.admitted]
            unended = [now_s - life.arrival.arrival_s for life in mine if life.first_s is None]
            waiting = sum(life.waiting for life in mine)
            plain[str(priority)] = {
                "arrived": found.arrived,
                "admitted": found.admitted,
                "running": len(mine) - waiting,
                "waiting": waiting,
                "oldest_wait_s": max(waits_s, default=None),
                "ttft_s": found.ttft_s.cohort(unended).document(),
            }
        return plain
