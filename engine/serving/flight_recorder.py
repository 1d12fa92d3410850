"""The last minutes of an engine, kept in memory for consoles that attach later, and on disk for after a crash."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace
from schedtop.engine.channel.protocol import Sink, encode, frame
from schedtop.engine.contract.telemetry import Snapshot, StepRecord
from schedtop.engine.serving.flight_files import FlightFiles

KEEP_S = 600.0
"""On the engine's clock."""
KEEP_BYTES = 16 << 20
SEGMENT_S = 15.0
SEGMENT_BYTES = KEEP_BYTES // 16
MOST_SNAPSHOT_BYTES = KEEP_BYTES // 4
"""A segment's records take as much as its snapshot, or this much: a long queue's is costly to make and to keep."""


class Segment:
    """A snapshot and the records after it, as they are sent."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.begin_s = snapshot.clock_s
        self.snapshot = b"".join(frame(encode(snapshot)))
        self.records: list[bytes] = []
        self.record_bytes = 0

    def add(self, encoded: bytes) -> None:
        for chunk in frame(encoded):
            self.records.append(chunk)
            self.record_bytes += len(chunk)

    @property
    def num_bytes(self) -> int:
        return len(self.snapshot) + self.record_bytes

    def is_full(self, now_s: float) -> bool:
        """True once the next record belongs to another segment."""
        if self.record_bytes < min(len(self.snapshot), MOST_SNAPSHOT_BYTES):
            return False
        return now_s - self.begin_s >= SEGMENT_S or self.record_bytes >= SEGMENT_BYTES

    def close(self) -> None:
        """No record follows: one piece is quicker to send than thousands."""
        self.records = [b"".join(self.records)]


class FlightRecorder(Sink):
    """Keeps whole segments, the oldest forgotten first: at most `KEEP_S` and `KEEP_BYTES`, without output text.

    With `files` they are on disk, too, there without prompts; `notice` is told if the disk fails.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        files: FlightFiles | None = None,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._snapshot, self._files, self._notice = snapshot, files, notice
        self._segments: deque[Segment] = deque()
        self._begin()

    def _begin(self) -> None:
        snapshot = self._snapshot()
        self._segments.append(Segment(snapshot))
        if self._files is not None:
            self._files.begin(encode(_without_prompts(snapshot)))

    def write(self, record: StepRecord, encoded: bytes) -> None:
        newest = self._segments[-1]
        newest.add(encoded)
        if self._files is not None:
            self._write_file(self._files, record, encoded)
        if newest.is_full(record.end_s):
            newest.close()
            self._begin()
            self._forget(record.end_s)

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
        segments = self._segments
        while len(segments) > 1 and (
            segments[1].begin_s < now_s - KEEP_S or sum(part.num_bytes for part in segments) > KEEP_BYTES
        ):
            segments.popleft()
            if self._files is not None:
                self._files.forget()

    def recent(self) -> Sequence[bytes]:
        """The frames of a snapshot and all records since, in few pieces."""
        return [self._segments[0].snapshot, *(chunk for part in self._segments for chunk in part.records)]


def _without_prompts(snapshot: Snapshot) -> Snapshot:
    if not any(state.arrival.preview for state in snapshot.requests):
        return snapshot
    states = [replace(state, arrival=replace(state.arrival, preview="")) for state in snapshot.requests]
    return replace(snapshot, requests=states)
