"""A vLLM server's recording as a log: schedules, results, arrivals and aborts in their own order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.reading import table_growth
from schedtop.engine.contract.telemetry import (
    ROW_FIELDS,
    Arrival,
    Finish,
    Head,
    Header,
    Limiter,
    Preemption,
    RowFlag,
    Snapshot,
    StepRecord,
)
from schedtop.engine.decide_again.host_log import HostDriver
from schedtop.engine.decide_again.late_start import take_up
from schedtop.engine.decide_again.recorded_inputs import VLLM, Driver
from schedtop.engine.decide_again.restore import config_at
from schedtop.engine.handoff.plan import StepPlan
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import PlannedStep
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.step.describe import growth
from schedtop.engine.step.observer import Observer


class ServerDriver(Driver):
    """This scheduler, fed with a server's log, where every note has its time on one clock.

    A step is planned at its `planned_s`, which may be before the results of the one before; an abort may come between
    a step's schedule and its results. The record of the first step planned after an event reports it.
    """

    def __init__(self, header: Header, path: str) -> None:
        super().__init__(header, path)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._places = count()
        self._newest_seq = 0
        self._ended: dict[int, Finish] = {}
        self._reported_ended: set[int] = set()
        self._late = False
        self._known_late: set[int] = set()
        self._fresh: set[int] = set()

    @property
    def doubt(self) -> str:
        config = self.engine.header.config
        if config.get("num_speculative_tokens") and "num_lookahead_tokens" not in config:
            return "an older hook did not tell whether the drafter has a cache of its own"
        return super().doubt

    def begin_at(self, snapshot: Snapshot, records: Iterable[StepRecord]) -> None:
        """Continue from `snapshot` instead of the server's start; `records` are those after it."""
        engine = self.engine
        engine.scheduler = Scheduler(config_at(engine.header, snapshot))
        engine.observer = Observer(engine.scheduler)
        engine.observer.begin_at(snapshot.step, snapshot.totals)
        take_up(engine.scheduler, snapshot, records, engine.header.block_size)
        engine.knobs.update(snapshot.knobs)
        engine.knobs_version = snapshot.knobs_version
        self._newest_seq = snapshot.seq
        self._late, self._known_late = True, {state.arrival.number for state in snapshot.requests}

    def play(self, record: StepRecord, following: Sequence[StepRecord]) -> StepRecord | None:
        for each in (record, *following):
            self._foresee(each)
        if not record.executed:
            return self._between(record)
        while self._due and self._due[0][0] < record.end_s:
            heapq.heappop(self._due)[2]()
        under_way = self.engine.scheduler.state.under_way
        if not under_way:
            return None
        batch = under_way[0]
        later = next((each for each in following if each.executed), None)
        self._set_results(record, later)
        self.clock.clock_s = self.clock.end_s = record.end_s
        decided = self.engine.apply_results()
        if decided is None:
            return None
        return self._as_reported(decided, record, batch.plan, batch.planned, last=later is None)

    def _between(self, record: StepRecord) -> StepRecord:
        while self._due and self._due[0][0] <= record.end_s:
            heapq.heappop(self._due)[2]()
        decided = self.engine.observer.idle_record(record.start_s, record.knobs_version, record.paused)
        changes: dict[str, Any] = {"head": record.head, "finishes": self._finishes(record, ())}
        if self._late:
            changes |= self._figures_of(record, decided, changes)
        return msgspec.structs.replace(decided, **changes)

    def _foresee(self, record: StepRecord) -> None:
        """Insert the events of a record, once each, where they belong in time."""
        if record.seq <= self._newest_seq:
            return
        self._newest_seq = record.seq
        for arrival in record.arrivals:
            self._at(arrival.arrival_s, partial(self._arrive, arrival))
        for finish in record.finishes:
            if finish.ended_s is not None:
                self._at(finish.ended_s, partial(self._end, finish.number, finish.ended_s))
        if record.executed:
            planned_s = record.start_s if record.planned_s is None else record.planned_s
            self._at(planned_s, partial(self._plan, record, planned_s))
        elif record.knobs:
            self._at(record.start_s, partial(self._turn_knobs, record))

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._places), act))

    def _arrive(self, arrival: Arrival) -> None:
        self._submit(arrival, None)

    def _end(self, number: int, at_s: float) -> None:
        scheduler = self.engine.scheduler
        prefill_tokens = scheduler.prefill_tokens(number)
        finish = scheduler.abort(number, at_s)
        if finish is not None:
            self.engine.observer.note_abort(finish, prefill_tokens)
            self._ended[number] = finish

    def _plan(self, record: StepRecord, planned_s: float) -> None:
        self._turn_knobs(record)
        if self._late:
            self._fresh = self._handed_out(record)
        self._learn_contents(record)
        self.clock.clock_s = planned_s
        state = self.engine.scheduler.state
        limits = state.limits
        if record.paused:  # a server's pause holds only the queue: no request fits under this cap
            state.limits = replace(limits, seq_cap=0)
        self.engine.plan_step()
        state.limits = limits

    def _handed_out(self, record: StepRecord) -> set[int]:
        """Blocks that the step fills again."""
        size = self.engine.header.block_size
        hits = {entry.number: entry.cached_tokens // size for entry in record.admissions}
        tables = table_growth(record.grown, record.grown_blocks)
        return {
            block for number, ids in tables for block in memoryview(ids).cast("i").tolist()[hits.get(number, 0) :]
        }

    def _learn(self, request: Request, group: int, place: int, block: int) -> None:
        """What was cached before the start is known from later hits."""
        kv = self.engine.scheduler.state.kv
        held = kv.pool.key_of(block) if self._late else None
        if held is not None and block not in self._fresh:
            kv.learn_key(request, group, place, held)
        else:
            super()._learn(request, group, place, block)

    def _as_reported(
        self, decided: StepRecord, record: StepRecord, plan: StepPlan, planned: PlannedStep, last: bool
    ) -> StepRecord:
        """The decided record; what a hook reports elsewhere or cannot know is taken from `record`."""
        # Older hooks left out what those got who have ended since.
        reported = self._reported_ended.difference(np.frombuffer(record.grown, dtype=np.int32)[::2].tolist())
        grown, grown_blocks, grown_groups = growth(planned, reported)
        settled = [finish for finish in decided.finishes if finish.number not in self._ended]
        changes: dict[str, Any] = {
            "head": _as_seen(decided.head, record.head),
            "finishes": self._finishes(record, settled),
            "grown": grown,
            "grown_blocks": grown_blocks,
            "grown_groups": grown_groups,
        }
        if self._late:
            changes |= self._figures_of(record, decided, changes)
        if record.paused:
            changes |= {"paused": True, "head": record.head, "limiter": record.limiter}
        if self.num_ahead > 1:
            own = {name: getattr(record.blocks, name) for name in ("stored_tokens", "watermark")}
            changes["preemptions"] = _as_counted(decided.preemptions, record.preemptions)
            if self.engine.scheduler.state.limits.num_speculative_tokens:
                changes["rows"] = _as_known(decided.rows, record.rows)
            changes["blocks"] = msgspec.structs.replace(decided.blocks, **own)  # as they were for this step
        if last and self.num_ahead > 1:  # whether the next step was planned by then is not recorded
            names = ("blocks", "changed_blocks", "running", "waiting")
            changes |= {name: getattr(record, name) for name in names}
        return msgspec.structs.replace(decided, **changes)

    def _figures_of(self, record: StepRecord, decided: StepRecord, changes: dict[str, Any]) -> dict[str, Any]:
        """Fields of requests from before the start that only their past would show."""
        reported = {finish.number: finish for finish in record.finishes if finish.number in self._known_late}
        finishes = tuple(
            msgspec.structs.replace(
                reported.get(own.number, own), reason=own.reason, output_tokens=own.output_tokens
            )
            for own in changes["finishes"]
        )
        head = changes["head"]
        if head is not None and record.head is not None and head.number == record.head.number:
            short = (head.reason in _OF_BLOCKS) and (record.head.reason in _OF_BLOCKS)
            if short:  # what it would hit in the cache is not always known
                changes |= {"head": record.head, "limiter": record.limiter}
        return {
            "head": changes["head"],
            "limiter": changes.get("limiter", decided.limiter),
            "finishes": finishes,
            "preemptions": _as_counted(decided.preemptions, record.preemptions),
            "recomputed_tokens": record.recomputed_tokens,
        }

    def _finishes(self, record: StepRecord, settled: Sequence[Finish]) -> tuple[Finish, ...]:
        """Requests ended from outside according to `record`, then those of the step."""
        ended = []
        for finish in record.finishes:
            own = self._ended.pop(finish.number, None) if finish.ended_s is not None else None
            if own is not None:
                ended.append(msgspec.structs.replace(own, reason=finish.reason, ended_s=finish.ended_s))
            self._reported_ended.add(finish.number)
        return (*ended, *settled)


_OF_BLOCKS = (Limiter.BLOCKS, Limiter.FULL_SEQUENCE, Limiter.WATERMARK)


def _as_seen(decided: Head | None, recorded: Head | None) -> Head | None:
    """How long the head has waited, and what it outranks, are not decisions of the step."""
    if decided is None or recorded is None:
        return decided
    return msgspec.structs.replace(decided, since_s=recorded.since_s, inverted=recorded.inverted)


def _as_known(decided: bytes, recorded: bytes) -> bytes:
    """Drafts rejected since a plan move its rows back. A row that got nothing in the step, or had ended before the
    results came, is recorded as of another moment: its place is taken from the recording."""
    own, reported = (
        np.frombuffer(rows, dtype=np.int32).reshape(len(ROW_FIELDS), -1).copy() for rows in (decided, recorded)
    )
    if own.shape == reported.shape:
        aside = (own[_TOKENS] == 0) | (own[_FLAGS] & RowFlag.LATE > 0)
        own[_PLACE, aside.nonzero()[0][:, None]] = reported[_PLACE, aside.nonzero()[0][:, None]]
    return own.tobytes()


_TOKENS, _FLAGS = (ROW_FIELDS.index(name) for name in ("tokens", "flags"))
_PLACE = [ROW_FIELDS.index(name) for name in ("computed", "needed")]


def _as_counted(decided: tuple[Preemption, ...], recorded: tuple[Preemption, ...]) -> tuple[Preemption, ...]:
    """A loop counts reported ends, not those at the time of the plan."""
    loops = {preemption.number: preemption.loop for preemption in recorded}
    return tuple(msgspec.structs.replace(item, loop=loops.get(item.number, item.loop)) for item in decided)


def driver_of(header: Header, path: str) -> Driver:
    """The driver for a recording with this header. Raises `RecordingError` for what cannot be verified."""
    if header.source == VLLM:
        return ServerDriver(header, path)
    return HostDriver(header, path) if header.settings.get("host_link") else Driver(header, path)
