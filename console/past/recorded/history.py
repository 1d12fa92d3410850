"""A history that reads a recording instead of remembering an engine: any step is as near as the last one."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from schedtop.console.past.events import Event
from schedtop.console.past.past import MAX_EVENTS, MAX_RECORDS, Gap, Moment, Past
from schedtop.console.past.recorded.records import (
    Chapters,
    RecordedEnds,
    RecordedEvents,
    RecordedLadder,
    RecordedLatency,
    RecordedSteps,
    RecordedTexts,
)
from schedtop.console.past.state import LiveState
from schedtop.engine.contract.latencies.samples import Samples, of_records
from schedtop.engine.contract.telemetry import Notice, StepRecord

if TYPE_CHECKING:
    from schedtop.console.past.recorded.source import RecordedSource

NEAR = 256
"""So many records ahead are applied one by one; farther ones are reached from a keyframe."""


class RecordedHistory(Past):
    """Stands at record `position` (-1: before the first) and tells what a live history would tell there."""

    records: RecordedSteps
    events: RecordedEvents
    latency: RecordedLatency
    ladder: RecordedLadder

    def __init__(self, source: RecordedSource) -> None:
        self.lock = threading.RLock()
        self.source, self.header = source, source.header
        self.stage = self.bye = None
        self.another, self.synced = False, True
        self.gaps: list[Gap] = []
        self.watchers = []
        self.position, self.num_applied = -1, 0
        self.records = RecordedSteps(source)
        chapters = Chapters(self.records)
        self.events, self.finished = RecordedEvents(chapters), RecordedEnds(chapters)
        self.texts = RecordedTexts(self.records)
        self.latency = RecordedLatency(source)
        self.ladder = RecordedLadder(source)
        self.live = LiveState()
        self.live.start_afresh(source.keyframe_before(0)[0])
        self._inspected: Moment | None = None

    def note(self, notice: Notice) -> None:
        self.events.notes.append(Event("N", self.live.seq, self.live.step, self.live.clock_s, notice))

    def extent(self) -> tuple[float, float]:
        return self.source.start_s, self.source.end_s

    # Moving

    def seek(self, index: int) -> None:
        """Stand at record `index`, cut to the file."""
        index = max(-1, min(index, self.source.num_records - 1))
        if 0 <= index - self.position <= NEAR and self._gap_before(index) <= self.position:
            state = self.live
            for record in self._ahead(self.position + 1, index + 1):
                state.apply(record)
                self._tell(record)
        else:
            state = self._state_at(index)
        self.live, self.position, self.records.stop, self.num_applied = state, index, index + 1, index + 1

    def _state_at(self, index: int) -> LiveState:
        """The state after a record, from the keyframe before the step that ran last: its rows are part of it."""
        ran = index
        while ran > 0 and not self._record(ran).executed:
            ran -= 1
        snapshot, first = self.source.keyframe_before(max(ran, 0, self._gap_before(index)))
        state = LiveState()
        state.start_afresh(snapshot)
        for record in self._ahead(first, index + 1):
            state.apply(record)
        return state

    def _gap_before(self, index: int) -> int:
        """The first record after the last gap up to `index`, which no state is carried across; -1 without one."""
        return max((gap.index for gap in self.source.gaps if gap.index <= index), default=-1)

    def _ahead(self, start: int, stop: int) -> Iterator[StepRecord]:
        return map(self._record, range(start, stop))

    def _record(self, index: int) -> StepRecord:
        record = self.records.ahead(index)
        assert record is not None, "the position is within the file"
        return record

    def ahead(self, index: int) -> StepRecord | None:
        """Record `index`, before or behind the position; None outside the file."""
        return self.records.ahead(index)

    def _tell(self, record: StepRecord) -> None:
        for watch in self.watchers:
            watch(record)

    # Asking

    def at(self, seq: int) -> Moment | None:
        """The moment after record `seq`, also one behind the position."""
        index = self.index_of(seq)
        if index is None:
            return None
        if self._inspected is None or self._inspected.seq != seq:
            self._inspected = Moment(self._record(index), self._state_at(index), live=False)
        return self._inspected

    def index_of(self, seq: int) -> int | None:
        """Where record `seq` lies in the file; None if it does not."""
        index = self._search(seq)
        record = self.records.ahead(index)
        return index if record is not None and record.seq == seq else None

    def _search(self, seq: int) -> int:
        """The first record with at least this `seq`. Recordings have no gaps, but for those of foreign engines."""
        first = self.records.ahead(0)
        if first is None or seq <= first.seq:
            return 0
        guess = min(seq - first.seq, self.source.num_records - 1)
        found = self._record(guess)
        if found.seq <= seq:
            return guess + (found.seq < seq)
        return bisect_left(range(guess), seq, key=lambda index: self._record(index).seq)

    def _place(self, seq: int) -> int:
        return min(self._search(seq), self.records.stop)

    def _place_at(self, clock_s: float) -> int:
        stop = self.records.stop
        # Most questions are about the last seconds: no need to look further than a few blocks back.
        near = max(0, stop - NEAR)
        if stop and self._record(near).end_s < clock_s:
            return near + bisect_left(range(near, stop), clock_s, key=lambda index: self._record(index).end_s)
        index = self.source.index_at(clock_s)
        return stop if index is None else min(index, stop)

    def between_indices(self, start: int, stop: int) -> Iterator[StepRecord]:
        """Records `start` to `stop` (exclusive) of those up to the position."""
        return self.records.span(start, stop)

    def of_kind(self, kind: str) -> Iterator[Event]:
        """Knob changes are found by their marks, which needs no look at what lies between."""
        if kind != "K":
            yield from (event for event in reversed(self.events) if event.kind == kind)
            return
        index, left = self.position + 1, MAX_EVENTS
        while left and (found := self.source.find("knobs", index, forward=False)) is not None:
            record, index, left = self._record(found), found, left - 1
            for change in reversed(record.knobs):
                yield Event("K", record.seq, record.step, record.end_s, change)

    def _slice(self, start: int, stop: int) -> Iterator[StepRecord]:
        return self.records.span(start, stop)

    def steps(self, last: int, num: int) -> list[StepRecord]:
        return super().steps(last, min(num, MAX_RECORDS))

    def latency_columns(self, kind: str, moment: Moment, window_s: float, num_columns: int) -> list[Samples]:
        """As of `moment`: of its last second, only what had come by then."""
        newest = of_records(self._same_second(moment))
        return self.latency.columns(kind, moment.clock_s, window_s, num_columns, newest)
