"""What a replay reads: any file of records that can be asked for a step, a keyframe, a second, a mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from schedtop.engine.contract.latencies.samples import Samples
from schedtop.engine.contract.telemetry import Header, Snapshot, StepRecord, TextDelta

MARKS = ("preemptions", "loops", "knobs", "refusals", "aborts")
"""What `find` finds and the timeline counts."""


class SecondOfSamples(Protocol):
    """Latencies of one second of the engine's clock."""

    @property
    def ttft(self) -> Samples: ...

    @property
    def itl(self) -> Samples: ...


class ChunkMarks(Protocol):
    """How often each of `MARKS` happens in a stretch of records, and its longest latencies (0: none)."""

    @property
    def max_ttft_s(self) -> float: ...

    @property
    def max_itl_s(self) -> float: ...


class Missing(Protocol):
    """Records that damage costs."""

    @property
    def index(self) -> int:
        """Of the first record after them: a keyframe stands there."""
        ...


class RecordedSource(Protocol):
    """A recording. Indices count its records from 0. Methods raise an exception with one clear line on damage."""

    path: str
    truncated: str | None
    num_records: int
    num_steps: int
    header: Header

    @property
    def gaps(self) -> Sequence[Missing]: ...

    @property
    def start_s(self) -> float: ...

    @property
    def end_s(self) -> float: ...

    def record(self, index: int) -> StepRecord: ...

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[StepRecord]: ...

    def keyframe_before(self, index: int) -> tuple[Snapshot, int]:
        """The newest snapshot that record `index` follows, and the index of the first record after it."""
        ...

    def seconds(self, first: int, last: int) -> Mapping[int, SecondOfSamples]: ...

    def texts(self, start: int = 0) -> Iterator[tuple[int, TextDelta]]: ...

    def index_at(self, clock_s: float) -> int | None:
        """The first record that ends at or after `clock_s`; None if all end before."""
        ...

    def index_of_step(self, step: int) -> int | None: ...

    def find(self, mark: Any, start: int, *, forward: bool = True) -> int | None:
        """The nearest record after (or before) `start` that has one of `MARKS`."""
        ...

    def find_slow(self, kind: str, limit_s: float, start: int, *, forward: bool = True) -> int | None:
        """The nearest record after (or before) `start` with a `ttft` or `itl` above `limit_s`."""
        ...

    def timeline(self) -> Sequence[tuple[int, int, float, ChunkMarks]]:
        """For every chunk its first index, number of records, end on the engine's clock, and marks."""
        ...
