"""What a console can ask of the past, live or recorded: any step, what was around it, rates and latencies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schedtop.console.drawing import text
from schedtop.console.past.events import Event
from schedtop.console.past.ladder import NO_STEP, Ladder
from schedtop.console.past.latency import BUCKET_S, LatencyBuckets, StepReading
from schedtop.console.past.state import LiveState
from schedtop.engine.contract.latencies.samples import Samples
from schedtop.engine.contract.reading import hit_rate, totals_since
from schedtop.engine.contract.telemetry import (
    Arrival,
    Bye,
    Finish,
    Header,
    Notice,
    Outgoing,
    Stage,
    StepRecord,
    Totals,
)

MAX_RECORDS = 8192
MAX_EVENTS = 4096
MAX_FINISHED = 2048
MAX_TEXT_CHARS = 16_384
_RATE_SPAN_S = 5.0


@dataclass(frozen=True, slots=True)
class Moment:
    """One step with the state after it. `record` is None before the first step of a session."""

    record: StepRecord | None
    state: LiveState
    live: bool

    @property
    def seq(self) -> int:
        return self.state.seq

    @property
    def clock_s(self) -> float:
        return self.state.clock_s


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that never came: `missing` of them before record `seq`."""

    seq: int
    missing: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second of the engine's clock, over the last `span_s`; `hit_rate` is None where nothing was admitted."""

    span_s: float
    steps: float
    output_tokens: float
    prompt_tokens: float
    recomputed_tokens: float
    rejected_tokens: float
    finished: float
    preemptions: float
    hit_rate: float | None
    host_hit_rate: float | None = None


class Events(Protocol):
    """Events, oldest first."""

    def __iter__(self) -> Iterator[Event]: ...

    def __reversed__(self) -> Iterator[Event]: ...


