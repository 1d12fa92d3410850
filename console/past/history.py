"""All that a console remembers: recent records, keyframes to inspect any of them, events, latencies, rates.

Knows the telemetry and nothing of the screen. One thread applies messages, another reads; both hold `lock`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from copy import copy

from msgspec.structs import replace
from schedtop.console.drawing import text
from schedtop.console.past import events
from schedtop.console.past.events import Event
from schedtop.console.past.ladder import EARLIER, Ladder
from schedtop.console.past.latency import LatencyBuckets
from schedtop.console.past.past import MAX_EVENTS, MAX_FINISHED, MAX_RECORDS, MAX_TEXT_CHARS, Gap, Moment, Past
from schedtop.console.past.state import LiveState, Tracked
from schedtop.engine.contract.latencies.samples import Samples, of_records
from schedtop.engine.contract.telemetry import (
    Arrival,
    Bye,
    Finish,
    Header,
    Notice,
    Outgoing,
    Snapshot,
    Stage,
    StepRecord,
    TextDelta,
)

MAX_BYTES = 96 << 20
KEPT_S = 600.0
"""On the engine's clock, as long as an engine keeps its own; of slow engines longer, up to `MAX_RECORDS`."""
KEPT_RECORDS = 1 << 16
"""Whatever their bytes: all that an engine sends of its last minutes."""
KEYFRAME_EVERY = 256
MAX_RARE = 1024
RARE = "KVXEPNG"

BEFORE_SHARE = 0.25
"""Of what is kept of a run, this much once another engine has taken its place."""

LEAST_GAP_S = 1.0
"""Between the runs of two engines; a simulated one's clock may have outrun the wall's."""

_RECORD_BYTES = 1500
_KEYFRAME_BYTES, _REQUEST_BYTES = 4000, 300


