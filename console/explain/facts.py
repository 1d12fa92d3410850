"""What a diagnosis keeps of the records: one row of numbers per step, and recent events."""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from schedtop.console.drawing import text
from schedtop.engine.contract.knobs import LIVE, live_values
from schedtop.engine.contract.kv_groups import has_windows
from schedtop.engine.contract.prefixes.lost_hits import Lookups, PrefixMemory
from schedtop.engine.contract.reading import blocks_in_use
from schedtop.engine.contract.telemetry import (
    DEFERRED,
    PREFIX_KEY_BYTES,
    ROW_FIELDS,
    Arrival,
    Finish,
    Header,
    Host,
    KnobChange,
    Limiter,
    Message,
    Preemption,
    Refusal,
    Snapshot,
    StepRecord,
    Totals,
)

FloatArray = npt.NDArray[np.float64]

MAX_STEPS = 3072
"""Steps kept whatever the window's length: bounds memory and the time of one look."""

COLUMNS = (
    *("seq", "step", "executed", "start_s", "end_s", "execute_s", "schedule_s", "update_s"),
    *("tokens", "decodes", "prefill", "drafts", "recomputed", "budget", "input_rows", "input_budget", "limiter"),
    *("running", "waiting", "admitted", "preempted", "starved", "attended", "gaps"),
    *("free", "used", "cached_free", "head", "need", "have", "reserve", "inverted", "since_s", "paused"),
)
"""Numbers of one record. `limiter` is the head's reason where there is one (an index into `REASONS`); `starved`
counts running requests without a token; `attended` is the sum of a row's tokens times its computed ones; `gaps` the
length of its ITL column. NaN is unknown."""

REASONS = tuple(limiter.value for limiter in Limiter)
_ROW = struct.Struct(f"{len(COLUMNS)}d")
_CODES = {reason: code for code, reason in enumerate(REASONS)}
_BARE = frozenset((Limiter.NONE.value, Limiter.PAUSED.value, Limiter.PREEMPTED_NOW.value, *DEFERRED))
"""Reasons that come without numbers."""

_UNKNOWN = float("nan")
_NO_HEAD = (-1.0, _UNKNOWN, _UNKNOWN, 0.0, 0.0, _UNKNOWN)
_ZERO = bytes(4)
_FOLDED_AT_ONCE = 64
_FORGOTTEN_AT_ONCE = 512
_MAX_EVENTS = 4096
_MAX_SECONDS = 600
_MAX_PREFIXES = 8192

Event = TypeVar("Event", bound=Message)


class Marked(Struct, Generic[Event], frozen=True):
    """An event with its step."""

    seq: int
    step: int
    time_s: float
    event: Event


@dataclass(slots=True)
class Known:
    """A live request. `tokens` is what it would have to hold to be admitted; `queue_s` is None until it ran.

    `repeats`: its prompt begins with a prefix block seen before. `served`: it has got its first token.
    """

    arrival: Arrival
    queued_s: float
    tokens: int
    waiting: bool = True
    queue_s: float | None = None
    repeats: bool = False
    served: bool = False

    @property
    def name(self) -> str:
        """Its id, cleaned."""
        return text.clean(self.arrival.id, 40)


@dataclass(frozen=True, slots=True)
class SecondTotals:
    """Running totals at the end of one second: first admissions, their prompt and cached tokens; and the same of
    those whose prompt begins with a prefix block seen before. `demand_tokens` is work that arrived, prompts and all
    outputs that are allowed; `dropped_tokens` of it never had to be done."""

    end_s: float
    admitted: int
    prompt_tokens: int
    cached_tokens: int
    repeats: int
    repeat_prompt_tokens: int
    repeat_cached_tokens: int
    totals: Totals
    demand_tokens: int
    dropped_tokens: int
    lookups: Lookups

    @property
    def backlog_tokens(self) -> int:
        """Work still to compute, except for requests from before the first record."""
        totals = self.totals
        done = totals.scheduled_tokens - totals.recomputed_tokens - totals.rejected_draft_tokens
        return self.demand_tokens - self.dropped_tokens - done - totals.cached_tokens


