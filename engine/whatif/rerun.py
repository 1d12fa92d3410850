"""Reruns a recording under other limits, from its start or from one of its steps, beside what was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from typing import Any, Protocol

import msgspec
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.contract.telemetry import Snapshot, StepRecord, Totals
from schedtop.engine.decide_again.branch import Fork
from schedtop.engine.decide_again.divergence import Divergence, first_difference
from schedtop.engine.decide_again.recorded_scenario import recorded_scenario, zero_s
from schedtop.engine.decide_again.scenario import (
    ROUNDING_S,
    Scenario,
    apply_due,
    check_changes,
    due_events,
    due_s,
    set_knobs,
)
from schedtop.engine.offline.headless import Ahead, run_through
from schedtop.engine.offline.report import LATENCIES, Report
from schedtop.engine.recording.reader import Recording
from schedtop.engine.sim.spec import parse_device
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.stretch.stretch import records_of
from schedtop.engine.whatif.compare import setting
from schedtop.engine.whatif.compared_figures import change_text, shown_in
from schedtop.engine.whatif.verdict import CANNOT_TELL, verdict

RUN_ON, LEAST_RUN_ON_S = 20.0, 600.0
"""For the unserved, base and variant run on for at most so many times the recorded stretch plus so many seconds."""
OnProgress = Callable[[str, float], None]
"""Called with the current task and the share done."""

_PAST = ", now past the end of the recording, until all are served"


class Follower(Protocol):
    """Sees every record of a run, up to the recording's end."""

    def begin(self, snapshot: Snapshot, shift_s: float) -> None:
        """Before the first record: the state, and what to add to the run's clock for the recording's."""
        ...

    def take(self, record: StepRecord) -> None: ...


Followers = tuple[Follower, Follower, Follower]
"""Of what is recorded, base and variant."""


class RerunQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run again: the recording at `path` with `changes` (knob names to values).

    `index` is the record after which they hold, None is the start. `snapshot` is the state after that record, for a
    recording that cannot be decided again. `device` is simulated in place of the recorded one.
    """

    path: str
    changes: dict[str, Any]
    index: int | None = None
    snapshot: Snapshot | None = None
    slo: str | None = None
    device: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the three runs as text, `>` before a lower bound.

    `verdict` is `better`, `worse`, `same`, `cannot tell` where bounds overlap, or empty for neither.
    """

    name: str
    label: str
    recorded: str
    base: str
    variant: str
    change: str
    verdict: str


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """Three runs over the same requests: `recorded`, `base` (the recording run again as it was), `variant`.

    `start_s` is where they begin on the recording's clock, after `step`. `exact`: the base is the recording, step
    for step; else `drift` is the first step it decides otherwise. `divergence` is where base and variant part; None:
    every step is the same. `unfinished` requests were in flight when the recording ended: then counts and rates end
    with it, and latencies are those of all its requests, for which base and variant run on past its end; `unserved` of
    them had no end in the base and in the variant even then.
    """

    device: str
    step: int
    start_s: float
    num_steps: int
    changes: dict[str, tuple[Any, Any]]
    measured: bool
    exact: bool
    drift: Divergence | None
    divergence: Divergence | None
    parting_s: float | None
    rows: list[Row]
    unfinished: int
    notes: list[str]
    unserved: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class RunUnderWay:
    """One of the runs while it is made, from `start`, the state where it begins.

    `report` is of what was recorded, up to `end_s`; `whole` continues until everybody is served.
    """

    records: Iterator[StepRecord]
    start: Snapshot
    slo: Slo | None
    end_s: float = math.inf
    report: Report = field(init=False)
    whole: Report = field(init=False)
    follower: Follower | None = None

    def __post_init__(self) -> None:
        self.report = self.whole = self._begun()

    def _begun(self) -> Report:
        report = Report(self.slo)
        report.begin(self.start)
        return report

    @property
    def start_s(self) -> float:
        return self.start.clock_s

    def count_until(self, end_s: float) -> None:
        """Records after `end_s` count for latencies only."""
        self.end_s, self.whole = end_s, self._begun()
        self.records = _until(self.records, end_s + RUN_ON * (end_s - self.start_s) + LEAST_RUN_ON_S)

    def take(self, record: StepRecord) -> None:
        self.whole.add(record)
        if record.end_s <= self.end_s + ROUNDING_S:
            if self.follower is not None:
                self.follower.take(record)
            if self.report is not self.whole:
                self.report.add(record)

    def document(self) -> dict[str, Any]:
        """Counts and rates of the recorded stretch; latencies and goodput of all its requests."""
        before, whole = self.start.totals, self.whole.as_dict()
        document = self.report.as_dict(before, self.start_s)
        return document | {name: whole[name] for name in (*LATENCIES, "goodput") if name in whole}


