"""The engine's state at one step, folded from snapshots and step records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.console.past.host_contents import HostContents
from schedtop.engine.contract.reading import IntArray, row_matrix
from schedtop.engine.contract.telemetry import (
    ROW_FIELDS,
    Arrival,
    Deferral,
    RequestState,
    Snapshot,
    StepRecord,
    Totals,
    UnderWay,
)

NUMBER, TOKENS, DRAFTS, ACCEPTED, COMPUTED, NEEDED, EMITTED, BLOCKS, FLAGS = range(len(ROW_FIELDS))

_ID_BYTES = 4
MAX_UNSETTLED = 2048
"""Records. Whatever they say about a request that has ended by then need not be worked out at all."""

Classes = npt.NDArray[np.uint8]

_NO_ROWS: IntArray = np.zeros((len(ROW_FIELDS), 0), dtype=np.int32)


class Tracked(msgspec.Struct, frozen=True):
    """A live request. Never edited, only replaced, so that a copy of the state may share it.

    `output_tokens` and `computed_tokens` hold while the request is not in the rows of the newest step;
    `last_token_s` is that of the newest snapshot.
    """

    arrival: Arrival
    waiting: bool = True
    output_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    queued_since_s: float = 0.0
    requeued_s: float = 0.0
    deferred: str = ""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival.arrival_s


class LiveState:
    """What is live at one moment: requests, their rows in the newest step, queue order, blocks by class, knobs.

    `classes` is uint8, one
    `BlockClass` per block. `exact` is False between a gap in the records and the next snapshot.
    """

    __slots__ = (
        "_back",
        "_changed",
        "_classes",
        "_delivered_s",
        "_first_running",
        "_front",
        "_further",
        "_grown",
        "_newest",
        "_rows",
        "_tables",
        "_unread",
        "clock_s",
        "exact",
        "host",
        "knobs",
        "knobs_version",
        "paused",
        "requests",
        "seq",
        "step",
        "totals",
    )

    def __init__(self) -> None:
        self.seq = -1
        self.step = 0
        self.clock_s = 0.0
        self.exact = True
        self.paused = False
        self.knobs: dict[str, Any] = {}
        self.knobs_version = 0
        self.totals = Totals()
        self.requests: dict[int, Tracked] = {}
        # The queue in two parts: victims go before all others, the newest first.
        self._front: dict[int, None] = {}
        self._back: dict[int, None] = {}
        # Worked out when they are looked at: records come far more often than anyone looks.
        self._tables: dict[int, bytes] = {}
        self._further: dict[int, dict[int, bytes]] = {}
        self._grown: list[tuple[bytes, bytes, bytes]] = []
        self._first_running: list[int] = []
        self._newest: StepRecord | None = None
        self._rows: IntArray | None = None
        self._classes: Classes = np.zeros(0, dtype=np.uint8)
        self._changed: list[bytes] = []
        self._delivered_s: dict[int, float] = {}
        self._unread: list[StepRecord] = []
        self.host: HostContents | None = None

    @property
    def rows(self) -> IntArray:
        """The rows of the newest step, as `row_matrix` gives them."""
        if self._rows is None:
            self._rows = _NO_ROWS if self._newest is None else row_matrix(self._newest)
        return self._rows

    @property
    def delivered_s(self) -> dict[int, float]:
        """When each live request that has an output got its newest one."""
        if self._unread:
            self._settle_deliveries()
        return self._delivered_s

    def _settle_deliveries(self) -> None:
        records, self._unread = self._unread, []
        missing = {number for number, item in self.requests.items() if item.first_token_s is not None}
        found: dict[int, float] = {}
        for number in missing:
            since_s = self._delivered_s.get(number, self.requests[number].first_token_s)
            assert since_s is not None
            found[number] = since_s
        found.update(newest_deliveries(records, missing))
        self._delivered_s = found

    @property
    def tables(self) -> dict[int, bytes]:
        """Ids of the blocks that each live request holds in the first KV group, int32."""
        if self._grown:
            self._settle_tables()
        return self._tables

    def group_tables(self, number: int) -> list[bytes]:
        """A request's tables by KV group, as `tables` has that of the first; none if it holds nothing."""
        first = self.tables.get(number)
        further = self._further.get(number, {})
        if first is None and not further:
            return []
        return [first or b"", *(further.get(group, b"") for group in range(1, max(further, default=0) + 1))]

    def _settle_tables(self) -> None:
        grown, grown_blocks, places = map(b"".join, zip(*self._grown, strict=True))
        self._grown = []
        pairs = np.frombuffer(grown, dtype=np.int32).reshape(-1, 2)
        ids = np.frombuffer(grown_blocks, dtype=np.int32)
        if (pairs[:, 1] < 0).any() or pairs[:, 1].sum() != len(ids) or len(places) != len(pairs):
            self.exact = False  # damaged: nobody knows whose blocks these are
            return
        owner = pairs[:, 0].astype(np.int64) << 8 | np.frombuffer(places, dtype=np.uint8)
        owners = np.repeat(owner, pairs[:, 1])
        here = np.isin(owners >> 8, np.fromiter(self.requests, dtype=np.int64))  # most have ended by now
        owners, ids = owners[here], ids[here]
        order = np.argsort(owners, kind="stable")
        found, starts = np.unique(owners[order], return_index=True)
        for key, part in zip(found.tolist(), np.split(ids[order], starts[1:]), strict=False):
            number, group = key >> 8, key & 255
            if group:
                tables = dict(self._further.get(number, {}))
                tables[group] = tables.get(group, b"") + part.tobytes()
                self._further[number] = tables
            else:
                self._tables[number] = self._tables.get(number, b"") + part.tobytes()

    @property
    def classes(self) -> Classes:
        """The class of every block, uint8."""
        if self._changed:
            self._settle_classes()
        return self._classes

    def _settle_classes(self) -> None:
        packed = np.frombuffer(b"".join(self._changed), dtype=np.int32)
        self._changed = []
        blocks, classes = packed >> 2, packed & 3
        known = (blocks >= 0) & (blocks < len(self._classes))
        if not known.all():
            # No pool has such blocks: the record is damaged, and so is what is known of the classes.
            self.exact = False
            blocks, classes = blocks[known], classes[known]
        # Of a block that changed more than once the last class stays.
        self._classes[blocks] = classes

    def copy(self) -> LiveState:
        """An independent copy; requests and rows are shared, as they are never edited."""
        twin = LiveState()
        classes, delivered_s = self.classes, self.delivered_s
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.knobs = dict(self.knobs)
        twin.requests = dict(self.requests)
        twin._front, twin._back = dict(self._front), dict(self._back)
        twin._tables, twin._grown = dict(self._tables), list(self._grown)
        twin._further = dict(self._further)
        twin._classes, twin._changed = classes.copy(), []
        twin._delivered_s, twin._unread = dict(delivered_s), []
        twin.host = None if self.host is None else self.host.copy()
        return twin

    def start_afresh(self, snapshot: Snapshot) -> None:
        """Take over a snapshot's whole state."""
        self.seq, self.step, self.clock_s = snapshot.seq, snapshot.step, snapshot.clock_s
        self.exact = True
        self.paused = snapshot.paused
        self.knobs, self.knobs_version = dict(snapshot.knobs), snapshot.knobs_version
        self.totals = snapshot.totals
        admitted = [admission.number for step in snapshot.under_way for admission in step.admissions]
        waiting = {*admitted, *snapshot.waiting}
        self.requests = {
            item.arrival.number: _tracked(item, item.arrival.number in waiting) for item in snapshot.requests
        }
        self._front, self._back = {}, dict.fromkeys((*admitted, *snapshot.waiting))
        self._newest, self._rows = None, None
        self._unread = []
        self._delivered_s = {
            item.arrival.number: item.last_token_s for item in snapshot.requests if item.last_token_s is not None
        }
        self._first_running = [number for number in snapshot.running if number not in admitted]
        self._tables = {item.arrival.number: item.table for item in snapshot.requests if item.table}
        self._further = {
            item.arrival.number: dict(enumerate(item.further, start=1))
            for item in snapshot.requests
            if item.further
        }
        self._grown = []
        self._leave_to_records(snapshot.under_way)
        self._classes, self._changed = np.frombuffer(snapshot.block_classes, dtype=np.uint8).copy(), []
        self.host = None if snapshot.host is None else HostContents(snapshot.host)

    def _leave_to_records(self, under_way: tuple[UnderWay, ...]) -> None:
        """Take out of the tables what steps under way gained: their records bring it."""
        for step in under_way:
            for number, gained in step.grown.items():
                table = self._tables.get(number, b"")
                self._tables[number] = table[: len(table) - _ID_BYTES * gained]
            for admission in step.admissions:
                self._tables.pop(admission.number, None)
                self._further.pop(admission.number, None)

    def apply(self, record: StepRecord) -> None:
        """Move on by one record. Costs follow what happened in the step, not how much is live."""
        self.seq, self.step, self.clock_s = record.seq, record.step, record.end_s
        self.paused, self.totals = record.paused, record.totals
        if record.arrivals:
            self._arrive(record.arrivals)
        for refusal in record.refusals:
            self._drop(refusal.number)
        if record.preemptions:
            self._preempt(record)
        if record.deferrals:
            self._defer(record.deferrals)
        if record.admissions:
            self._admit(record)
        if record.executed or record.rows:
            self._newest, self._rows = record, None
            self._unread.append(record)
            if len(self._unread) >= MAX_UNSETTLED:
                self._settle_deliveries()
        if record.ttft_s:
            self._first_tokens(record)
        if record.grown:
            places = record.grown_groups or bytes(len(record.grown) // 8)
            self._grown.append((record.grown, record.grown_blocks, places))
            if len(self._grown) >= MAX_UNSETTLED:
                self._settle_tables()
        if self.host is not None and (record.finishes or record.preemptions or record.admissions):
            self.host.apply(record, self.requests)
        for finish in record.finishes:
            self._drop(finish.number)
        if record.changed_blocks:
            self._changed.append(record.changed_blocks)
            if len(self._changed) >= MAX_UNSETTLED:
                self._settle_classes()
        if record.knobs or record.knobs_version != self.knobs_version:
            self.knobs_version = record.knobs_version
            for change in record.knobs:
                self.knobs[change.name] = change.new

    def _arrive(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self.requests[arrival.number] = Tracked(arrival, queued_since_s=arrival.arrival_s)
            self._back[arrival.number] = None

    def _defer(self, deferrals: Iterable[Deferral]) -> None:
        for deferral in deferrals:
            tracked = self.requests.get(deferral.number)
            if tracked is not None:
                self.requests[deferral.number] = msgspec.structs.replace(tracked, deferred=deferral.reason)

    def _admit(self, record: StepRecord) -> None:
        for admission in record.admissions:
            self._leave_queue(admission.number)
            tracked = self.requests.get(admission.number)
            if tracked is None:
                continue
            changes: dict[str, Any] = {"waiting": False}
            if admission.resumed:
                changes["requeued_s"] = tracked.requeued_s + admission.waited_s
            else:
                changes["cached_tokens"] = admission.cached_tokens
                changes["first_scheduled_s"] = tracked.arrival.arrival_s + admission.waited_s
            self.requests[admission.number] = msgspec.structs.replace(tracked, **changes)

    def _preempt(self, record: StepRecord) -> None:
        for preemption in record.preemptions:
            tracked = self.requests.get(preemption.number)
            if tracked is None:
                continue
            self.requests[preemption.number] = msgspec.structs.replace(
                tracked,
                waiting=True,
                output_tokens=self.outputs(preemption.number),
                computed_tokens=0,
                preemptions=preemption.count,
                queued_since_s=record.start_s,
            )
            self.tables.pop(preemption.number, None)  # settled: it may be admitted again before anyone looks
            self._further.pop(preemption.number, None)
            # A victim returns to the front of the queue; under priority the order is worked out when it is shown.
            self._front[preemption.number] = None

    def _first_tokens(self, record: StepRecord) -> None:
        for number, ttft_s in record.ttft_s:
            tracked = self.requests.get(number)
            if tracked is not None:
                first_s = tracked.arrival.arrival_s + ttft_s
                self.requests[number] = msgspec.structs.replace(tracked, first_token_s=first_s)

    def _drop(self, number: int) -> None:
        self.requests.pop(number, None)
        self._tables.pop(number, None)
        self._further.pop(number, None)
        self._leave_queue(number)

    def _leave_queue(self, number: int) -> None:
        if self._back.pop(number, self) is self:
            self._front.pop(number, None)

    @property
    def num_waiting(self) -> int:
        return len(self._front) + len(self._back)

    @property
    def num_running(self) -> int:
        return len(self.requests) - self.num_waiting

    def outputs(self, number: int) -> int:
        """Output tokens of a request so far: from its row if it has one, else as it came to rest."""
        tracked = self.requests[number]
        found = np.flatnonzero(self.rows[NUMBER] == number)
        if not len(found) or tracked.waiting:
            return tracked.output_tokens
        row = self.rows[:, found[0]]
        return int(row[NEEDED] + row[EMITTED]) - tracked.arrival.prompt_tokens

    def snapshot(self) -> Snapshot:
        """The same state as the engine would tell it."""
        rows = {column[NUMBER]: column for column in self.rows.T.tolist()}
        states = [self._request_state(tracked, rows.get(number)) for number, tracked in self.requests.items()]
        return Snapshot(
            seq=self.seq,
            step=self.step,
            clock_s=self.clock_s,
            requests=states,
            waiting=[*reversed(self._front), *self._back],
            running=self.running(),
            block_classes=self.classes.tobytes(),
            knobs=dict(self.knobs),
            knobs_version=self.knobs_version,
            paused=self.paused,
            totals=self.totals,
            host=None if self.host is None else self.host.tier(),
        )

    def _request_state(self, tracked: Tracked, row: list[int] | None) -> RequestState:
        arrival = tracked.arrival
        outputs, computed = tracked.output_tokens, tracked.computed_tokens
        if row is not None and not tracked.waiting:
            outputs = row[NEEDED] + row[EMITTED] - arrival.prompt_tokens
            computed = row[COMPUTED] + row[TOKENS] - row[DRAFTS] + row[ACCEPTED]
        return RequestState(
            arrival=arrival,
            status="running" if not tracked.waiting else "preempted" if tracked.preemptions else "waiting",
            output_tokens=outputs,
            computed_tokens=computed,
            cached_tokens=tracked.cached_tokens,
            preemptions=tracked.preemptions,
            first_scheduled_s=tracked.first_scheduled_s,
            first_token_s=tracked.first_token_s,
            last_token_s=self.delivered_s.get(arrival.number),
            table=self.tables.get(arrival.number, b""),
            queued_s=tracked.queued_since_s if tracked.waiting else None,
            requeued_s=tracked.requeued_s,
            deferred=tracked.deferred,
            further=tuple(self.group_tables(arrival.number)[1:]),
        )

    def running(self) -> list[int]:
        """Numbers of the requests that run after this step, in the engine's order."""
        requests = self.requests
        rows: list[int] = self.rows[NUMBER].tolist() if self._newest is not None else self._first_running
        listed = [number for number in rows if number in requests and not requests[number].waiting]
        if len(listed) == self.num_running:
            return listed
        seen = set(listed)
        return listed + [n for n, item in requests.items() if not item.waiting and n not in seen]

    def queue(self, policy: str) -> list[int]:
        """Numbers of the waiting requests, head first."""
        requests = self.requests
        waiting = [*reversed(self._front), *self._back]
        if policy != "priority":
            return waiting
        return sorted(
            (number for number in waiting if number in requests),
            key=lambda n: (requests[n].arrival.priority, requests[n].arrival.arrival_s, n),
        )


def newest_deliveries(records: Sequence[StepRecord], numbers: set[int]) -> dict[int, float]:
    """When these requests got their newest outputs, of those that got one in these records.

    From the newest record back: most requests are served in each step.
    """
    found: dict[int, float] = {}
    for record in reversed(records):
        if not numbers:
            break
        if record.rows:
            rows = row_matrix(record)
            here = numbers.intersection(rows[NUMBER][rows[EMITTED] > 0].tolist())
            found.update(dict.fromkeys(here, record.end_s))
            numbers = numbers - here
    return found


def _tracked(item: RequestState, waiting: bool) -> Tracked:
    return Tracked(
        arrival=item.arrival,
        waiting=waiting,
        output_tokens=item.output_tokens,
        computed_tokens=item.computed_tokens,
        cached_tokens=item.cached_tokens,
        preemptions=item.preemptions,
        first_scheduled_s=item.first_scheduled_s,
        first_token_s=item.first_token_s,
        last_token_s=item.last_token_s,
        queued_since_s=item.arrival.arrival_s if item.queued_s is None else item.queued_s,
        requeued_s=item.requeued_s,
        deferred=item.deferred,
    )