class Facts:
    """Takes messages in one by one; costs are of the step's events, not of what is live."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.knobs: dict[str, Any] = {}
        self.turnable: set[str] = set()
        self.seq = -1
        self.step = 0
        self._forget()

    def _forget(self) -> None:
        self.num_steps = 0
        self.clock_s = 0.0
        self.num_arrivals = 0
        self.flat = array("d")
        self.itl: list[bytes] = []
        self._unfolded: list[StepRecord] = []
        self.known: dict[int, Known] = {}
        self._ids: OrderedDict[int, str] = OrderedDict()
        self.firsts: deque[tuple[int, float, float, float]] = deque(maxlen=_MAX_EVENTS)
        self.client_waits: deque[tuple[int, int, float, float]] = deque(maxlen=_MAX_EVENTS)
        self.preemptions: deque[Marked[Preemption]] = deque(maxlen=_MAX_EVENTS)
        self.changes: deque[Marked[KnobChange]] = deque(maxlen=256)
        self.coming: list[tuple[float, KnobChange]] = []
        self.seconds: deque[SecondTotals] = deque(maxlen=_MAX_SECONDS)
        self._next_second_s = 0.0
        self.hosts: deque[Marked[Host]] = deque(maxlen=_MAX_SECONDS)
        # The best median seconds of each mix of steps that a look has seen, and at which step.
        self.usual_s: dict[float, tuple[float, int]] = {}
        # Filled with placeholders, so that it takes as much memory from the start as after hours.
        self._prefixes: OrderedDict[int, None] = OrderedDict.fromkeys(range(-_MAX_PREFIXES, 0))
        self._repeats = self._repeat_prompts = self._repeat_cached = 0
        self._totals = Totals()
        self._demand = self._dropped = 0
        self._admitted: deque[tuple[int, float]] = deque(maxlen=_MAX_EVENTS)
        self._memory: PrefixMemory | None = None
        self.ends: deque[Marked[Finish]] = deque(maxlen=_MAX_EVENTS)
        self.refusals: deque[Marked[Refusal]] = deque(maxlen=_MAX_EVENTS)
        self.deferred: dict[str, int] = {}
        self.deferred_s = 0.0
        self._deferred_since_s: float | None = None

    def take_header(self, header: Header) -> None:
        """The header of another session resets everything."""
        if self.header is not None and self.header.started_at != header.started_at:
            self._forget()
            self.seq = -1
        self.header = header
        if self._memory is None:
            self._memory = PrefixMemory(header.block_size, has_windows(header.config))
        self.knobs = {knob.name: knob.default for knob in LIVE} | live_values(header.config)

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """The requests that are live, and the knobs."""
        self.knobs.update(snapshot.knobs)
        self.turnable = set(snapshot.knobs)
        waiting = set(snapshot.waiting)
        if not self.seconds:
            self._totals = snapshot.totals
            self.seconds.append(self.second(snapshot.clock_s))
            self._next_second_s = snapshot.clock_s + 1.0
        self.known.clear()
        for item in snapshot.requests:
            known = self._arrive(item.arrival)
            known.waiting = item.arrival.number in waiting
            known.tokens += item.output_tokens
            if item.queued_s is not None:
                known.queued_s = item.queued_s
            if item.first_scheduled_s is not None:
                known.queue_s = item.first_scheduled_s - item.arrival.arrival_s
            known.served = item.first_token_s is not None

    def take_record(self, record: StepRecord) -> None:
        """One step. Records already seen are skipped; after a gap, requests are known again as they arrive."""
        if record.seq <= self.seq:
            return
        if record.seq != self.seq + 1 and self.seq >= 0:
            self.known.clear()
        if record.knobs or self.coming:
            self._take_changes(record)
        self.seq, self.step = record.seq, record.step
        self.num_steps += record.executed
        self.clock_s = record.end_s
        if record.deferred or self.deferred:
            self._take_deferred(record)
        arrivals = record.arrivals
        if arrivals:
            self._take_arrivals(record)
        moves = record.admissions or record.ttft_s or record.finishes
        if (arrivals or moves) and self._memory is not None:
            self._memory.add(record)
        if moves or record.preemptions or record.refusals:
            self._take_events(record)
        for host in record.host:
            self.hosts.append(Marked(record.seq, record.step, record.end_s, host))
        self._unfolded.append(record)
        if len(self._unfolded) >= _FOLDED_AT_ONCE:
            self._fold()
        self._totals = record.totals
        if record.end_s >= self._next_second_s or not self.seconds:
            self.seconds.append(self.second(record.end_s))
            self._next_second_s = record.end_s + 1.0

    def _take_changes(self, record: StepRecord) -> None:
        """A change is marked at the first step that was planned after it: some under way may have been before.

        A server reports it with that very step. Our engines report it with the next record: it was made after the last.
        """
        planned_s = record.start_s if record.planned_s is None else record.planned_s
        foreign = self.header is not None and self.header.source != "embedded"
        made_s = planned_s if foreign else self.clock_s
        for change in record.knobs:
            self.knobs[change.name] = change.new
            self.coming.append((made_s, change))
        while self.coming and record.executed and self.coming[0][0] <= planned_s:
            self.changes.append(Marked(record.seq, record.step, record.end_s, self.coming.pop(0)[1]))

    def _arrive(self, arrival: Arrival) -> Known:
        known = Known(arrival, arrival.arrival_s, arrival.prompt_tokens)
        self.known[arrival.number] = known
        return known

    def _take_arrivals(self, record: StepRecord) -> None:
        for arrival in record.arrivals:
            known = self._arrive(arrival)
            self.num_arrivals += 1
            self._demand += arrival.prompt_tokens + arrival.max_tokens
            if arrival.client_wait_s is not None:
                self.client_waits.append((record.seq, record.step, record.end_s, arrival.client_wait_s))
            if not arrival.prefix_keys:
                continue
            key = int.from_bytes(arrival.prefix_keys[:PREFIX_KEY_BYTES])
            known.repeats = self._prefixes.pop(key, 0) is None
            self._prefixes[key] = None
            if len(self._prefixes) > _MAX_PREFIXES:
                self._prefixes.popitem(last=False)

    def _take_events(self, record: StepRecord) -> None:
        known = self.known
        for preemption in record.preemptions:
            self.preemptions.append(Marked(record.seq, record.step, record.start_s, preemption))
            victim = known.get(preemption.number)
            if victim is not None:
                victim.waiting, victim.queued_s = True, record.start_s
                victim.tokens = max(victim.arrival.prompt_tokens, preemption.lost_tokens + 1)
        for admission in record.admissions:
            entered = known.get(admission.number)
            if entered is not None:
                entered.waiting = False
                if not admission.resumed:
                    self._admitted.append((admission.number, record.end_s))
                    entered.queue_s = admission.waited_s
                    self._repeats += entered.repeats
                    self._repeat_prompts += entered.repeats * entered.arrival.prompt_tokens
                    self._repeat_cached += entered.repeats * admission.cached_tokens
        for number, ttft_s in record.ttft_s:
            started = known.get(number)
            queue_s = None
            if started is not None:
                queue_s, started.served = started.queue_s, True
            self.firsts.append(
                (record.seq, record.end_s, ttft_s, _UNKNOWN if queue_s is None else min(queue_s, ttft_s))
            )
        for finish in record.finishes:
            self.ends.append(Marked(record.seq, record.step, record.end_s, finish))
            self._drop_work(finish)
            self._part(finish.number)
        for refusal in record.refusals:
            self.refusals.append(Marked(record.seq, record.step, record.end_s, refusal))
            gone = self.known.get(refusal.number)
            if gone is not None:
                self._dropped += gone.arrival.prompt_tokens + gone.arrival.max_tokens
            self._part(refusal.number)

    def _drop_work(self, finish: Finish) -> None:
        """Outputs that were allowed and never came; of one without an output its prompt, too."""
        gone = self.known.get(finish.number)
        if gone is not None:
            # The last output needs no step of its own.
            left = gone.arrival.max_tokens - max(0, finish.output_tokens - 1)
            self._dropped += left + (0 if finish.output_tokens else gone.arrival.prompt_tokens)

    def _take_deferred(self, record: StepRecord) -> None:
        if not record.deferred:
            if self.deferred:
                self.deferred, self._deferred_since_s, self.deferred_s = {}, None, 0.0
            return
        self.deferred = dict(record.deferred)
        if self._deferred_since_s is None:
            self._deferred_since_s = record.end_s
        self.deferred_s = record.end_s - self._deferred_since_s

    def overtaken(self) -> dict[int, int]:
        """By waiting request: how many that came later were admitted while it waited, as far as is known."""
        if not any(known.waiting for known in self.known.values()):
            return {}
        numbers = np.array([number for number, _ in self._admitted], dtype=np.int64)
        at_s = np.array([at_s for _, at_s in self._admitted])
        order = np.sort(numbers)
        found = {}
        for number, known in self.waiting():
            if known.queue_s is None:
                found[number] = len(order) - int(np.searchsorted(order, number, side="right"))
            else:  # it has run: only since its preemption
                found[number] = int(((numbers > number) & (at_s > known.queued_s)).sum())
        return found

    def _part(self, number: int) -> None:
        """Drop a request except its id, which later events may still name."""
        gone = self.known.pop(number, None)
        if gone is not None:
            self._ids[number] = gone.arrival.id
            if len(self._ids) > _MAX_EVENTS:
                self._ids.popitem(last=False)

    def name(self, number: int) -> str:
        """A request's id, cleaned; its number where the id is not known any more."""
        known = self.known.get(number)
        found = self._ids.get(number) if known is None else known.arrival.id
        return f"#{number}" if found is None else text.clean(found, 40)

    def _fold(self) -> None:
        """Turn records since the last call into rows: many at once cost little more than one."""
        records, self._unfolded = self._unfolded, []
        if not records:
            return
        starved, attended = _of_rows(records)
        self.flat.frombytes(b"".join(map(_numbers, records, starved, attended)))
        self.itl += [record.itl_s for record in records]
        spare = len(self.itl) - MAX_STEPS
        if spare >= _FORGOTTEN_AT_ONCE:
            del self.flat[: spare * len(COLUMNS)]
            del self.itl[:spare]

    def second(self, end_s: float) -> SecondTotals:
        """The running totals as they are now."""
        totals = self._totals
        return SecondTotals(
            end_s,
            totals.admitted,
            totals.prompt_tokens,
            totals.cached_tokens,
            self._repeats,
            self._repeat_prompts,
            self._repeat_cached,
            totals,
            self._demand,
            self._dropped,
            Lookups() if self._memory is None else self._memory.found,
        )

    def matrix(self) -> FloatArray:
        """The newest `MAX_STEPS` rows (rows, columns), a copy."""
        self._fold()
        width = len(COLUMNS)
        return np.array(self.flat[-MAX_STEPS * width :], dtype=np.float64).reshape(-1, width)

    def waiting(self) -> Iterable[tuple[int, Known]]:
        """Requests in the queue now, by number."""
        return ((number, known) for number, known in self.known.items() if known.waiting)


