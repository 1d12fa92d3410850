"""What happened over time, in buckets of rising length: a range of any length costs the same and loses no peak."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.console.past.state import newest_deliveries
from schedtop.engine.contract.latencies.cohort import Bounded, Cohort
from schedtop.engine.contract.telemetry import Host, Snapshot, StepRecord

FINEST_S = 1 / 64
STEPS_UP = 4
"""Each rung's buckets are this many times as long as those of the one below."""
NUM_RUNGS = 9
KEPT, FINE_KEPT, NUM_FINE = 1280, 4096, 3
"""Buckets of a rung, and of each of the finest: a minute of the first, a quarter of an hour of the third, two
weeks of the topmost. A range further back is drawn from a coarser rung, which holds the same peaks."""
MOST_PENDING = 128
"""Records. Each is a bucket of its own while it is worked in, and memory once taken for many is not given back."""
MOST_CLOSED = 1024
"""Columns that are remembered once nothing is added to them, more than a screen is wide."""

NO_STEP = -1
EARLIER = 1 << 40
"""Taken from the seqs of the run before a restart: no other run has them."""

_BINS_PER_OCTAVE = 16
_LEAST_S = 1e-4
_FEW = 8


_HIGHEST = ("budget", "running", "waiting", "max_wait_s", "max_ttft_s", "max_itl_s", "cpu", "delay", "gpu")
"""Of a `Bucket`: what the whole has is the highest of its parts."""

Sizes = dict[int, int]
"""How many durations there are of each size."""


