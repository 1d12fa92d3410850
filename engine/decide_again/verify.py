"""Verifies that this scheduler decides what a recording says, step by step, down to block ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.reading import block_changes
from schedtop.engine.contract.telemetry import BlockClass, Snapshot, StepRecord
from schedtop.engine.decide_again.divergence import Part, first_difference
from schedtop.engine.decide_again.late_start import first_decidable
from schedtop.engine.decide_again.recorded_inputs import Driver, with_following
from schedtop.engine.decide_again.server_log import ServerDriver, driver_of
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.recording.reader import Recording


class StepDifference(msgspec.Struct, frozen=True):
    """The first step decided differently here. In each part, `base` is recorded and `variant` is decided."""

    step: int
    clock_s: float
    parts: list[Part]

    def __str__(self) -> str:
        parts = "; ".join(f"{part.field}: recorded {part.base}, decided {part.variant}" for part in self.parts)
        return f"step {self.step}: {parts}"


class RecordingVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of verifying a recording. `difference` None: all `steps` are decided the same.

    `first_step` is how many steps were skipped before the first one that could be verified.
    `submitted` is the sum of `finished`, `kv_capacity`, `refused`, `aborted`, `failed`, `running` and `waiting`.
    """

    name: str
    equal: bool
    steps: int
    preemptions: int
    admissions: int
    scheduled_tokens: int
    submitted: int
    finished: int
    kv_capacity: int
    refused: int
    aborted: int
    failed: int
    running: int
    waiting: int
    truncated: str | None
    difference: StepDifference | None
    first_step: int = 0


def verify_recording(
    recording: Recording, on_progress: Callable[[int], None] = lambda index: None
) -> RecordingVerdict:
    """Feed this scheduler a recording's arrivals, knob changes and results, and compare every decision.

    `on_progress` gets the number of records done. Raises `RecordingError` where a recording begins later than its
    engine, unless it is of a server (see `first_decidable`), or holds what no scheduler can be given.
    """
    driver = driver_of(recording.header, recording.path)
    skipped, snapshot = _begin(recording, driver)
    counts = {"steps": 0, "preemptions": 0, "admissions": 0, "tokens": 0}
    ids: dict[int, str] = {}
    difference: StepDifference | None = None
    classes = _Classes(driver.engine.scheduler.config.num_blocks, snapshot.block_classes)
    for index, (record, following) in enumerate(
        with_following(recording.records(skipped), driver.num_ahead), skipped
    ):
        if index % 64 == 0:
            on_progress(index)
        ids.update((arrival.number, arrival.id) for arrival in record.arrivals)
        difference = _play(driver, classes, record, following, ids)
        if difference is not None:
            if driver.doubt:
                raise RecordingError(
                    f"{recording.path} cannot be decided again from step {record.step} on: {driver.doubt}"
                )
            break
        counts["steps"] += record.executed
        counts["preemptions"] += len(record.preemptions)
        counts["admissions"] += len(record.admissions)
        counts["tokens"] += record.scheduled_tokens
    state, totals = driver.engine.scheduler.state, driver.engine.observer.totals()
    return RecordingVerdict(
        name=recording.path,
        equal=difference is None,
        steps=counts["steps"],
        preemptions=counts["preemptions"],
        admissions=counts["admissions"],
        scheduled_tokens=counts["tokens"],
        submitted=totals.submitted,
        finished=totals.finished,
        kv_capacity=totals.kv_capacity,
        refused=totals.refused,
        aborted=totals.aborted,
        failed=totals.failed,
        running=state.table.size,
        waiting=len(state.requests) - state.table.size,
        truncated=recording.truncated,
        first_step=snapshot.step,
        difference=difference,
    )


