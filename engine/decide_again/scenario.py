"""One repeatable run: a workload, a device, the knobs, and their changes along the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from schedtop.engine.build import build_engine, case_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, SchedulerConfig, check_scheduler_config
from schedtop.engine.contract.files.input_files import looks_like_case
from schedtop.engine.contract.knobs import BY_NAME, KnobError, check_value
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.golden.case import read_case
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.headless import Ahead, run_through
from schedtop.engine.sim.spec import PREFIX, SimDevice
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.stretch.run import MOST_OUTPUTS
from schedtop.engine.step.stretch.stretch import Stretch, records_of
from schedtop.engine.workload.source import RequestSource

ROUNDING_S = 1e-9
"""Recorded times are moved to another zero: what fell on a step's start must not fall behind it."""


@dataclass(frozen=True, slots=True)
class KnobEvent:
    """A change of live knobs, or aborted requests, at a time on the engine's clock."""

    at_s: float
    values: dict[str, Any]
    aborts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """What defines a run. The same scenario gives the same records in any process.

    `device` takes the place of the config's. `events` are what was changed while the base ran. `changes` are the
    knobs under question: set from the start, or by `from_step`, as a live change after so many steps. The config's
    duration ends the arrivals, not the run: every request that arrived is served to its end.
    """

    config: EngineConfig
    device: SimDevice | None = None
    events: tuple[KnobEvent, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    from_step: int = 0
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return "" if self.config.workload is None else self.config.workload.source

    @property
    def is_case(self) -> bool:
        return looks_like_case(Path(self.source))

    def turned(self, name: str, first: Any, since_s: float = 0.0) -> Any:
        """A knob's value in this run: `first`, or a list of it and those it is set to from `since_s` on."""
        values = [first]
        for event in self.events:
            if event.at_s >= since_s and event.values.get(name, values[-1]) != values[-1]:
                values.append(event.values[name])
        return values if len(values) > 1 else first

    def build(self) -> Engine:
        """An engine that has not stepped. Raises `ConfigError` for settings that cannot be used."""
        engine = self._build({} if self.from_step else self.changes)
        if self.config.duration_s is not None and engine.source is not None:
            engine.source = EndingSource(engine.source, self.config.duration_s)
        return engine

    def _build(self, changes: Mapping[str, Any]) -> Engine:
        if self.is_case:
            return self._build_case(changes)
        config = self.config
        if self.device is None and not config.device.startswith(PREFIX):
            raise ConfigError(
                f"device {config.device}: what-if runs on simulated devices; name one with --device sim:…"
            )
        if changes:
            config = msgspec.structs.replace(config, scheduler={**config.scheduler, **without_rate(changes)})
            if "rate" in changes:
                assert config.workload is not None
                workload = msgspec.structs.replace(config.workload, rate=changes["rate"])
                config = msgspec.structs.replace(config, workload=workload)
        return build_engine(config, device=self.device)

    def _build_case(self, changes: Mapping[str, Any]) -> Engine:
        if self.config.scheduler:
            names = ", ".join(self.config.scheduler)
            raise ConfigError(f"{self.source} is a golden case, which sets its own limits: leave out {names}")
        case = read_case(Path(self.source))
        for name in changes:
            if name not in SchedulerConfig.__struct_fields__:
                raise ConfigError(f"{name}: the arrivals of the golden case {self.source} are fixed")
        limits = check_scheduler_config(msgspec.structs.replace(case.config, **changes))
        return case_engine(msgspec.structs.replace(case, config=limits), self.config)

    def run(self, engine: Engine) -> Iterator[StepRecord | Stretch]:
        """Everything an engine from `build` does, with the scenario's changes along the way."""
        late = bool(self.from_step and self.changes)
        due = due_events(self.events, () if late else self.changes)

        def ahead() -> Ahead:
            return Ahead(due_s(due), self.from_step - engine.observer.step if late else MOST_OUTPUTS)

        apply_due(engine, due)
        for done in run_through(engine, msgspec.structs.replace(self.config, duration_s=None), ahead):
            yield done
            apply_due(engine, due)
            if late and engine.observer.step >= self.from_step:
                set_knobs(engine, self.changes)
                due[:] = due_events(due[::-1], self.changes)
                late = False

    def records(self, engine: Engine) -> Iterator[StepRecord]:
        """Every record of `run`; the engine may be ahead of the last one."""
        return chain.from_iterable(map(records_of, self.run(engine)))

    def pinned(self) -> Scenario:
        """This scenario with its pool size pinned, so that no other setting changes it."""
        if self.is_case or "num_blocks" in self.config.scheduler:
            return self
        blocks = self.build().scheduler.config.num_blocks
        scheduler = {**self.config.scheduler, "num_blocks": blocks}
        return replace(self, config=msgspec.structs.replace(self.config, scheduler=scheduler))

    def changed(self, changes: Mapping[str, Any], from_step: int = 0) -> Scenario:
        """This scenario under other knobs. A pool pinned in blocks is released where a block's bytes change."""
        config = self.config
        if changes.keys() & {"block_size", "disable_hybrid_kv_cache_manager"} and "num_blocks" not in changes:
            config = msgspec.structs.replace(config, scheduler=_except(config.scheduler, {"num_blocks"}))
        return replace(self, config=config, changes=dict(changes), from_step=from_step)


class EndingSource:
    """A source that ends at `end_s`; earlier requests do not depend on when they are taken."""

    def __init__(self, source: RequestSource, end_s: float) -> None:
        self.description = source.description
        self._source = source
        self._end_s = end_s

    def take(self, clock_s: float, step: int) -> list[Request]:
        return self._source.take(min(clock_s, self._end_s), step)

    def next_arrival_s(self) -> float | None:
        next_s = self._source.next_arrival_s()
        return None if next_s is None or next_s > self._end_s else next_s

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        self._source.set_rate(rate, clock_s)


def check_changes(changes: Mapping[str, Any], *, live: bool = False) -> dict[str, Any]:
    """`changes` as typed knob values; raises `ConfigError` that names what cannot be used.

    An optional knob takes `none`. `live`: only knobs that can change while an engine runs.
    """
    typed = {}
    for name, value in changes.items():
        knob = BY_NAME.get(name)
        if live and knob is not None and not knob.live:
            raise ConfigError(f"{name} is set at start-up only: it cannot change at a later step")
        absent = isinstance(value, str) and value.lower() == "none" and knob is not None and knob.optional
        try:
            typed[name] = check_value(name, None if absent else value)
        except KnobError as error:
            raise ConfigError(str(error)) from None
    return typed


def without_rate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The scheduler's settings among knob values: all but the workload's rate."""
    return _except(values, {"rate"})


def _except(values: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def due_events(events: Iterable[KnobEvent], held: Iterable[str]) -> list[KnobEvent]:
    """The scenario's events, last first, for `apply_due`; knobs that are `held` keep their values."""
    left = [replace(event, values=_except(event.values, set(held))) for event in events]
    return [event for event in left if event.values or event.aborts][::-1]


def due_s(due: list[KnobEvent]) -> float:
    """The time of the next event; `apply_due` may still find nothing then."""
    return due[-1].at_s - 2 * ROUNDING_S if due else math.inf


def apply_due(engine: Engine, due: list[KnobEvent]) -> None:
    """Carry out, and remove from `due`, what comes before the engine's next step."""
    if not due:
        return
    now_s = engine.clock_s
    if not engine.num_unfinished:
        now_s = max(now_s, engine.next_wake_s() or now_s)
    while due and due[-1].at_s <= now_s + ROUNDING_S:
        event = due.pop()
        if event.values:
            set_knobs(engine, event.values)
        for number in event.aborts:
            engine.abort(number)


def set_knobs(engine: Engine, values: Mapping[str, Any]) -> None:
    """Change live knobs. Raises `ConfigError` if the engine refuses."""
    reply = engine.set_knobs(values, by="what-if")
    if not reply.ok:
        raise ConfigError(f"at step {engine.observer.step}: {reply.text}")