class Bucket:
    """The steps that ended in a stretch of time: counts, peaks, and durations by size.

    `tokens` are decode, prefill and draft tokens of the step with the most of them; `slowest` is the seq of the
    longest step. `used`, `cached` and `pool` are blocks where most were in use. `cpu`, `delay` and `gpu` are the
    highest that the host reported, `clock` the lowest share of the GPU's highest clock; negative where there is none.
    `open` are the waits for a first token at its end, `open_itl` the gaps that no output has ended by then, by size.
    `drawn` is for whoever draws it; every merge clears it.
    Quantiles are exact to 5 %.
    """

    __slots__ = (
        "begin_s",
        "budget",
        "cached",
        "clock",
        "cpu",
        "delay",
        "drawn",
        "end_s",
        "gpu",
        "itl",
        "marks",
        "max_itl_s",
        "max_step_s",
        "max_ttft_s",
        "max_wait_s",
        "most_tokens",
        "num_steps",
        "open",
        "open_itl",
        "pool",
        "running",
        "slowest",
        "steps",
        "tokens",
        "ttft",
        "used",
        "waiting",
    )

    def __init__(self) -> None:
        self.num_steps = 0
        self.begin_s, self.end_s = math.inf, -math.inf
        self.tokens, self.most_tokens = (0, 0, 0), 0
        self.budget = 0
        self.max_step_s, self.slowest = 0.0, NO_STEP
        self.used = self.cached = self.pool = 0
        self.running = self.waiting = 0
        self.max_wait_s = self.max_ttft_s = self.max_itl_s = 0.0
        self.cpu = self.delay = self.gpu = self.clock = -1.0
        self.steps: Sizes = {}
        self.ttft: Sizes = {}
        self.itl: Sizes = {}
        self.open: Sizes = {}
        self.open_itl: Sizes = {}
        self.marks: dict[str, int] = {}
        self.drawn: dict[str, tuple[float, ...]] = {}

    def merge(self, other: Bucket) -> None:
        """Take in what another bucket holds."""
        self.drawn = {}
        self.num_steps += other.num_steps
        if other.begin_s < self.begin_s:
            self.begin_s = other.begin_s
        if other.end_s >= self.end_s:
            self.end_s, self.open, self.open_itl = other.end_s, other.open, other.open_itl
        if other.most_tokens > self.most_tokens:
            self.tokens, self.most_tokens = other.tokens, other.most_tokens
        for name in _HIGHEST:
            theirs = getattr(other, name)
            if theirs > getattr(self, name):
                setattr(self, name, theirs)
        if other.max_step_s > self.max_step_s:
            self.max_step_s, self.slowest = other.max_step_s, other.slowest
        if other.used > self.used or not self.pool:
            self.used, self.cached, self.pool = other.used, other.cached, other.pool
        if other.clock >= 0:
            self.clock = min(self.clock, other.clock) if self.clock >= 0 else other.clock
        for name in ("steps", "ttft", "itl", "marks"):
            mine, theirs = getattr(self, name), getattr(other, name)
            for key, num in theirs.items():
                mine[key] = mine.get(key, 0) + num

    def packed(self) -> bytes:
        """The bucket as few bytes: many are kept, few are looked at."""
        self.drawn = {}
        return msgspec.msgpack.encode([getattr(self, name) for name in self.__slots__])

    @classmethod
    def unpacked(cls, packed: bytes) -> Bucket:
        """Undo `packed`."""
        bucket = cls.__new__(cls)
        for name, value in zip(cls.__slots__, msgspec.msgpack.decode(packed), strict=True):
            setattr(bucket, name, value)
        decode, prefill, draft = bucket.tokens  # a list, as it comes
        bucket.tokens, bucket.drawn = (decode, prefill, draft), {}
        return bucket

    def moved_back(self, seconds: float) -> Bucket:
        """The same, so much earlier, as of the run before."""
        moved = Bucket()
        moved.merge(self)
        moved.begin_s, moved.end_s = self.begin_s - seconds, self.end_s - seconds
        moved.slowest = self.slowest if self.slowest == NO_STEP else self.slowest - EARLIER
        return moved

    def p95(self, kind: str) -> Bounded | None:
        """Of the shared cohort: those who got theirs (`ttft` or `itl`) in this time, and those who wait at its end."""
        ended, waits = (self.ttft, self.open) if kind == "ttft" else (self.itl, self.open_itl)
        sizes = sorted({*ended, *waits})
        known, still = (np.array([part.get(size, 0) for size in sizes], dtype=np.int64) for part in (ended, waits))
        return Cohort(np.array([_seconds(size) for size in sizes]), known, still).quantile(0.95)

    @classmethod
    def of(cls, records: Iterable[StepRecord]) -> Bucket:
        """A bucket of these records."""
        bucket, itl, ttft, steps = cls(), [], [], []
        for record in records:
            bucket._take(record)
            if record.executed:
                steps.append(record.end_s - record.start_s)
            itl.append(record.itl_s)
            for _, seconds in record.ttft_s:
                ttft.append(seconds)
        # The requests of one step wait equally long: few of many are different, and only they need a logarithm.
        gaps, counts = np.unique(np.frombuffer(b"".join(itl), dtype=np.float32), return_counts=True)
        if len(gaps) and gaps[-1] != gaps[-1]:  # NaN, the last in order
            gaps, counts = gaps[:-1], counts[:-1]
        bucket.steps, bucket.itl = _sizes(np.array(steps)), _sizes(gaps, counts)
        bucket.ttft = _sizes(np.array(ttft))
        bucket.max_itl_s = float(gaps[-1]) if len(gaps) else 0.0
        bucket.max_ttft_s = max(ttft, default=0.0)
        return bucket

    def _take_host(self, host: Host) -> None:
        sample = Bucket()
        sample.cpu = host.cpu
        sample.delay = -1.0 if host.delay is None else host.delay
        sample.gpu = -1.0 if host.gpu_busy is None else host.gpu_busy
        if host.gpu_clock_mhz and host.gpu_top_clock_mhz:
            sample.clock = host.gpu_clock_mhz / host.gpu_top_clock_mhz
        self.merge(sample)

    def _take(self, record: StepRecord) -> None:
        """Thousands a second: a comparison costs a third of a call of `max`."""
        if record.start_s < self.begin_s:
            self.begin_s = record.start_s
        self.end_s = record.end_s
        for host in record.host:
            self._take_host(host)
        if record.executed:
            self.num_steps += 1
            if record.scheduled_tokens > self.most_tokens:
                self.tokens = record.decode_tokens, record.prefill_tokens, record.draft_tokens
                self.most_tokens = record.scheduled_tokens
            if record.token_budget > self.budget:
                self.budget = record.token_budget
            step_s = record.end_s - record.start_s
            if step_s > self.max_step_s:
                self.max_step_s, self.slowest = step_s, record.seq
        blocks = record.blocks
        used = blocks.held + blocks.shared
        if used > self.used or not self.pool:
            self.used, self.cached = used, blocks.cached_free
            self.pool = used + blocks.cached_free + blocks.empty
        if record.running > self.running:
            self.running = record.running
        if record.waiting > self.waiting:
            self.waiting = record.waiting
        if record.oldest_wait_s is not None and record.oldest_wait_s > self.max_wait_s:
            self.max_wait_s = record.oldest_wait_s
        if record.admissions:
            self._mark("A", len(record.admissions))
        if record.preemptions:
            self._mark("V", len(record.preemptions))
        if record.knobs:
            self._mark("K", len(record.knobs))
        if record.refusals:
            self._mark("X", len(record.refusals))

    def _mark(self, mark: str, num: int) -> None:
        self.marks[mark] = self.marks.get(mark, 0) + num


