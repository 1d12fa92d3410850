"""The requests in flight, from records alone: since when they wait, and their open latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.latencies.slo import Slo
from schedtop.engine.contract.reading import row_matrix
from schedtop.engine.contract.telemetry import (
    ROW_FIELDS,
    Admission,
    Arrival,
    Finish,
    Preemption,
    Refusal,
    Snapshot,
    StepRecord,
)

Floats = npt.NDArray[np.float64]

_EMITTED = ROW_FIELDS.index("emitted")
_FOLDED_AT_ONCE = 256


@dataclass(slots=True)
class LiveRequest:
    """One live request. `last_s`: when its newest output was delivered."""

    arrival: Arrival
    waiting: bool = True
    admitted: bool = False
    first_s: float | None = None
    last_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unended:
    """The open latencies as of a moment, seconds; each is a lower bound of its final value."""

    ttft_s: Floats
    itl_s: Floats
    tpot_s: Floats
    e2e_s: Floats


class Moves(Protocol):
    """What `Lives` and what counts by request read of a record."""

    @property
    def arrivals(self) -> Sequence[Arrival]: ...
    @property
    def refusals(self) -> Sequence[Refusal]: ...
    @property
    def admissions(self) -> Sequence[Admission]: ...
    @property
    def preemptions(self) -> Sequence[Preemption]: ...
    @property
    def ttft_s(self) -> Sequence[tuple[int, float]]: ...
    @property
    def finishes(self) -> Sequence[Finish]: ...


class Lives:
    """Takes in records in order. With `keep_gaps` it remembers the gaps of those who are live."""

    def __init__(self, keep_gaps: bool = False) -> None:
        self.of: dict[int, LiveRequest] = {}
        self._keep_gaps = keep_gaps
        self._delivered: list[tuple[npt.NDArray[np.int32], float]] = []
        self._numbers: list[npt.NDArray[np.int32]] = []
        self._gaps_s: list[npt.NDArray[np.float32]] = []

    def begin(self, snapshot: Snapshot) -> None:
        """The requests in flight before the first record."""
        waiting = set(snapshot.waiting)
        for item in snapshot.requests:
            number = item.arrival.number
            self.of[number] = LiveRequest(
                item.arrival,
                waiting=number in waiting,
                admitted=item.first_scheduled_s is not None,
                first_s=item.first_token_s,
                last_s=item.last_token_s,
            )

    def add(self, record: StepRecord) -> None:
        """Take in the next record."""
        self.move(record)
        self.deliver_rows(record)

    def move(self, record: Moves) -> None:
        """Take in a record's arrivals, admissions and ends."""
        for arrival in record.arrivals:
            self.of[arrival.number] = LiveRequest(arrival)
        for preemption in record.preemptions:
            self._move(preemption.number, waiting=True)
        for admission in record.admissions:
            self._move(admission.number, waiting=False)
        for number, ttft_s in record.ttft_s:
            if (life := self.of.get(number)) is not None:
                life.first_s = life.last_s = life.arrival.arrival_s + ttft_s
        for finish in record.finishes:
            self.of.pop(finish.number, None)
        for refusal in record.refusals:
            self.of.pop(refusal.number, None)

    def deliver_rows(self, record: StepRecord) -> None:
        """Take in what its rows got."""
        if record.rows:
            rows = row_matrix(record)
            self.deliver(rows[0][rows[_EMITTED] > 0], record.end_s)
            if self._keep_gaps:
                self.keep(rows[0], np.frombuffer(record.itl_s, dtype=np.float32))

    def _move(self, number: int, waiting: bool) -> None:
        life = self.of.get(number)
        if life is not None:
            life.waiting = waiting
            life.admitted |= not waiting

    def deliver(self, numbers: npt.NDArray[np.int32], end_s: float) -> None:
        """These requests got outputs at `end_s`."""
        self._delivered.append((numbers, end_s))
        if len(self._delivered) >= _FOLDED_AT_ONCE:
            self._fold()

    def keep(self, numbers: npt.NDArray[np.int32], gaps_s: npt.NDArray[np.float32]) -> None:
        """Gaps of these requests, one each; NaN is none."""
        if self._keep_gaps:
            self._numbers.append(numbers)
            self._gaps_s.append(gaps_s)

    def _fold(self) -> None:
        """Apply pending deliveries: many steps at once cost little more than one."""
        if self._delivered:
            numbers = np.concatenate([part for part, _ in self._delivered])
            ends_s = np.repeat([end_s for _, end_s in self._delivered], [len(part) for part, _ in self._delivered])
            self._delivered = []
            distinct, newest = np.unique(numbers[::-1], return_index=True)
            for number, end_s in zip(distinct.tolist(), ends_s[::-1][newest].tolist(), strict=True):
                if (life := self.of.get(number)) is not None:
                    life.last_s = end_s
        if self._numbers:
            numbers, gaps_s = np.concatenate(self._numbers), np.concatenate(self._gaps_s)
            live = ~np.isnan(gaps_s) & np.isin(numbers, np.fromiter(self.of, dtype=np.int64))
            self._numbers, self._gaps_s = [numbers[live]], [gaps_s[live]]

    def unended(self, now_s: float) -> Unended:
        """The open latencies at `now_s`. A gap that has not begun, since a delivery at this very moment, is none
        yet."""
        self._fold()
        lives = self.of.values()
        served = [life for life in lives if life.first_s is not None]
        waits = [now_s - life.arrival.arrival_s for life in lives if life.first_s is None]
        gaps = [now_s - life.last_s for life in served if life.last_s is not None]
        means = [_mean_gap_s(life, now_s) for life in served if life.arrival.max_tokens > 1]
        return Unended(
            ttft_s=np.maximum(np.array(waits, dtype=np.float64), 0.0),
            itl_s=np.array([gap for gap in gaps if gap > 0], dtype=np.float64),
            tpot_s=np.array([mean for mean in means if mean > 0], dtype=np.float64),
            e2e_s=np.maximum(np.array([now_s - life.arrival.arrival_s for life in lives], dtype=np.float64), 0.0),
        )

    def num_past(self, slo: Slo, now_s: float) -> int:
        """Live requests already past a bound."""
        self._fold()
        late = self._late_gaps(slo.itl_s, now_s) if slo.itl_s is not None else set()
        return sum(number in late or _is_past(life, slo, now_s) for number, life in self.of.items())

    def _late_gaps(self, bound_s: float, now_s: float) -> set[int]:
        """Those whose p95 gap so far, the open one included, is past the bound."""
        by_number: dict[int, list[float]] = {
            number: [now_s - life.last_s]
            for number, life in self.of.items()
            if life.last_s is not None and now_s > life.last_s
        }
        for numbers, gaps_s in zip(self._numbers, self._gaps_s, strict=True):
            for number, gap_s in zip(numbers.tolist(), gaps_s.tolist(), strict=True):
                if number in self.of:
                    by_number.setdefault(number, []).append(gap_s)
        return {number for number, gaps in by_number.items() if float(np.quantile(gaps, 0.95)) > bound_s}


def _mean_gap_s(life: LiveRequest, now_s: float) -> float:
    """A lower bound of the final mean gap: as if all remaining outputs came now."""
    assert life.first_s is not None
    return (now_s - life.first_s) / (life.arrival.max_tokens - 1)


def _is_past(life: LiveRequest, slo: Slo, now_s: float) -> bool:
    """By its wait for a first token, its mean gap or its total time."""
    arrival_s = life.arrival.arrival_s
    ttft_s = (now_s if life.first_s is None else life.first_s) - arrival_s
    if slo.ttft_s is not None and ttft_s > slo.ttft_s:
        return True
    if slo.e2e_s is not None and now_s - arrival_s > slo.e2e_s:
        return True
    served = life.first_s is not None and life.arrival.max_tokens > 1
    return slo.tpot_s is not None and served and _mean_gap_s(life, now_s) > slo.tpot_s