def _numbers(record: StepRecord, starved: int, attended: int) -> bytes:
    """One row of `COLUMNS`, packed."""
    head, blocks, used = record.head, record.blocks, blocks_in_use(record)
    pool = blocks.held + blocks.shared + blocks.cached_free + blocks.empty
    return _ROW.pack(
        record.seq,
        record.step,
        record.executed,
        record.start_s,
        record.end_s,
        record.execute_s,
        _UNKNOWN if record.schedule_s is None else record.schedule_s,
        _UNKNOWN if record.update_s is None else record.update_s,
        record.scheduled_tokens,
        record.decode_tokens,
        record.prefill_tokens,
        record.draft_tokens,
        record.recomputed_tokens,
        record.token_budget,
        record.input_rows,
        record.input_budget,
        _reason(record),
        record.running,
        record.waiting,
        len(record.admissions),
        len(record.preemptions),
        starved,
        attended,
        len(record.itl_s) // 4,
        pool - used,
        used,
        blocks.cached_free,
        *(_NO_HEAD if head is None else _of_head(head)),
        record.paused,
    )


def _reason(record: StepRecord) -> int:
    """What holds the head, or ended the step where nobody waits; none where a foreign engine leaves the numbers out."""
    head = record.head
    if head is None:
        return 0 if record.waiting else _CODES.get(record.limiter, 0)
    known = head.reason in _BARE or (head.need is not None and head.have is not None)
    return _CODES.get(head.reason, 0) if known else 0