class Grid(NamedTuple):
    """`num` columns from column `first` on, each of `per` buckets of a rung."""

    rung: int
    per: int
    first: int
    num: int

    @property
    def column_s(self) -> float:
        return self.per * Ladder.length_s(self.rung)

    @property
    def begin_s(self) -> float:
        return self.first * self.column_s

    def column(self, at_s: float) -> int:
        """The column in which a moment lies, which may be outside."""
        return int((at_s - self.begin_s) // self.column_s)


class Ladder:
    """Rungs of buckets. Records are taken in order and worked in when somebody looks.

    `depth` times as many buckets as usual are kept. `shift_s` is added to all times.
    """

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth
        self.shift_s = 0.0
        self.begins_s: float | None = None
        self.ends_s = -math.inf
        self.knows_gpu = False
        self._newest: list[tuple[int, Bucket] | None] = [None] * NUM_RUNGS
        self._packed: list[dict[int, bytes]] = [{} for _ in range(NUM_RUNGS)]
        self._order: list[deque[int]] = [deque() for _ in range(NUM_RUNGS)]
        self._pending: list[StepRecord] = []
        self._waits: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._closed: dict[tuple[int, int, int], Bucket | None] = {}

    def begin(self, snapshot: Snapshot, shift_s: float = 0.0) -> None:
        """Who waits for a token, where the records do not describe their arrival."""
        if self._pending:
            self._settle()
        self.shift_s = shift_s
        self._last_s = {
            item.arrival.number: item.last_token_s for item in snapshot.requests if item.last_token_s is not None
        }
        self._waits = {
            item.arrival.number: item.arrival.arrival_s for item in snapshot.requests if item.first_token_s is None
        }

    def take(self, record: StepRecord) -> None:
        if self.begins_s is None:
            self.begins_s = record.start_s + self.shift_s
        self.ends_s = record.end_s + self.shift_s
        self._pending.append(record)
        if record.host and record.host[0].gpu_busy is not None:
            self.knows_gpu = True
        if len(self._pending) >= MOST_PENDING:
            self._settle()

    def moved_back(self, seconds: float) -> Ladder:
        """The same, so much earlier and to the nearest bucket, for a session that restarts at 0."""
        if self._pending:
            self._settle()
        moved = Ladder(self.depth)
        moved.begins_s = None if self.begins_s is None else self.begins_s - seconds
        for rung, order in enumerate(self._order):
            shift = round(seconds / self.length_s(rung))
            for index in order:
                bucket = self._bucket(rung, index)
                assert bucket is not None, "what is in order is kept"
                # Never onto the new session's own first bucket.
                moved._merge(rung, min(index - shift, -1), bucket.moved_back(seconds))
        return moved

    def packed(self) -> bytes:
        """All of it, for another process."""
        if self._pending:
            self._settle()
        rungs = [
            [(index, bucket.packed()) for index in order if (bucket := self._bucket(rung, index)) is not None]
            for rung, order in enumerate(self._order)
        ]
        return msgspec.msgpack.encode((self.begins_s, self.ends_s, rungs))

    @classmethod
    def unpacked(cls, packed: bytes) -> Ladder:
        """Undo `packed`. Nothing can be taken in after it."""
        ladder = cls()
        ladder.begins_s, ladder.ends_s, rungs = msgspec.msgpack.decode(
            packed, type=tuple[float | None, float, list[list[tuple[int, bytes]]]]
        )
        for rung, kept in enumerate(rungs):
            ladder._packed[rung] = dict(kept)
            ladder._order[rung].extend(ladder._packed[rung])
        return ladder

    def _settle(self) -> None:
        pending, self._pending = self._pending, []
        parts: list[tuple[int, Bucket]] = []
        shift_s = self.shift_s
        for index, group in groupby(pending, key=lambda record: int((record.end_s + shift_s) // FINEST_S)):
            records = list(group)
            part = Bucket.of(records)
            self._follow(records)
            if self._waits:
                part.open = _sizes(part.end_s - np.fromiter(self._waits.values(), dtype=np.float64))
            last_s = np.fromiter(self._last_s.values(), dtype=np.float64)
            part.open_itl = _sizes(part.end_s - last_s[last_s < part.end_s])
            part.begin_s, part.end_s = part.begin_s + shift_s, part.end_s + shift_s
            parts.append((index, part))
        for rung in range(NUM_RUNGS):
            for index, part in parts:
                self._merge(rung, index, part)
            parts = [
                (index, _whole([part for _, part in group]))
                for index, group in groupby(parts, key=lambda part: part[0] // STEPS_UP)
            ]

    def _follow(self, records: list[StepRecord]) -> None:
        """Who waits for a token after these."""
        waits, last_s = self._waits, self._last_s
        for record in records:
            for arrival in record.arrivals:
                waits[arrival.number] = arrival.arrival_s
            for number, _ in record.ttft_s:
                waits.pop(number, None)
                last_s[number] = record.end_s
            for ended in (record.finishes, record.refusals):
                for gone in ended:
                    waits.pop(gone.number, None)
                    last_s.pop(gone.number, None)
        last_s.update(newest_deliveries(records, set(last_s)))

    def _merge(self, rung: int, index: int, part: Bucket) -> None:
        newest = self._newest[rung]
        if newest is None or newest[0] != index:
            packed, order = self._packed[rung], self._order[rung]
            if newest is not None:
                packed[newest[0]] = newest[1].packed()
            if index not in packed:
                order.append(index)
            newest = self._newest[rung] = index, self._bucket(rung, index) or Bucket()
            if len(order) > self._kept(rung):
                packed.pop(order.popleft(), None)
        newest[1].merge(part)

    def _bucket(self, rung: int, index: int) -> Bucket | None:
        newest = self._newest[rung]
        if newest is not None and newest[0] == index:
            return newest[1]
        packed = self._packed[rung].get(index)
        return None if packed is None else Bucket.unpacked(packed)

    def _kept(self, rung: int) -> int:
        return self.depth * (FINE_KEPT if rung < NUM_FINE else KEPT)

    def _reaches(self, rung: int, begin_s: float) -> bool:
        """Nothing of a rung has been forgotten from `begin_s` on."""
        order = self._order[rung]
        return len(order) < self._kept(rung) or order[0] * self.length_s(rung) <= begin_s

    def grid(self, begin_s: float, end_s: float, width: int) -> Grid:
        """At most `width` columns over a span, of the finest buckets that are still kept and not too many.

        A column begins at a multiple of its length, so that columns stay as they are while the span moves on.
        """
        if self._pending:
            self._settle()
        rung = 0
        while rung < NUM_RUNGS - 1 and not (
            (end_s - begin_s) / self.length_s(rung) <= KEPT - 1 and self._reaches(rung, begin_s)
        ):
            rung += 1
        return grid_of(rung, begin_s, end_s, width)

    def fill(self, grid: Grid) -> list[Bucket | None]:
        """The columns of a grid, oldest first, None where nothing ended."""
        if self._pending:
            self._settle()
        return [
            self._column(grid.rung, column * grid.per, grid.per)
            for column in range(grid.first, grid.first + grid.num)
        ]

    def _column(self, rung: int, first: int, num: int) -> Bucket | None:
        known = self._closed.get((rung, first, num), self)
        if not isinstance(known, Ladder):
            return known
        parts = [part for index in range(first, first + num) if (part := self._bucket(rung, index)) is not None]
        whole = _whole(parts) if parts else None
        if self._order[rung] and first + num <= self._order[rung][-1]:  # nothing is added to it any more
            if len(self._closed) >= MOST_CLOSED:
                del self._closed[next(iter(self._closed))]
            self._closed[rung, first, num] = whole
        return whole

    @staticmethod
    def length_s(rung: int) -> float:
        return float(FINEST_S * STEPS_UP**rung)


def grid_of(rung: int, begin_s: float, end_s: float, width: int) -> Grid:
    """At most `width` columns over a span, of buckets of a rung."""
    unit_s = Ladder.length_s(rung)
    first, last = int(begin_s // unit_s), int(end_s // unit_s)
    # One more than fits would be needed where the span begins within a column.
    per = max(1, -(-(last - first + 1) // max(1, width - 1)))
    num = min(width, last // per + 1 - first // per)
    return Grid(rung, per, last // per + 1 - num, num)


def _whole(parts: list[Bucket]) -> Bucket:
    """The only one, or all in one."""
    if len(parts) == 1:
        return parts[0]
    whole = Bucket()
    for part in parts:
        whole.merge(part)
    return whole


def _sizes(seconds: npt.NDArray[np.floating], times: npt.NDArray[np.int64] | None = None) -> Sizes:
    """How many of each size, sixteen sizes for each doubling; each of `seconds` so many `times`, else once."""
    if not len(seconds):
        return {}
    if times is None and len(seconds) <= _FEW and seconds.dtype == np.float64:  # numpy takes ten times as long
        return dict(Counter([_size(duration_s) for duration_s in seconds.tolist()]))
    sizes = np.rint(np.log2(np.maximum(seconds, _LEAST_S) / _LEAST_S) * _BINS_PER_OCTAVE).astype(np.int64)
    counts = np.bincount(sizes, weights=times)
    found = np.flatnonzero(counts)
    return dict(zip(found.tolist(), counts[found].astype(np.int64).tolist(), strict=True))


def _size(duration_s: float) -> int:
    return round(math.log2(max(duration_s, _LEAST_S) / _LEAST_S) * _BINS_PER_OCTAVE)


def quantile(sizes: Sizes, share: float) -> float | None:
    """The duration in seconds that this share of them does not exceed, to 5 %; None of none."""
    left = share * sum(sizes.values())
    for size in sorted(sizes):
        left -= sizes[size]
        if left <= 0:
            return _seconds(size)
    return None


def _seconds(size: int) -> float:
    return _LEAST_S * float(2 ** (size / _BINS_PER_OCTAVE))
