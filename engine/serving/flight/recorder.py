"""The last minutes of an engine: in memory for consoles that attach later, on disk in case of a crash."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from schedtop.engine.channel.protocol import Sink, encode, frame
from schedtop.engine.contract.telemetry import Snapshot, StepRecord
from schedtop.engine.serving.flight.files import FlightFiles

KEEP_S = 600.0
"""Seconds on the engine's clock."""
KEEP_BYTES = 16 << 20
"""Of records, in memory allocated at the start: allocated on demand, it would grow for minutes."""
SEGMENT_S = 15.0
SEGMENT_BYTES = KEEP_BYTES // 16
MOST_SNAPSHOT_BYTES = KEEP_BYTES // 4
"""A segment's records take as much as its snapshot, or this much: a long queue's is costly to make and to keep."""


class Segment(NamedTuple):
    """An encoded snapshot, and where the records after it begin in the stream of all records."""

    begin_s: float
    snapshot: bytes
    begin: int


class FlightRecorder(Sink):
    """Keeps whole segments and drops the oldest first: at most `KEEP_S` and `KEEP_BYTES`, without output text.

    With `files` they are on disk, too, there without prompts; `notice` is called if the disk fails.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        files: FlightFiles | None = None,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._snapshot, self._files, self._notice = snapshot, files, notice
        self._segments: deque[Segment] = deque()
        self._held = bytearray(b"\xff") * KEEP_BYTES  # untouched memory is not resident yet
        self._end = 0
        self._begin()

    def _begin(self) -> None:
        snapshot = self._snapshot()
        self.newest_s = snapshot.clock_s
        self._segments.append(Segment(snapshot.clock_s, b"".join(frame(encode(snapshot))), self._end))
        if self._files is not None:
            self._files.begin(encode(_without_prompts(snapshot)))

    def write(self, record: StepRecord, encoded: bytes) -> None:
        self.newest_s = record.end_s
        for chunk in frame(encoded):
            self._keep(chunk)
        if self._files is not None:
            self._write_file(self._files, record, encoded)
        if self._is_full(record.end_s):
            self._begin()
        self._forget(record.end_s)

    def _is_full(self, now_s: float) -> bool:
        """True once the next record belongs to another segment."""
        newest = self._segments[-1]
        num_bytes = self._end - newest.begin
        if num_bytes < min(len(newest.snapshot), MOST_SNAPSHOT_BYTES):
            return False
        return now_s - newest.begin_s >= SEGMENT_S or num_bytes >= SEGMENT_BYTES

    def _keep(self, chunk: bytes) -> None:
        """Overwrite the oldest bytes. A chunk larger than the whole buffer is dropped and ends the segment."""
        size = len(self._held)
        place, first = self._end % size, size - self._end % size
        self._held[place : place + len(chunk)] = chunk[:first]
        self._held[: max(0, len(chunk) - first)] = chunk[first:][:size]
        self._end += len(chunk)

    def _write_file(self, files: FlightFiles, record: StepRecord, encoded: bytes) -> None:
        if files.error:
            self._files = None
            self._notice(f"flight recorder: {files.error}; the last minutes are kept in memory only")
            return
        if any(arrival.preview for arrival in record.arrivals):
            arrivals = tuple(replace(arrival, preview="") for arrival in record.arrivals)
            encoded = encode(replace(record, arrivals=arrivals))
        files.add(frame(encoded))

    def _forget(self, now_s: float) -> None:
        segments, oldest = self._segments, self._end - len(self._held)
        while len(segments) > 1 and (
            segments[0].begin < oldest
            or segments[1].begin_s < now_s - KEEP_S
            or sum(len(part.snapshot) for part in segments) > len(self._held)
        ):
            segments.popleft()
            if self._files is not None:
                self._files.forget()

    def recent(self) -> Sequence[bytes]:
        """The frames of a snapshot and all records since, in pieces of any length."""
        first, size = self._segments[0], len(self._held)
        begin, end = first.begin % size, self._end % size
        if self._end - first.begin <= end:
            return [first.snapshot, bytes(self._held[begin:end])]
        return [first.snapshot, bytes(self._held[begin:]), bytes(self._held[:end])]


def _without_prompts(snapshot: Snapshot) -> Snapshot:
    if not any(state.arrival.preview for state in snapshot.requests):
        return snapshot
    states = [replace(state, arrival=replace(state.arrival, preview="")) for state in snapshot.requests]
    return replace(snapshot, requests=states)