def _of_head(head: Any) -> tuple[float, float, float, float, float, float]:
    return (
        head.number,
        _UNKNOWN if head.need is None else head.need,
        _UNKNOWN if head.have is None else head.have,
        head.reserve,
        head.inverted,
        _UNKNOWN if head.since_s is None else head.since_s,
    )


def _of_rows(records: list[StepRecord]) -> tuple[list[int], list[int]]:
    """By record: running requests without a token in the step, and the sum of tokens times computed ones."""
    # With the bytes that one column of each takes.
    packed = [(record.rows, len(record.rows) // len(ROW_FIELDS)) for record in records]
    tokens = _joined([rows[size : 2 * size] for rows, size in packed])
    computed = _joined([rows[4 * size : 5 * size] for rows, size in packed])
    sizes = np.array([size // 4 for _, size in packed])
    starts = np.cumsum(sizes + 1) - sizes - 1
    served = np.add.reduceat(tokens != 0, starts, dtype=np.int64)
    # In int64: the products of long contexts leave int32.
    attended = np.add.reduceat(np.multiply(tokens, computed, dtype=np.int64), starts)
    return (sizes - served).tolist(), attended.tolist()


def _joined(parts: list[bytes]) -> npt.NDArray[np.int32]:
    """int32 columns one after another, with a zero behind each, so that none is empty."""
    return np.frombuffer(_ZERO.join([*parts, b""]), dtype=np.int32)
