"""Reads a recording: any step, any range, and the marks to jump to.

Damage costs everything up to the next keyframe.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.telemetry import (
    OLDEST_RECORDED,
    PROTOCOL,
    FinishReason,
    Header,
    Snapshot,
    StepRecord,
    TextDelta,
)
from schedtop.engine.recording.batch import MAX_RECORDS, decode_batch
from schedtop.engine.recording.blocks import Tables, tables_of
from schedtop.engine.recording.frames import (
    HEAD_BYTES,
    MARK_BYTES,
    Frame,
    FrameError,
    FrameKind,
    Marks,
    RecordingError,
    check_mark,
    find_frames,
    moved_down,
    parse_head,
    read_payload,
)
from schedtop.engine.recording.keyframes import decode_keyframe
from schedtop.engine.recording.seconds import SecondSamples, decode_seconds, sample, second_of

CHECKED_BYTES = 256 << 20
"""Files up to this size are checked whole when opened (a fraction of a second), larger ones as they are read."""

_CACHED_RECORDS = 2048
_UNREADABLE = (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError, MemoryError)


class Mark(StrEnum):
    """Marks to jump to."""

    PREEMPTION = "preemptions"
    LOOP = "loops"
    KNOB = "knobs"
    REFUSAL = "refusals"
    ABORT = "aborts"
    KV_CAPACITY = "kv_capacity"


_HAS_MARK: dict[Mark, Callable[[StepRecord], bool]] = {
    Mark.PREEMPTION: lambda record: bool(record.preemptions),
    Mark.LOOP: lambda record: any(preemption.loop for preemption in record.preemptions),
    Mark.KNOB: lambda record: bool(record.knobs),
    Mark.REFUSAL: lambda record: bool(record.refusals),
    Mark.ABORT: lambda record: any(finish.reason == FinishReason.ABORT for finish in record.finishes),
    Mark.KV_CAPACITY: lambda record: any(finish.reason == FinishReason.KV_CAPACITY for finish in record.finishes),
}


@dataclass(frozen=True, slots=True)
class DamagedGap:
    """Records that damage costs. `index` is that of the first one after it; the bytes are where the damage begins and
    where the next keyframe does. `last_step` is the last one before, `next_step` the one that the keyframe follows."""

    index: int
    num_missing: int
    last_step: int
    next_step: int
    at_byte: int
    to_byte: int

    @property
    def words(self) -> str:
        """One clause for the operator."""
        where = f"damaged from byte {self.at_byte} to {self.to_byte}"
        if self.next_step <= self.last_step:
            return f"{where}: no step is missing"
        return f"{where}: steps {self.last_step + 1} to {self.next_step} are missing"


class _Chunk(NamedTuple):
    """Decoded records, and the block tables after the last of them."""

    records: list[StepRecord]
    tables: Tables


class Recording:
    """A recording opened for reading. Indices count records from 0, whatever their `seq`.

    `truncated` is None for a whole file, otherwise one line that says what is missing. Raises `RecordingError` for
    a file that is not a recording or of which nothing can be read; methods raise it when they come upon damage in a
    file too large to have been checked at the start (`check` forces or forbids that check).

    Behind damage reading continues at the next keyframe, unless `read_on` is False: `gaps` says where records are
    missing, and indices count those that are there.
    """

    def __init__(self, path: str | Path, *, check: bool | None = None, read_on: bool = True) -> None:
        self.path = str(path)
        self.gaps: list[DamagedGap] = []
        self._read_on = read_on
        self._num_missing = 0
        self.truncated: str | None = None
        self.num_records = 0
        self._chunks: list[Frame] = []
        self._starts: list[int] = []
        self._keyframes: list[Frame] = []
        self._seconds: list[Frame] = []
        self._texts: list[Frame] = []
        self._cache: OrderedDict[int, _Chunk] = OrderedDict()
        self._num_cached = 0
        self._closed_whole = False
        if odd := odd_file(Path(path)):
            raise RecordingError(odd)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RecordingError(f"cannot read {self.path}: {error.strerror or error}") from None
        try:
            self._open(check)
        except OSError as error:
            self.close()
            raise RecordingError(f"cannot read {self.path}: {error.strerror or error}") from None
        except RecordingError:
            self.close()
            raise

    # Opening

    def _open(self, check: bool | None) -> None:
        size = os.fstat(self._fd).st_size
        check_mark(os.pread(self._fd, MARK_BYTES, 0), self.path)
        check = size <= CHECKED_BYTES if check is None else check
        end, problem = self._scan(MARK_BYTES, size, check)
        while self._read_on and end < size and not self._closed_whole and self._bridge(end, size):
            end, problem = self._scan(self.gaps[-1].to_byte, size, check)
        if not hasattr(self, "header"):
            raise RecordingError(f"{self.path} is damaged in its first bytes: nothing can be read")
        if not self._keyframes:
            raise RecordingError(f"{self.path} is cut off before its first step: nothing can be read")
        self.num_steps = self._last_step()
        gaps = [gap.words for gap in self.gaps]
        end_words = self._describe_end(size - end, problem)
        self.truncated = "; ".join([*gaps, *([end_words] if end_words else [])]) or None

    def _bridge(self, at: int, size: int) -> bool:
        """Find the keyframe after the damage at byte `at`, and what is missing before it; False if there is none."""
        if not self._keyframes:
            return False
        for start in find_frames(self._fd, at + 1, size, FrameKind.KEYFRAME):
            try:
                frame = Frame(start + HEAD_BYTES, parse_head(os.pread(self._fd, HEAD_BYTES, start)))
                snapshot = decode_keyframe(read_payload(self._fd, frame))
            except _UNREADABLE:
                continue
            missing = frame.head.span.first - self._num_missing - self.num_records
            if missing < 0:
                continue
            self._num_missing += missing
            self.gaps.append(DamagedGap(self.num_records, missing, self._last_step(), snapshot.step, at, start))
            return True
        return False

    def _scan(self, at: int, size: int, check: bool) -> tuple[int, str | None]:
        """Index the frames from byte `at` up to the first bad one; where the good ones end, and what is wrong there."""
        while at < size and not self._closed_whole:
            try:
                frame = Frame(at + HEAD_BYTES, parse_head(os.pread(self._fd, HEAD_BYTES, at)))
                self._admit(frame, size, check)
            except FrameError as error:
                return at, str(error)
            self._index(frame if not self._num_missing else moved_down(frame, self._num_missing))
            at = frame.payload_at + frame.head.payload_bytes
        return at, None

    def _admit(self, frame: Frame, size: int, check: bool) -> None:
        """Raises `FrameError` unless `frame` may follow what was read so far."""
        head, first = frame.head, frame.payload_at == MARK_BYTES + HEAD_BYTES
        if frame.payload_at + head.payload_bytes > size:
            raise FrameError("cut off")
        fits = (head.kind is FrameKind.HEADER) == first and head.span.first == self.num_records + self._num_missing
        if not fits or (head.kind is FrameKind.STEPS) != (0 < head.span.num <= MAX_RECORDS):
            raise FrameError("damaged")
        if head.kind is FrameKind.STEPS and not self._keyframes:
            raise FrameError("damaged")
        if check or first:
            payload = read_payload(self._fd, frame)
            if first:
                self._read_header(payload)

    def _read_header(self, payload: bytes) -> None:
        try:
            fields = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
            protocol = msgspec.msgpack.decode(fields[1])
            if protocol not in range(OLDEST_RECORDED, PROTOCOL + 1):
                raise RecordingError(
                    f"{self.path} was recorded with protocol {protocol!s:.20}, this schedtop reads {PROTOCOL}"
                    f" (and from {OLDEST_RECORDED} on)"
                )
            self.header: Header = msgspec.msgpack.decode(payload, type=Header)
        except _UNREADABLE:
            raise RecordingError(f"{self.path} has an unreadable header: nothing can be read") from None
        if self.header.block_size < 1:
            raise RecordingError(f"{self.path} has an unreadable header: nothing can be read")

    def _index(self, frame: Frame) -> None:
        match frame.head.kind:
            case FrameKind.STEPS:
                self._chunks.append(frame)
                self._starts.append(frame.head.span.first)
                self.num_records += frame.head.span.num
            case FrameKind.KEYFRAME:
                self._keyframes.append(frame)
            case FrameKind.SECONDS:
                self._seconds.append(frame)
            case FrameKind.TEXTS:
                self._texts.append(frame)
            case FrameKind.END:
                self._closed_whole = True

    def _last_step(self) -> int:
        return self.record(self.num_records - 1).step if self.num_records else self.keyframe_before(0)[0].step

    def _describe_end(self, num_left: int, problem: str | None) -> str | None:
        last = f"the last good step is {self.num_steps}" if self.num_records else "no step is left"
        if num_left:
            how = {None: "follow its end", "cut off": "at its end are cut off in the middle"}.get(
                problem, "cannot be read: the file is damaged there"
            )
            return f"{num_left} bytes {how}; {last}"
        return None if self._closed_whole else f"the recording was never closed; {last}"

    # Reading

    @property
    def start_s(self) -> float:
        """Engine time of the first record's start; 0 if there is none."""
        return self._chunks[0].head.span.start_s if self._chunks else 0.0

    @property
    def end_s(self) -> float:
        """Engine time of the last record's end; 0 if there is none."""
        return self._chunks[-1].head.span.end_s if self._chunks else 0.0

    def record(self, index: int) -> StepRecord:
        """Record `index`. Raises `IndexError` beyond the file."""
        if not 0 <= index < self.num_records:
            raise IndexError(f"record {index} of {self.num_records}")
        chunk = self._chunk_of(index)
        return self._records_of(chunk)[index - self._starts[chunk]]

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[StepRecord]:
        """Records `start` to `stop` (exclusive; None: the end), a chunk in memory at a time."""
        stop = self.num_records if stop is None else min(stop, self.num_records)
        if start >= stop:
            return
        for chunk in range(self._chunk_of(start), len(self._chunks)):
            first = self._starts[chunk]
            if first >= stop:
                return
            yield from self._records_of(chunk)[max(0, start - first) : stop - first]

    def keyframe_before(self, index: int) -> tuple[Snapshot, int]:
        """The newest snapshot that record `index` follows, and the index of the first record after it.

        The snapshot's requests have no `prefix_keys`: those are in their `Arrival` records.
        """
        place = bisect_right(self._keyframes, index, key=lambda frame: frame.head.span.first) - 1
        frame = self._keyframes[max(place, 0)]
        return self._decode(frame, decode_keyframe), frame.head.span.first

    def seconds(self, first: int, last: int) -> dict[int, SecondSamples]:
        """Latency samples of the seconds `first` to `last` (inclusive) of the engine's clock, all their steps
        counted; seconds without a step are absent."""
        found: dict[int, SecondSamples] = {}
        start = bisect_right(self._seconds, first - 1.0, key=lambda frame: frame.head.span.end_s)
        for frame in self._seconds[start:]:
            if frame.head.span.start_s > last:
                break
            found |= {item.second: item for item in self._decode(frame, decode_seconds)}
        closed = int(self._seconds[-1].head.span.end_s) if self._seconds else -1
        if last > closed:
            found |= self._open_seconds(closed)
        return {second: found[second] for second in sorted(found) if first <= second <= last}

    def _open_seconds(self, closed: int) -> dict[int, SecondSamples]:
        """Samples of the steps after the last second that was stored, from the steps themselves."""
        by_second: dict[int, list[StepRecord]] = {}
        for record in self.records(self.index_at(closed + 1.0) or 0):
            if second_of(record) > closed:
                by_second.setdefault(second_of(record), []).append(record)
        return {second: sample(second, records) for second, records in by_second.items()}

    def texts(self, start: int = 0) -> Iterator[tuple[int, TextDelta]]:
        """Kept output text from record `start` on, with the index of the record it came before."""
        place = max(0, bisect_right(self._texts, start, key=lambda frame: frame.head.span.first) - 1)
        decoder = msgspec.msgpack.Decoder(list[tuple[int, int, str]])
        for frame in self._texts[place:]:
            missing = sum(gap.num_missing for gap in self.gaps if gap.to_byte <= frame.payload_at)
            for index, number, text in self._decode(frame, decoder.decode):
                if index - missing >= start:
                    yield index - missing, TextDelta(number, text)

    # Finding

    def index_at(self, clock_s: float) -> int | None:
        """The first record that ends at or after `clock_s` on the engine's clock; None if all end before."""
        place = bisect_right(self._chunks, clock_s, key=lambda frame: frame.head.span.end_s)
        if place and self._chunks[place - 1].head.span.end_s == clock_s:
            place -= 1
        return self._search(place, lambda record: record.end_s >= clock_s)

    def index_of_step(self, step: int) -> int | None:
        """The first record of `step`, or of the next step there is; None beyond the last."""
        place = max(0, bisect_right(self._chunks, step - 1, key=lambda frame: frame.head.span.first_step) - 1)
        return self._search(place, lambda record: record.step >= step)

    def _search(self, place: int, matches: Callable[[StepRecord], bool]) -> int | None:
        for chunk in range(place, len(self._chunks)):
            for offset, record in enumerate(self._records_of(chunk)):
                if matches(record):
                    return self._starts[chunk] + offset
        return None

    def find(self, mark: Mark, start: int, *, forward: bool = True) -> int | None:
        """The nearest record after (or before) `start` that has `mark`; None if there is none."""
        counted = Mark.ABORT if mark == Mark.KV_CAPACITY else mark
        return self._find(start, forward, lambda marks: bool(getattr(marks, counted)), _HAS_MARK[mark])

    def find_slow(self, kind: str, limit_s: float, start: int, *, forward: bool = True) -> int | None:
        """The nearest record after (or before) `start` with a `ttft` or `itl` above `limit_s`."""
        if kind == "ttft":
            return self._find(
                start,
                forward,
                lambda marks: marks.max_ttft_s >= limit_s * (1 - 1e-6),
                lambda record: any(wait_s > limit_s for _, wait_s in record.ttft_s),
            )
        return self._find(
            start,
            forward,
            lambda marks: marks.max_itl_s >= limit_s * (1 - 1e-6),
            lambda record: max(memoryview(record.itl_s).cast("f"), default=0.0, key=_or_zero) > limit_s,
        )

    def _find(
        self, start: int, forward: bool, may: Callable[[Marks], bool], has: Callable[[StepRecord], bool]
    ) -> int | None:
        if not self._chunks:
            return None
        near = self._chunk_of(min(max(start, 0), self.num_records - 1))
        for chunk in range(near, len(self._chunks)) if forward else range(near, -1, -1):
            if not may(self._chunks[chunk].head.marks):
                continue
            first = self._starts[chunk]
            hits = [first + i for i, record in enumerate(self._records_of(chunk)) if has(record)]
            beyond = [i for i in hits if (i > start if forward else i < start)]
            if beyond:
                return beyond[0] if forward else beyond[-1]
        return None

    def timeline(self) -> list[tuple[int, int, float, Marks]]:
        """For every chunk its first index, number of records, end on the engine's clock, and marks."""
        return [
            (frame.head.span.first, frame.head.span.num, frame.head.span.end_s, frame.head.marks)
            for frame in self._chunks
        ]

    # Frames

    def _chunk_of(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _records_of(self, chunk: int) -> list[StepRecord]:
        """A chunk's records. Chunks build on the block tables before them, back to the segment's keyframe."""
        if chunk not in self._cache:
            tables, first = self._tables_before(chunk)
            for i in range(first, chunk + 1):
                tables = self._load(i, tables)
        self._cache.move_to_end(chunk)
        return self._cache[chunk].records

    def _tables_before(self, chunk: int) -> tuple[Tables, int]:
        """The nearest known block tables at the start of a chunk of the segment, and that chunk."""
        snapshot, index = self.keyframe_before(self._starts[chunk])
        segment = self._chunk_of(index)
        for i in range(chunk - 1, segment - 1, -1):
            if i in self._cache:
                return self._cache[i].tables, i + 1
        return tables_of(snapshot), segment

    def _load(self, chunk: int, before: Tables) -> Tables:
        frame, tables = self._chunks[chunk], dict(before)
        records = self._decode(frame, lambda raw: decode_batch(raw, self.header.block_size, tables))
        if len(records) != frame.head.span.num:
            raise self._damage(frame)
        self._cache[chunk] = _Chunk(records, tables)
        self._num_cached += len(records)
        while self._num_cached > _CACHED_RECORDS and len(self._cache) > 1:
            self._num_cached -= len(self._cache.popitem(last=False)[1].records)
        return tables

    def _decode(self, frame: Frame, decode: Callable[[bytes], Any]) -> Any:
        try:
            return decode(read_payload(self._fd, frame))
        except OSError as error:
            raise RecordingError(f"cannot read {self.path}: {error.strerror or error}") from None
        except _UNREADABLE:
            raise self._damage(frame) from None

    def _damage(self, frame: Frame) -> RecordingError:
        span = frame.head.span
        what = f"steps from {span.first_step} on" if span.num else f"a {frame.head.kind.name.lower()} frame"
        return RecordingError(f"{self.path} is damaged at byte {frame.payload_at}: {what} cannot be read")

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __len__(self) -> int:
        return self.num_records

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _or_zero(value: float) -> float:
    return value if value == value else 0.0
