"""The last minutes of an engine, kept in memory for consoles that attach later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from schedtop.engine.channel.protocol import Sink, encode, frame
from schedtop.engine.contract.telemetry import Snapshot, StepRecord

KEEP_S = 600.0
"""On the engine's clock."""
KEEP_BYTES = 16 << 20
SEGMENT_S = 15.0
SEGMENT_BYTES = KEEP_BYTES // 16


class Segment:
    """A snapshot and the records after it, as they are sent."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.begin_s = snapshot.clock_s
        self.snapshot = b"".join(frame(encode(snapshot)))
        self.records: list[bytes] = []
        self.num_bytes = len(self.snapshot)

    def add(self, encoded: bytes) -> None:
        for chunk in frame(encoded):
            self.records.append(chunk)
            self.num_bytes += len(chunk)

    def close(self) -> None:
        """No record follows: one piece is quicker to send than thousands."""
        self.records = [b"".join(self.records)]


class FlightRecorder(Sink):
    """Keeps whole segments, the oldest forgotten first: at most `KEEP_S` and `KEEP_BYTES`, without output text."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._segments = deque([Segment(snapshot())])

    def write(self, record: StepRecord, encoded: bytes) -> None:
        newest = self._segments[-1]
        newest.add(encoded)
        if record.end_s - newest.begin_s >= SEGMENT_S or newest.num_bytes >= SEGMENT_BYTES:
            newest.close()
            self._segments.append(Segment(self._snapshot()))
            self._forget(record.end_s)

    def _forget(self, now_s: float) -> None:
        segments = self._segments
        while len(segments) > 1 and (
            segments[1].begin_s < now_s - KEEP_S or sum(part.num_bytes for part in segments) > KEEP_BYTES
        ):
            segments.popleft()

    def recent(self) -> Sequence[bytes]:
        """The frames of a snapshot and all records since, in few pieces."""
        return [self._segments[0].snapshot, *(chunk for part in self._segments for chunk in part.records)]
