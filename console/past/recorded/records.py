"""What a history keeps, read from a recording when it is asked for: records, latencies, events, ends, texts."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from schedtop.console.drawing import text
from schedtop.console.past import events
from schedtop.console.past.events import Event
from schedtop.console.past.ladder import Ladder
from schedtop.console.past.latency import BUCKET_S, LatencyBuckets, StepReading, unserved
from schedtop.console.past.past import MAX_EVENTS, MAX_FINISHED, MAX_RECORDS, MAX_TEXT_CHARS
from schedtop.console.past.recorded.source import RecordedSource
from schedtop.engine.contract.latencies.samples import KINDS, Samples
from schedtop.engine.contract.telemetry import Arrival, Finish, StepRecord

BLOCK = 128
"""Records are read and kept in blocks of this many."""
MAX_BYTES = 96 << 20
_RECORD_BYTES = 4000


class RecordedSteps(Sequence[StepRecord]):
    """The records up to a position, the last `stop` of them excluded. The blocks last used stay in memory."""

    def __init__(self, source: RecordedSource) -> None:
        self.source = source
        self.stop = 0
        self._blocks: OrderedDict[int, list[StepRecord]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return self.stop

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...

    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.stop))]
        if index < 0:
            index += self.stop
        if not 0 <= index < self.stop:
            raise IndexError(index)
        return self.block(index // BLOCK)[index % BLOCK]

    def __iter__(self) -> Iterator[StepRecord]:
        return self.span(0, self.stop)

    def span(self, start: int, stop: int) -> Iterator[StepRecord]:
        """Records `start` to `stop` (exclusive), a block at a time."""
        start, stop = max(start, 0), min(stop, self.stop)
        while start < stop:
            number = start // BLOCK
            end = min(stop, (number + 1) * BLOCK)
            yield from self.block(number)[start % BLOCK : end - number * BLOCK]
            start = end

    def block(self, number: int) -> list[StepRecord]:
        """Records `number` * BLOCK and on, also those beyond the position."""
        found = self._blocks.get(number)
        if found is None:
            found = list(self.source.records(number * BLOCK, (number + 1) * BLOCK))
            self._blocks[number] = found
            self._num_bytes += _bytes_of(found)
            while self._num_bytes > MAX_BYTES and len(self._blocks) > 1:
                self._num_bytes -= _bytes_of(self._blocks.popitem(last=False)[1])
        self._blocks.move_to_end(number)
        return found

    def ahead(self, index: int) -> StepRecord | None:
        """Record `index` wherever the position is; None beyond the file."""
        if not 0 <= index < self.source.num_records:
            return None
        return self.block(index // BLOCK)[index % BLOCK]


def _bytes_of(records: list[StepRecord]) -> int:
    return sum(_RECORD_BYTES + len(record.rows) + len(record.itl_s) for record in records)


class RecordedLatency(LatencyBuckets):
    """Samples by second, from the recording's own; a second holds all its steps, those to come included."""

    def __init__(self, source: RecordedSource) -> None:
        super().__init__()
        self.source = source
        self.begins_s = source.start_s
        self._known: dict[int, dict[str, Samples] | None] = {}
        self._readings: dict[int, StepReading | None] = {}
        self._unserved_in: dict[tuple[int, int], tuple[int, int]] = {}

    def take(self, record: StepRecord) -> None:
        """They are in the file."""

    def bucket(self, index: int) -> dict[str, Samples] | None:
        if index not in self._known:
            self._fetch(index, index)
        return self._known[index]

    def columns(
        self, kind: str, end_s: float, window_s: float, num_columns: int, newest: dict[str, Samples] | None = None
    ) -> list[Samples]:
        last = int(end_s // BUCKET_S)
        first = max(last - max(1, round(window_s / BUCKET_S)) + 1, int(self.source.start_s // BUCKET_S))
        missing = [index for index in range(first, last) if index not in self._known]
        if missing:
            self._fetch(missing[0], missing[-1])
        return super().columns(kind, end_s, window_s, num_columns, newest)

    def readings(self, first: int, last: int) -> list[StepReading]:
        """Those of the outer seconds alone: each is a step read from the file."""
        return [found for index in dict.fromkeys((first, last)) if (found := self._reading(index)) is not None]

    def _reading(self, second: int) -> StepReading | None:
        if second not in self._readings:
            index = self.source.index_at(second * BUCKET_S)
            record = None if index is None else self.source.record(index)
            inside = record is not None and record.end_s < (second + 1) * BUCKET_S
            self._readings[second] = StepReading.of(record) if record is not None and inside else None
        return self._readings[second]

    def unserved(self, first: int, last: int) -> tuple[int, int]:
        """Of their last steps alone: to read all would take too long."""
        found = self._unserved_in.get((first, last))
        if found is None:
            start, stop = (self.source.index_at(second * BUCKET_S) for second in (first, last + 1))
            stop = self.source.num_records if stop is None else stop
            start = stop if start is None else max(start, stop - BLOCK)
            found = self._unserved_in[first, last] = unserved(self.source.records(start, stop))
        return found

    def _fetch(self, first: int, last: int) -> None:
        if len(self._known) > 4 * MAX_RECORDS:
            self._known.clear()
        found = self.source.seconds(first, last)
        for index in range(first, last + 1):
            second = found.get(index)
            self._known[index] = None if second is None else {kind: getattr(second, kind) for kind in KINDS}


class RecordedLadder(Ladder):
    """Reads the whole recording, a slice at a time."""

    def __init__(self, source: RecordedSource) -> None:
        super().__init__(depth=4)
        self.source = source
        self.begins_s = source.start_s
        self._next = 0
        if source.num_records:
            self.begin(source.keyframe_before(0)[0])

    @property
    def share(self) -> float:
        """How much of the recording has been read."""
        return self._next / self.source.num_records if self.source.num_records else 1.0

    def read_on(self, budget_s: float) -> bool:
        """Read for about so long; whether there was anything left to read."""
        until_s = time.monotonic() + budget_s
        before = self._next
        while self._next < self.source.num_records and time.monotonic() < until_s:
            stop = min(self._next + BLOCK, self.source.num_records)
            for record in self.source.records(self._next, stop):
                self.take(record)
            self._next = stop
        return self._next > before


class Chapter:
    """What happened in the records from a keyframe up to `stop`: events, ends, and the names of requests."""

    def __init__(self, source: RecordedSource, index: int) -> None:
        snapshot, self.first = source.keyframe_before(index)
        self.stop = self.first
        self.events: list[Event] = []
        self.finished: dict[int, tuple[Arrival, Finish]] = {}
        self._arrivals = {item.arrival.number: item.arrival for item in snapshot.requests}
        self._paused = snapshot.paused

    def take(self, record: StepRecord) -> None:
        """Take in record `stop`."""
        self.stop += 1
        self._arrivals.update((arrival.number, arrival) for arrival in record.arrivals)
        self.events.extend(events.of_record(record, self._paused, self.name))
        self._paused = record.paused
        for finish in record.finishes:
            arrival = self._arrivals.get(finish.number)
            if arrival is not None:
                self.finished[finish.number] = (arrival, finish)

    def name(self, number: int) -> str:
        arrival = self._arrivals.get(number)
        return f"#{number}" if arrival is None else text.identity(arrival.id, 40)


class Chapters:
    """Stretches back from the position, read as far as they are asked for: about as far as a live console keeps."""

    def __init__(self, steps: RecordedSteps) -> None:
        self.steps = steps
        self._whole: OrderedDict[int, Chapter] = OrderedDict()
        self._open: Chapter | None = None

    def read(self) -> Iterator[Chapter]:
        """The chapter of the position, then those before it."""
        position = self.steps.stop - 1
        if position < 0:
            return
        chapter = self._present(position)
        yield chapter
        oldest = position - MAX_RECORDS
        while chapter.first > 0 and chapter.first > oldest:
            chapter = self._before(chapter.first)
            yield chapter

    def _present(self, position: int) -> Chapter:
        chapter = self._open
        if chapter is None or not 0 <= position - chapter.stop + 1 <= MAX_RECORDS // 2:
            chapter = Chapter(self.steps.source, position)
        self._open = chapter
        return self._filled(chapter, position + 1)

    def _before(self, index: int) -> Chapter:
        """The chapter that ends before record `index`."""
        found = self._whole.get(index)
        if found is None:
            found = self._whole[index] = self._filled(Chapter(self.steps.source, index - 1), index)
            while len(self._whole) > 64:
                self._whole.popitem(last=False)
        return found

    def _filled(self, chapter: Chapter, stop: int) -> Chapter:
        for record in self.steps.span(chapter.stop, stop):
            chapter.take(record)
        return chapter


class RecordedEvents:
    """Events up to the position; the console's own notices, which are of its start, come before all others."""

    def __init__(self, chapters: Chapters) -> None:
        self.chapters = chapters
        self.notes: list[Event] = []

    def __reversed__(self) -> Iterator[Event]:
        left = MAX_EVENTS
        for chapter in self.chapters.read():
            yield from chapter.events[: -left - 1 : -1]
            left -= len(chapter.events)
            if left <= 0:
                return
        yield from reversed(self.notes)

    def __iter__(self) -> Iterator[Event]:
        return iter(list(reversed(self))[::-1])

    def __len__(self) -> int:
        return sum(1 for _ in reversed(self))


class RecordedEnds(Mapping[int, tuple[Arrival, Finish]]):
    """Requests that ended before the position, about as many as a live console remembers."""

    def __init__(self, chapters: Chapters) -> None:
        self.chapters = chapters

    def __getitem__(self, number: int) -> tuple[Arrival, Finish]:
        for chapter in self.chapters.read():
            if number in chapter.finished:
                return chapter.finished[number]
        raise KeyError(number)

    def __iter__(self) -> Iterator[int]:
        numbers = [number for chapter in self.chapters.read() for number in reversed(chapter.finished)]
        return reversed(numbers[:MAX_FINISHED])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class RecordedTexts(Mapping[int, str]):
    """Output texts as far as they had come at the position; empty where none were kept."""

    def __init__(self, steps: RecordedSteps) -> None:
        self.steps = steps
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._upto = 0

    def _read(self) -> OrderedDict[int, str]:
        stop = self.steps.stop + 1
        if stop < self._upto:
            self._texts, self._upto = OrderedDict(), 0
        if stop > self._upto:
            for index, delta in self.steps.source.texts(self._upto):
                if index >= stop:
                    break
                self._texts[delta.number] = (self._texts.get(delta.number, "") + delta.text)[-MAX_TEXT_CHARS:]
                while len(self._texts) > MAX_FINISHED:
                    self._texts.popitem(last=False)
            self._upto = stop
        return self._texts

    def __getitem__(self, number: int) -> str:
        return self._read()[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