def rerun(
    question: RerunQuestion,
    on_progress: OnProgress = lambda what, share: None,
    followers: Followers | None = None,
) -> Rerun:
    """Answer a question. Pure: the same file and question give the same answer.

    Raises `ConfigError` with one line for knobs and recordings that cannot be used, `RecordingError` for damage.
    """
    changes = check_changes(question.changes, live=question.index is not None)
    slo = parse_slo(question.slo) if question.slo else None
    on_progress("reading the recording", 0.0)
    given = {"device"} if question.device else set()
    config = EngineConfig(workload=WorkloadSpec(source=question.path))
    if question.device:
        config = msgspec.structs.replace(config, device=question.device)
    scenario = recorded_scenario(config, given)
    with Recording(question.path) as recording:
        if not recording.num_records:
            raise ConfigError(f"{recording.path} holds no step: there is nothing to run again")
        if question.index is None:
            stage = _from_start(recording, scenario, changes, slo)
        else:
            stage = _from_step(recording, scenario, changes, slo, question, on_progress)
        for run, follower in zip(stage.runs, followers or (), strict=False):
            follower.begin(run.start, stage.recorded.start_s - run.start_s)
            run.follower = follower
        return _play(recording, scenario, stage, question, on_progress)


@dataclass(slots=True)
class RerunStart:
    """The starting point of three runs. `start` is the recording's first record to compare with."""

    recorded: RunUnderWay
    base: RunUnderWay
    variant: RunUnderWay
    start: int
    changes: dict[str, tuple[Any, Any]]
    device: str
    ids: dict[int, str]
    num_requests: int
    unfinished: int
    span_s: float
    notes: list[str]

    def __post_init__(self) -> None:
        if self.unfinished:
            for run in (self.base, self.variant):
                run.count_until(run.start_s + self.span_s)

    @property
    def runs(self) -> tuple[RunUnderWay, RunUnderWay, RunUnderWay]:
        return self.recorded, self.base, self.variant

    @property
    def shift_s(self) -> float:
        """From the runs' clock to the recording's."""
        return self.recorded.start_s - self.base.start_s


def _from_start(recording: Recording, scenario: Scenario, changes: dict[str, Any], slo: Slo | None) -> RerunStart:
    snapshot, _ = recording.keyframe_before(0)
    if snapshot.step or snapshot.requests:
        raise ConfigError(
            f"the recording begins at step {snapshot.step} of its engine: what had arrived before is not known, so it"
            " can be run again from one of its steps only"
        )
    base, variant = scenario.pinned(), scenario.pinned().changed(changes)
    engines = base.build(), variant.build()
    begin_s = zero_s(recording)
    runs = [
        RunUnderWay(one.records(engine), engine.snapshot(), slo)
        for one, engine in zip((base, variant), engines, strict=True)
    ]
    return RerunStart(
        recorded=RunUnderWay(recording.records(), msgspec.structs.replace(snapshot, clock_s=begin_s), slo),
        base=runs[0],
        variant=runs[1],
        start=0,
        changes={name: (setting(engines[0], name), value) for name, value in changes.items()},
        device=engines[0].header.device,
        ids={},
        num_requests=sum(len(record.arrivals) for record in recording.records()),
        unfinished=_unfinished(recording),
        span_s=recording.end_s - begin_s,
        notes=[],
    )


def _from_step(
    recording: Recording,
    scenario: Scenario,
    changes: dict[str, Any],
    slo: Slo | None,
    question: RerunQuestion,
    on_progress: OnProgress,
) -> RerunStart:
    index = question.index
    assert index is not None
    record = recording.record(index)
    config = scenario.config
    device = scenario.device or parse_device(config.device, config.kv_cache_dtype, config.step_cost)
    cost = device.step_cost(config.tensor_parallel_size, config.pipeline_parallel_size)
    fork = Fork(recording, index, cost, config.seed, question.snapshot)
    what = f"going to step {record.step}"
    base, variant = fork.engine(lambda share: on_progress(what, share)), fork.engine()
    old = {name: base.knobs.get(name) for name in changes}
    if "rate" in changes:
        old["rate"] = recording.header.workload.get("rate")
    set_knobs(variant, changes)
    runs = [
        RunUnderWay(_going_on(engine, fork, held), engine.snapshot(), slo)
        for engine, held in ((base, ()), (variant, tuple(changes)))
    ]
    return RerunStart(
        recorded=RunUnderWay(recording.records(index + 1), _as_recorded(fork, record, base), slo),
        base=runs[0],
        variant=runs[1],
        start=index + 1,
        changes={name: (old[name], value) for name, value in changes.items()},
        device=device.spec,
        ids={number: request.id for number, request in base.scheduler.state.requests.items()},
        num_requests=base.num_unfinished + len(fork.arrivals),
        unfinished=_unfinished(recording),
        span_s=recording.end_s - fork.clock_s,
        notes=fork.notes,
    )


def _as_recorded(fork: Fork, record: StepRecord, base: Engine) -> Snapshot:
    """The state after `record`: the requests are those of an engine at that point."""
    return msgspec.structs.replace(base.snapshot(), clock_s=fork.clock_s, totals=record.totals)


