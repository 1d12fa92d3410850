"""Latency over a window: exact percentiles of weighted samples, kept in one-second buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.latencies.samples import EMPTY, KINDS, Samples, merge, of_records
from schedtop.engine.contract.telemetry import ROW_FIELDS, StepRecord, Totals

BUCKET_S = 1.0

_KEEP_BUCKETS = 3600
_NEVER = np.iinfo(np.int64).min
_USUAL_BYTES = 240
"""Of a second of a moderate load."""


def packed(samples: Samples) -> tuple[bytes, bytes]:
    """Values and counts, each in as few bytes as they need: an hour's worth is kept."""
    return _narrow(samples.values), _narrow(samples.counts)


def _narrow(numbers: npt.NDArray[np.int64]) -> bytes:
    """The width that holds the largest, and the numbers in that width."""
    most = int(numbers.max()) if len(numbers) else 0
    width = next(width for width in (1, 2, 4, 8) if most < 1 << 8 * width)
    return bytes([width]) + numbers.astype(f"u{width}").tobytes()


def unpacked(values: bytes, counts: bytes) -> Samples:
    """Undo `packed`."""
    return Samples(_widened(values), _widened(counts))


def _widened(narrow: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(narrow, dtype=f"u{narrow[0]}", offset=1).astype(np.int64)


def unserved(records: Iterable[StepRecord]) -> tuple[int, int]:
    """Over the steps of some records, the running requests that got no token, and all running ones."""
    columns = [(record.rows, len(record.rows) // len(ROW_FIELDS)) for record in records]
    tokens = np.frombuffer(b"".join([rows[size : 2 * size] for rows, size in columns]), dtype=np.int32)
    return len(tokens) - int(np.count_nonzero(tokens)), len(tokens)


class StepReading(msgspec.Struct, array_like=True, frozen=True):
    """The running totals at the end of one step, and the longest wait in its queue; they outlive its record."""

    end_s: float
    step: int
    totals: Totals
    oldest_wait_s: float | None

    @classmethod
    def of(cls, record: StepRecord) -> StepReading:
        return cls(record.end_s, record.step, record.totals, record.oldest_wait_s)


class PastSecond(msgspec.Struct, array_like=True, frozen=True):
    """A second that is over: `packed` samples of each of `KINDS`, what `unserved` says, the first record's reading."""

    samples: tuple[tuple[bytes, bytes], ...]
    unserved: tuple[int, int]
    first: StepReading


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PastSecond).decode


class LatencyBuckets:
    """Samples by second of the engine's clock, from `begins_s` on, None before there is any.

    Records are taken in order; the newest second stays open.
    """

    def __init__(self) -> None:
        # Room for an hour from the start: what it takes then it takes at once.
        self._closed: list[bytes] = [bytes(_USUAL_BYTES) for _ in range(_KEEP_BUCKETS)]
        self._closed_bucket = np.full(_KEEP_BUCKETS, _NEVER, dtype=np.int64)
        self._open = dict.fromkeys(KINDS, EMPTY)
        self._open_unserved = (0, 0)
        self._open_first: StepReading | None = None
        self._open_bucket = -1
        self.begins_s: float | None = None
        self._turns_s = -math.inf
        self._pending: list[StepRecord] = []

    def take(self, record: StepRecord) -> None:
        if record.end_s >= self._turns_s:
            if self.begins_s is None:
                self.begins_s = record.start_s
            self._turn(record)
        self._pending.append(record)

    def _turn(self, record: StepRecord) -> None:
        """Open the second of a record."""
        self._close()
        bucket = int(record.end_s // BUCKET_S)
        self._open_bucket, self._turns_s = bucket, (bucket + 1) * BUCKET_S
        self._open_first = StepReading.of(record)

    def _close(self) -> None:
        self._settle()
        if self._open_first is not None:
            samples = tuple(packed(self._open[kind]) for kind in KINDS)
            place = self._open_bucket % _KEEP_BUCKETS
            self._closed_bucket[place] = self._open_bucket
            self._closed[place] = _encode(PastSecond(samples, self._open_unserved, self._open_first))
        self._open, self._open_unserved = dict.fromkeys(KINDS, EMPTY), (0, 0)

    def _settle(self) -> None:
        """Work in what was taken since the last look: many records at once cost little more than one."""
        if self._pending:
            new = of_records(self._pending)
            self._open = {kind: merge([self._open[kind], new[kind]]) for kind in KINDS}
            before, found = self._open_unserved, unserved(self._pending)
            self._open_unserved = (before[0] + found[0], before[1] + found[1])
            self._pending = []

    def bucket(self, index: int) -> dict[str, Samples] | None:
        """Samples of one second; None if nothing was recorded in it."""
        if index == self._open_bucket:
            self._settle()
            return self._open
        second = self._second(index)
        if second is None:
            return None
        return {kind: unpacked(*part) for kind, part in zip(KINDS, second.samples, strict=True)}

    def _second(self, index: int) -> PastSecond | None:
        """One that is over."""
        return _decode(self._closed[index % _KEEP_BUCKETS]) if self._is_closed(index) else None

    def _is_closed(self, index: int) -> bool:
        return bool(self._closed_bucket[index % _KEEP_BUCKETS] == index)

    def unserved(self, first: int, last: int) -> tuple[int, int]:
        """Over the steps of these seconds, the running requests that got no token, and all running ones."""
        self._settle()
        found = [second.unserved for index in range(first, last + 1) if (second := self._second(index))]
        if first <= self._open_bucket <= last:
            found.append(self._open_unserved)
        return sum(starved for starved, _ in found), sum(running for _, running in found)

    def readings(self, first: int, last: int) -> list[StepReading]:
        """The running totals at the first record of the first and of the last of these seconds that has one."""
        known = [index for index in range(first, last + 1) if self._is_closed(index) or index == self._open_bucket]
        return [found for index in dict.fromkeys(known[:1] + known[-1:]) if (found := self._reading(index))]

    def _reading(self, index: int) -> StepReading | None:
        """At the first record of one second."""
        if index == self._open_bucket:
            return self._open_first
        second = self._second(index)
        return None if second is None else second.first

    def columns(
        self, kind: str, end_s: float, window_s: float, num_columns: int, newest: dict[str, Samples] | None = None
    ) -> list[Samples]:
        """The window that ends with the second of `end_s`, oldest first, in at most `num_columns` parts.

        Parts begin at multiples of their length, so that they do not change while the window moves on; the first
        may be cut. `newest` stands in for the last second, where only a part of it counts.
        """
        first, last, per = _span(end_s, window_s, num_columns)
        parts = []
        for group in range(first // per, last // per + 1):
            span = range(max(first, group * per), min(last, group * per + per - 1) + 1)
            found = [newest if index == last and newest is not None else self.bucket(index) for index in span]
            parts.append(merge([bucket[kind] for bucket in found if bucket is not None]))
        return parts


def column_of(at_s: float, end_s: float, window_s: float, num_columns: int) -> int | None:
    """Which of `LatencyBuckets.columns` holds a moment; None if it lies outside the window."""
    first, last, per = _span(end_s, window_s, num_columns)
    index = int(at_s // BUCKET_S)
    return index // per - first // per if first <= index <= last else None


def last_column_s(end_s: float, window_s: float, num_columns: int) -> float:
    """Seconds in the last of `LatencyBuckets.columns`."""
    first, last, per = _span(end_s, window_s, num_columns)
    return (last - max(first, last // per * per) + 1) * BUCKET_S


def _span(end_s: float, window_s: float, num_columns: int) -> tuple[int, int, int]:
    """First and last second of a window, and seconds per column."""
    num_buckets = max(1, round(window_s / BUCKET_S))
    last = int(end_s // BUCKET_S)
    per = max(1, -(-num_buckets // max(1, num_columns - 1))) if num_buckets > num_columns else 1
    return last - num_buckets + 1, last, per