class Past(Protocol):
    """One engine's past. It stands at `live`, the newest state, and is read with `lock` held.

    `watchers` hear what it takes in. See `Moment` for what can be asked about a step.
    """

    lock: threading.RLock
    header: Header | None
    stage: Stage | None
    bye: Bye | None
    another: bool
    live: LiveState
    synced: bool
    num_applied: int
    gaps: Sequence[Gap]
    watchers: list[Callable[[Outgoing], None]]
    records: Sequence[StepRecord]
    events: Events
    finished: Mapping[int, tuple[Arrival, Finish]]
    texts: Mapping[int, str]
    latency: LatencyBuckets
    ladder: Ladder
    before: Past | None = None
    """The run before a restart, which takes in nothing more. Its seqs are `EARLIER`."""
    earlier_s: float = 0.0
    """Its clock is so much behind that of the ladder's."""

    # What the two kinds do each in its way

    def note(self, notice: Notice) -> None:
        """Put a notice of the console's own among the events."""
        ...

    def of_kind(self, kind: str) -> Iterator[Event]:
        """The known events of one kind (see `events.KINDS`), newest first."""
        ...

    def at(self, seq: int) -> Moment | None:
        """The moment after record `seq`, exactly as it was; None if it is no longer (or never was) known."""
        ...

    def latency_columns(self, kind: str, moment: Moment, window_s: float, num_columns: int) -> list[Samples]:
        """Latency samples of the window that ends at `moment`, in at most `num_columns` parts, oldest first."""
        ...

    def extent(self) -> tuple[float, float]:
        """First and last moment that the ladder describes, on the engine's clock."""
        begins_s = self.ladder.begins_s
        return self.live.clock_s if begins_s is None else begins_s, self.live.clock_s

    def _place(self, seq: int) -> int:
        """Where record `seq` lies in `records`, or would."""
        ...

    def _place_at(self, clock_s: float) -> int:
        """Where the first record lies that ended at or after `clock_s`."""
        ...

    def _slice(self, start: int, stop: int) -> Iterator[StepRecord]: ...

    # What follows from that

    def holding(self, seq: int) -> Past:
        """The run that has record `seq`, or would."""
        return self.before if seq < NO_STEP and self.before is not None else self

    def name(self, number: int) -> str:
        """A request's id, cleaned; its number where the id is not known."""
        tracked = self.live.requests.get(number)
        if tracked is not None:
            return text.identity(tracked.arrival.id, 40)
        known = self.finished.get(number)
        return text.identity(known[0].id, 40) if known else f"#{number}"

    @property
    def latest(self) -> StepRecord | None:
        return self.records[-1] if self.records else None

    @property
    def policy(self) -> str:
        return self.header.policy if self.header else "fcfs"

    def now(self) -> Moment:
        """The newest moment. Its state goes on changing: hold the lock while reading it."""
        return Moment(self.latest, self.live, live=True)

    def index(self, seq: int) -> int | None:
        """Where record `seq` lies in `records`."""
        index = self._place(seq)
        return index if index < len(self.records) and self.records[index].seq == seq else None

    def between(self, first: int, last: int) -> Iterator[StepRecord]:
        """The kept records with `first` <= seq <= `last`, in order."""
        start = self._place(first)
        stop = self._place(last + 1)
        return self._slice(start, stop)

    def seq_before(self, clock_s: float) -> int | None:
        """The newest kept record that ended before `clock_s`."""
        index = self._place_at(clock_s) - 1
        return self.records[index].seq if index >= 0 else None

    def between_times(self, start_s: float, last: int, most: int | None = None) -> Iterator[StepRecord]:
        """The kept records that ended after `start_s`, up to seq `last`, in order; the last `most` of them."""
        start = self._place_at(start_s)
        stop = self._place(last + 1)
        start = start if most is None else max(start, stop - most)
        return self._slice(start, stop)

    def neighbour(self, seq: int, offset: int) -> int | None:
        """The seq of the executed step `offset` steps away from `seq`, or of the last on the way there."""
        records, index = self.records, self._place(seq)
        direction = 1 if offset > 0 else -1
        found, left = None, abs(offset)
        index += direction
        while left and 0 <= index < len(records):
            if records[index].executed:
                found, left = records[index].seq, left - 1
            index += direction
        return found

    def steps(self, last: int, num: int) -> list[StepRecord]:
        """Up to `num` executed records that end with seq `last`, oldest first."""
        records = self.records
        found: list[StepRecord] = []
        index = self._place(last + 1) - 1
        while index >= 0 and len(found) < num:
            if records[index].executed:
                found.append(records[index])
            index -= 1
        found.reverse()
        return found

    def rates(self, moment: Moment, span_s: float = _RATE_SPAN_S) -> Rates | None:
        """What was done per second up to `moment`, its first step included; None where that is not known."""
        records = self.records
        stop = self._place(moment.seq + 1)
        if not stop:
            return None
        start = min(self._place_at(moment.clock_s - span_s), stop - 1)
        first, last = self._before(start, moment.clock_s - span_s), records[stop - 1]
        elapsed_s = last.end_s - max(first.end_s, moment.clock_s - span_s)
        return _rates(first.totals, last.totals, elapsed_s) if elapsed_s > 0 else None

    def _before(self, index: int, from_s: float) -> StepReading:
        """The running totals before record `index`, the first of a window that begins at `from_s`."""
        records = self.records
        if index:
            return StepReading.of(records[index - 1])
        first = records[0]
        if first.totals.steps <= first.executed:  # the session's very first record
            return StepReading(first.start_s, 0, Totals(), None)
        # The totals of each second outlive the records; of those before them the first one counts for nothing.
        known = self.latency.readings(int(from_s // BUCKET_S) + 1, int(first.end_s // BUCKET_S))
        return min([StepReading.of(first), *known], key=lambda reading: reading.end_s)

    def _same_second(self, moment: Moment) -> list[StepRecord]:
        bucket = moment.clock_s // BUCKET_S
        start = self._place_at(bucket * BUCKET_S)
        stop = self._place(moment.seq + 1)
        return list(self._slice(start, stop))


def _rates(first: Totals, last: Totals, elapsed_s: float) -> Rates:
    useful = last.scheduled_tokens - first.scheduled_tokens
    outputs = last.output_tokens - first.output_tokens
    rejected = last.rejected_draft_tokens - first.rejected_draft_tokens
    return Rates(
        span_s=elapsed_s,
        steps=(last.steps - first.steps) / elapsed_s,
        output_tokens=outputs / elapsed_s,
        prompt_tokens=max(0, useful - outputs - rejected) / elapsed_s,
        recomputed_tokens=(last.recomputed_tokens - first.recomputed_tokens) / elapsed_s,
        rejected_tokens=rejected / elapsed_s,
        finished=(last.finished - first.finished) / elapsed_s,
        preemptions=(last.preemptions - first.preemptions) / elapsed_s,
        hit_rate=hit_rate(since := totals_since(first, last)),
        host_hit_rate=since.external_tokens / since.cache_queries if since.cache_queries else None,
    )
