"""Requests by class (priority or LoRA adapter): arrivals, requests served, requests waiting and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schedtop.engine.contract.latencies.lives import Lives, Moves
from schedtop.engine.contract.latencies.percentiles import Percentiles
from schedtop.engine.contract.telemetry import Arrival, Snapshot

Key = int | str


@dataclass(slots=True)
class _Class:
    arrived: int = 0
    admitted: int = 0
    ttft_s: Percentiles = field(default_factory=Percentiles)


class Classes:
    """Counts per class, which `key` derives from an arrival (None: no class); takes records in order."""

    def __init__(self, key: Callable[[Arrival], Key | None] = lambda arrival: arrival.priority) -> None:
        self._key = key
        self._of: dict[Key, _Class] = {}

    def begin(self, snapshot: Snapshot) -> None:
        """Count requests in flight before the first record as arrived and admitted earlier."""
        for item in snapshot.requests:
            self._open(self._key(item.arrival))

    def _open(self, key: Key | None) -> _Class | None:
        return None if key is None else self._of.setdefault(key, _Class())

    def add(self, record: Moves, lives: Lives) -> None:
        """Take in a record; call this before `lives` takes it."""
        keys = {arrival.number: self._key(arrival) for arrival in record.arrivals}
        for key in keys.values():
            if (found := self._open(key)) is not None:
                found.arrived += 1
        if not self._of:
            return

        def of(number: int) -> _Class | None:
            life = lives.of.get(number)
            key = keys.get(number) if life is None else self._key(life.arrival)
            return None if key is None else self._of.get(key)

        for admission in record.admissions:
            if not admission.resumed and (found := of(admission.number)) is not None:
                found.admitted += 1
        for number, ttft_s in record.ttft_s:
            if (found := of(number)) is not None:
                found.ttft_s.add(ttft_s)

    def document(self, lives: Lives, now_s: float) -> dict[str, Any]:
        """Per class, lowest (most urgent priority) first: counts, the longest wait, the cohort's TTFT."""
        plain = {}
        for key in sorted(self._of, key=lambda key: (isinstance(key, str), key)):
            found = self._of[key]
            mine = [life for life in lives.of.values() if self._key(life.arrival) == key]
            waits_s = [now_s - life.arrival.arrival_s for life in mine if life.waiting and not life.admitted]
            unended = [now_s - life.arrival.arrival_s for life in mine if life.first_s is None]
            waiting = sum(life.waiting for life in mine)
            plain[str(key)] = {
                "arrived": found.arrived,
                "admitted": found.admitted,
                "running": len(mine) - waiting,
                "waiting": waiting,
                "oldest_wait_s": max(waits_s, default=None),
                "ttft_s": found.ttft_s.cohort(unended).document(),
            }
        return plain