class History(Past):
    """The console's memory of one engine: the last `KEPT_S`, but at most `max_records` records of `max_bytes`.

    They are forgotten in blocks, from one keyframe to the next.
    """

    records: list[StepRecord]
    gaps: deque[Gap]
    events: deque[Event]
    finished: OrderedDict[int, tuple[Arrival, Finish]]
    texts: OrderedDict[int, str]

    def __init__(self, max_records: int = KEPT_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self.lock = threading.RLock()
        self.header: Header | None = None
        self.stage: Stage | None = None
        self.bye: Bye | None = None
        self.another = False  # than the one before that answered at its address
        self.max_records, self.max_bytes = max_records, max_bytes
        self.before: History | None = None
        self.watchers: list[Callable[[Outgoing], None]] = []
        self.keyframe_every = min(KEYFRAME_EVERY, max(1, max_records // 8))
        self._forget()

    def _forget(self) -> None:
        self.live = LiveState()
        self.synced = False
        self.records = []
        self.gaps = deque(maxlen=256)
        self.events = deque(maxlen=MAX_EVENTS)
        # Changes and preemptions are few and asked for often; admissions must not push them out.
        self._rare: dict[str, deque[Event]] = {kind: deque(maxlen=MAX_RARE) for kind in RARE}
        self.finished = OrderedDict()
        self.texts = OrderedDict()
        self.latency = LatencyBuckets()
        self.ladder = Ladder()
        self.num_applied = 0
        self._keyframes: deque[LiveState] = deque()
        self._bytes: deque[int] = deque([0])
        self._num_bytes = 0
        self._since_keyframe = 0
        self._inspected: Moment | None = None

    # Taking messages in

    def apply(self, message: Outgoing) -> None:
        """Take in one message of the engine. A `Reply` is not history's business and changes nothing."""
        if isinstance(message, StepRecord):
            self._apply_record(message)
        else:
            self._apply_other(message)
        for watch in self.watchers:
            watch(message)

    def _apply_other(self, message: Outgoing) -> None:
        match message:
            case Snapshot():
                self._apply_snapshot(message)
            case Header():
                self._apply_header(message)
            case TextDelta():
                self._apply_text(message)
            case Notice():
                self.note(message)
            case Stage():
                self.stage = message
            case Bye():
                self.bye = message

    def note(self, notice: Notice) -> None:
        """Put a notice among the events, at the present step."""
        self._happened(Event("N", self.live.seq, self.live.step, self.live.clock_s, notice))

    def _happened(self, event: Event) -> None:
        self.events.append(event)
        rare = self._rare.get(event.kind)
        if rare is not None:
            rare.append(event)

    def _apply_header(self, header: Header) -> None:
        before = self.header
        self.another = before is not None and before.started_at != header.started_at
        if before is not None and self.another:
            self._begin_again(before, header)
        self.header, self.bye = header, None

    def _begin_again(self, before: Header, header: Header) -> None:
        """Another engine answers: what the one before it did stays on the timeline and among the events.

        The new clock begins at 0, so that of the old one moves to before it, by the wall's time between the starts.
        """
        earlier_s = max(header.started_at - before.started_at, self.live.clock_s + LEAST_GAP_S)
        sealed, ladder = self._sealed(earlier_s), self.ladder
        self._forget()
        self.before, self.ladder = sealed, ladder.moved_back(earlier_s)
        self.events.extend(replace(event, clock_s=event.clock_s - earlier_s) for event in sealed.events)
        since = time.strftime("%H:%M:%S", time.localtime(header.started_at))
        kept = f", its last {text.plural(len(sealed.records), 'record')} can be opened" if sealed.records else ""
        words = (
            f"a new engine (started at {since}) answers; the run before it stays on the timeline and in this list"
        )
        self.note(Notice("warning", words + kept))

    def _sealed(self, earlier_s: float) -> History:
        """The run so far, as one before another: with seqs of its own, and less kept of it."""
        sealed = copy(self)
        sealed.watchers, sealed.before, sealed.earlier_s = [], None, earlier_s
        sealed.max_records, sealed.max_bytes = (
            round(limit * BEFORE_SHARE) for limit in (self.max_records, self.max_bytes)
        )
        while sealed._is_full() and sealed._forget_oldest():
            pass
        for number in list(sealed.texts)[: -round(MAX_FINISHED * BEFORE_SHARE)]:
            del sealed.texts[number]
        sealed.records = [replace(record, seq=record.seq - EARLIER) for record in sealed.records]
        sealed.gaps = deque(Gap(gap.seq - EARLIER, gap.missing) for gap in sealed.gaps)
        sealed.events = deque(_earlier(event) for event in sealed.events)
        sealed._rare = {kind: deque(map(_earlier, known)) for kind, known in sealed._rare.items()}
        for state in (sealed.live, *sealed._keyframes):
            state.seq -= EARLIER
        sealed._inspected = None
        return sealed

    def _apply_snapshot(self, snapshot: Snapshot) -> None:
        if self.num_applied and snapshot.seq < self.live.seq:
            return  # of the minutes before a link broke, which are known
        if self.records and snapshot.seq > self.live.seq:
            self._note_gap(snapshot.seq + 1, snapshot.seq - self.live.seq)
        self.live.start_afresh(snapshot)
        self.ladder.begin(snapshot)
        self.synced = True
        self.stage = None
        self._add_keyframe()

    def _apply_record(self, record: StepRecord) -> None:
        live = self.live
        if record.seq <= live.seq:
            return
        if record.seq != live.seq + 1 and self.num_applied:
            self._note_gap(record.seq, record.seq - live.seq - 1)
            live.exact = False
        if self._since_keyframe >= self.keyframe_every or self._bytes[-1] > self.max_bytes // 8:
            self._add_keyframe()
        self._since_keyframe += 1
        if record.executed and not self.synced:
            self.synced = True
        was_paused = live.paused
        if record.finishes:
            for finish in record.finishes:
                self._keep_finished(live.requests.get(finish.number), finish, record)
        live.apply(record)
        if _eventful(record, was_paused):
            for event in events.of_record(record, was_paused, self.name):
                self._happened(event)
        self.latency.take(record)
        self.ladder.take(record)
        self.records.append(record)
        self.num_applied += 1
        size = _size(record)
        self._num_bytes += size
        self._bytes[-1] += size
        if self._is_full():
            self._forget_oldest()

    def _is_full(self) -> bool:
        num = len(self.records)
        if num > self.max_records or self._num_bytes > self.max_bytes:
            return True
        if num <= MAX_RECORDS or len(self._keyframes) < 2:
            return False
        return self._keyframes[1].clock_s < self.live.clock_s - KEPT_S

    def _note_gap(self, seq: int, missing: int) -> None:
        self.gaps.append(Gap(seq, missing))
        words = f"{text.plural(missing, 'record')} missing; totals are still exact"
        self._happened(Event("G", seq, self.live.step, self.live.clock_s, words))

    def _add_keyframe(self) -> None:
        frame = self.live.copy()
        self._keyframes.append(frame)
        self._num_bytes += _keyframe_size(frame)
        self._bytes.append(0)
        self._since_keyframe = 0

    def _forget_oldest(self) -> bool:
        """Drop the records before the second keyframe, so that every kept one can still be reached from a state."""
        if len(self._keyframes) < 2:
            return False
        self._num_bytes -= _keyframe_size(self._keyframes.popleft())
        self._num_bytes -= self._bytes.popleft() + self._bytes.popleft()
        self._bytes.appendleft(0)
        del self.records[: self._place(self._keyframes[0].seq + 1)]
        return True

    def _keep_finished(self, tracked: Tracked | None, finish: Finish, record: StepRecord) -> None:
        arrival = tracked.arrival if tracked is not None else None
        if arrival is None:
            arrival = next((item for item in record.arrivals if item.number == finish.number), None)
        if arrival is None:
            return
        self.finished[finish.number] = (arrival, finish)
        while len(self.finished) > MAX_FINISHED:
            self.texts.pop(self.finished.popitem(last=False)[0], None)

    def _apply_text(self, delta: TextDelta) -> None:
        self.texts[delta.number] = (self.texts.get(delta.number, "") + delta.text)[-MAX_TEXT_CHARS:]
        while len(self.texts) > MAX_FINISHED:
            self.texts.popitem(last=False)

    # Asking

    def of_kind(self, kind: str) -> Iterator[Event]:
        if kind in self._rare:
            return reversed(self._rare[kind])
        return (event for event in reversed(self.events) if event.kind == kind)

    def at(self, seq: int) -> Moment | None:
        run = self.holding(seq)
        if run is not self:
            return run.at(seq)
        index = self.index(seq)
        if index is None:
            return None
        if self._inspected is not None and self._inspected.seq == seq:
            return self._inspected
        state = self._base(seq)
        if state is None:
            return None
        for record in self.between(state.seq + 1, seq):
            state.exact &= record.seq == state.seq + 1
            state.apply(record)
        self._inspected = Moment(self.records[index], state, live=False)
        return self._inspected

    def _base(self, seq: int) -> LiveState | None:
        """A copy of the newest known state at or before `seq`."""
        known = [frame for frame in self._keyframes if frame.seq <= seq]
        if self._inspected is not None and self._inspected.seq <= seq:
            known.append(self._inspected.state)
        return max(known, key=lambda frame: frame.seq).copy() if known else None

    def _place(self, seq: int) -> int:
        return bisect_left(self.records, seq, key=_seq)

    def _place_at(self, clock_s: float) -> int:
        return bisect_left(self.records, clock_s, key=_end)

    def _slice(self, start: int, stop: int) -> Iterator[StepRecord]:
        return iter(self.records[start:stop])

    def latency_columns(self, kind: str, moment: Moment, window_s: float, num_columns: int) -> list[Samples]:
        newest = None if moment.live else of_records(self._same_second(moment))
        return self.latency.columns(kind, moment.clock_s, window_s, num_columns, newest)


def _earlier(event: Event) -> Event:
    return replace(event, seq=event.seq - EARLIER)


def _seq(record: StepRecord) -> int:
    return record.seq


def _end(record: StepRecord) -> float:
    return record.end_s


def _size(record: StepRecord) -> int:
    return _RECORD_BYTES + len(record.rows) + len(record.itl_s) + len(record.changed_blocks)


def _keyframe_size(state: LiveState) -> int:
    return _KEYFRAME_BYTES + len(state.classes) + _REQUEST_BYTES * len(state.requests)


def _eventful(record: StepRecord, was_paused: bool) -> bool:
    return bool(
        record.admissions
        or record.finishes
        or record.preemptions
        or record.knobs
        or record.refusals
        or record.paused != was_paused
    )
