"""Requests of one parent, as vLLM creates them for `n`: how many there were, and when the last of them finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from schedtop.engine.contract.latencies.lives import Moves
from schedtop.engine.contract.telemetry import Arrival, Finish, Snapshot


@dataclass(slots=True)
class RequestFamily:
    """The children of a parent. `first_s`: its first arrival; `last_s`: the newest end of a child that had outputs."""

    first_s: float
    children: int = 0
    live: int = 0
    most_outputs: int = 0
    last_s: float | None = None


class Families:
    """Takes in records in order; `on_end` gets each family once none of its children is left."""

    def __init__(self, on_end: Callable[[RequestFamily], None]) -> None:
        self.open: dict[str, RequestFamily] = {}
        self._on_end = on_end
        self._children: dict[int, Arrival] = {}

    def begin(self, snapshot: Snapshot) -> None:
        """The requests in flight before the first record."""
        self._arrive(item.arrival for item in snapshot.requests)

    def add(self, record: Moves) -> None:
        """Take in the next record."""
        self._arrive(record.arrivals)
        for refusal in record.refusals:
            self._leave(refusal.number)
        for finish in record.finishes:
            self._leave(finish.number, finish)

    def _arrive(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.parent:
                family = self.open.setdefault(arrival.parent, RequestFamily(arrival.arrival_s))
                family.children += 1
                family.live += 1
                self._children[arrival.number] = arrival

    def _leave(self, number: int, finish: Finish | None = None) -> None:
        arrival = self._children.pop(number, None)
        if arrival is None:
            return
        family = self.open[arrival.parent]
        family.live -= 1
        if finish is not None:
            family.most_outputs = max(family.most_outputs, finish.output_tokens)
            if finish.e2e_s is not None:
                family.last_s = max(family.last_s or 0.0, arrival.arrival_s + finish.e2e_s)
        if not family.live:
            self._on_end(self.open.pop(arrival.parent))