def _unfinished(recording: Recording) -> int:
    """Requests that the recording leaves in flight."""
    last = recording.record(recording.num_records - 1)
    return last.running + last.waiting


def _until(records: Iterator[StepRecord], end_s: float) -> Iterator[StepRecord]:
    return takewhile(lambda record: record.end_s <= end_s + ROUNDING_S, records)


def _going_on(engine: Engine, fork: Fork, held: Iterable[str]) -> Iterator[StepRecord]:
    due = due_events(fork.events, held)
    apply_due(engine, due)
    for done in run_through(engine, EngineConfig(), lambda: Ahead(due_s(due))):
        yield from records_of(done)
        apply_due(engine, due)


def _play(
    recording: Recording, scenario: Scenario, stage: RerunStart, question: RerunQuestion, on_progress: OnProgress
) -> Rerun:
    """Run all three and find where they diverge."""
    beside = _Beside(stage)
    divergence = _run_both(stage, beside, on_progress)
    beside.rest()
    if stage.unfinished:
        for run in (stage.base, stage.variant):
            run.report.close(run.end_s)
    measured = not recording.header.simulated_clock
    return Rerun(
        device=stage.device,
        step=0 if question.index is None else recording.record(question.index).step,
        start_s=stage.recorded.start_s,
        num_steps=stage.base.report.totals.steps - stage.base.start.totals.steps,
        changes=stage.changes,
        measured=measured,
        exact=beside.same and not measured,
        drift=beside.drift,
        divergence=divergence,
        parting_s=None if divergence is None else divergence.clock_s + stage.shift_s,
        rows=_rows(stage),
        unfinished=stage.unfinished,
        notes=[*scenario.notes, *stage.notes],
        unserved=(stage.base.whole.num_open, stage.variant.whole.num_open),
    )


def _run_both(stage: RerunStart, beside: _Beside, on_progress: OnProgress) -> Divergence | None:
    """Run base and variant step by step to completion; returns where they diverge."""
    divergence: Divergence | None = None
    shares, past = [0.0, 0.0], False
    pairs: Any = zip_longest(stage.base.records, stage.variant.records)
    for one, other in pairs:
        if divergence is None:
            stage.ids.update((arrival.number, arrival.id) for arrival in (one or other).arrivals)
            divergence = first_difference(one, other, stage.ids)
        for place, (run, record) in enumerate(((stage.base, one), (stage.variant, other))):
            if record is not None:
                run.take(record)
                ended = _ended(record.totals) - _ended(run.start.totals)
                shares[place] = min(1.0, ended / max(1, stage.num_requests))
                past |= record.end_s - run.start_s > stage.span_s + ROUNDING_S
        if one is not None and one.executed:
            beside.step(one)
        on_progress("running both" + _PAST * past, sum(shares) / 2)
    return divergence


def _ended(totals: Totals) -> int:
    return totals.finished + totals.kv_capacity + totals.refused + totals.aborted + totals.failed


def _in_decisions(found: Divergence | None) -> Divergence | None:
    """The difference, device times aside."""
    parts = [] if found is None else [part for part in found.parts if part.field != "time"]
    return msgspec.structs.replace(found, parts=parts) if found is not None and parts else None


class _Beside:
    """Compares the recorded run with the base, step by step."""

    def __init__(self, stage: RerunStart) -> None:
        self._run, self._ids = stage.recorded, stage.ids
        self._shift_s = stage.shift_s
        self._cut = bool(stage.unfinished)
        self.drift: Divergence | None = None
        self._in_time = True

    @property
    def same(self) -> bool:
        return self.drift is None and self._in_time

    def step(self, base: StepRecord) -> None:
        """Compare a step of the base with the recorded one in its place, if there is one."""
        record = self._next()
        if record is None or self.drift is not None:
            return
        self._in_time &= abs(record.end_s - self._shift_s - base.end_s) < 1e-6
        self.drift = _in_decisions(first_difference(record, base, self._ids))

    def _next(self) -> StepRecord | None:
        for record in self._run.records:
            self._run.take(record)
            if record.executed:
                return record
        return None

    def rest(self) -> None:
        """The base is over; what is recorded beyond it is a difference too, unless both were to end there."""
        record = self._next()
        if record is not None and self.drift is None and not self._cut:
            self.drift = first_difference(record, None, self._ids)
        while self._next() is not None:
            pass


def _rows(stage: RerunStart) -> list[Row]:
    recorded, base, variant = (run.document() for run in stage.runs)
    cohorts = stage.base.whole.cohorts(), stage.variant.whole.cohorts()
    rows = []
    for figure in shown_in(base, variant):
        said = verdict(figure, (base, variant), cohorts)
        change = change_text(figure, figure.of(base), figure.of(variant))
        rows.append(
            Row(
                name=figure.name,
                label=figure.label,
                recorded=figure.text(recorded),
                base=figure.text(base),
                variant=figure.text(variant),
                change={"same": "=", CANNOT_TELL: CANNOT_TELL}.get(said, change),
                verdict=said,
            )
        )
    return rows