def _begin(recording: Recording, driver: Driver) -> tuple[int, Snapshot]:
    """How many records are skipped, and the state before the first verified one, which `driver` has adopted."""
    snapshot, first = recording.keyframe_before(0)
    if not (snapshot.step or snapshot.requests or first):
        return 0, snapshot
    if not isinstance(driver, ServerDriver):
        raise RecordingError(
            f"{recording.path} begins at step {snapshot.step} of its engine: only a recording from the start can be"
            " decided again"
        )
    skipped, snapshot = first_decidable(recording.header, recording.path, snapshot, recording.records())
    driver.begin_at(snapshot, recording.records(skipped))
    return skipped, snapshot


class _Classes:
    """The class of every block in both runs. Which blocks a record names is not a decision, what they are is."""

    def __init__(self, num_blocks: int, first: bytes) -> None:
        known = np.frombuffer(first, dtype=np.uint8) if first else np.zeros(num_blocks, dtype=np.uint8)
        self.recorded, self.decided = known.copy(), known.copy()

    def part(self, recorded: StepRecord, decided: StepRecord) -> Part | None:
        """Take in a step of both runs; returns the first block whose class differs."""
        named = []
        for classes, record in ((self.recorded, recorded), (self.decided, decided)):
            blocks, values = block_changes(record)
            classes[blocks] = values
            named.append(blocks)
        touched = np.union1d(*named)
        wrong = touched[self.recorded[touched] != self.decided[touched]]
        if not len(wrong):
            return None
        sides = (BlockClass(int(side[wrong[0]])).name.lower() for side in (self.recorded, self.decided))
        return Part(f"block {wrong[0]}", *sides)


def _play(
    driver: Driver, classes: _Classes, record: StepRecord, following: Sequence[StepRecord], ids: dict[int, str]
) -> StepDifference | None:
    try:
        decided = driver.play(record, following)
        moved = None if decided is None else classes.part(record, decided)
    except (AssertionError, IndexError, KeyError, ValueError) as error:
        raise RecordingError(
            f"{driver.path}: step {record.step} holds what no scheduler can do ({type(error).__name__}: {error})"
        ) from None
    if decided is None:
        return StepDifference(record.step, record.start_s, [Part("step", "ran", "nothing to run")])
    found = compare(record, decided, ids)
    return found or (None if moved is None else StepDifference(record.step, record.start_s, [moved]))


def compare(recorded: StepRecord, decided: StepRecord, ids: dict[int, str]) -> StepDifference | None:
    """The decisions in which two records differ, most telling first; device times are not decisions."""
    found = first_difference(recorded, decided, ids)
    parts = list(found.parts) if found is not None else []
    if not parts:
        parts = [part for part in (_part(name, recorded, decided) for name in _EXACT) if part is not None]
    return StepDifference(recorded.step, recorded.start_s, parts) if parts else None


_EXACT = (
    "admissions",
    "preemptions",
    "refusals",
    "finishes",
    "rows",
    "grown",
    "grown_blocks",
    "blocks",
    "running",
    "waiting",
    "head",
    "token_budget",
    "input_budget",
    "recomputed_tokens",
    "host_blocks",
    "paused",
)
"""Fields that must be the same to the last bit: equal decisions leave no room."""


def _part(name: str, recorded: StepRecord, decided: StepRecord) -> Part | None:
    """One field, if it differs."""
    left, right = getattr(recorded, name), getattr(decided, name)
    if left == right:
        return None
    return Part(name.replace("_", " "), *_texts(left, right))


def _texts(left: Any, right: Any) -> tuple[str, str]:
    """Both sides from the first item that differs."""
    if isinstance(left, bytes):
        left, right = (np.frombuffer(side, dtype=np.int32).tolist() for side in (left, right))
    if isinstance(left, list | tuple):
        place = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
        place = min(len(left), len(right)) if place is None else place
        left, right = (side[place] if place < len(side) else "nothing" for side in (left, right))
    if isinstance(left, msgspec.Struct) and type(left) is type(right):
        names = [name for name in left.__struct_fields__ if getattr(left, name) != getattr(right, name)]
        left, right = (", ".join(f"{name}={getattr(side, name)}" for name in names) for side in (left, right))
    return str(left), str(right)
