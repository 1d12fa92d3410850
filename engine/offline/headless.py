"""Runs an engine without a console, flat out or paced, until its work is done."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import msgspec
from schedtop.engine.build import build_engine
from schedtop.engine.channel.protocol import Sink, encode
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.latencies.slo import Slo
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.offline.report import Report
from schedtop.engine.offline.stop_signals import StopSignals
from schedtop.engine.serving.sinks import open_sinks
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.garbage import calm_collector
from schedtop.engine.step.stretch.run import MOST_OUTPUTS, run_stretch
from schedtop.engine.step.stretch.stretch import Stretch
from schedtop.engine.workload.presets import BY_NAME

DEFAULT_DURATION_S = 60.0
"""A generator never ends by itself."""

OnProgress = Callable[[float], None]


class Ahead(NamedTuple):
    """How far an engine may run by itself: steps that start before `until_s`, and at most this many."""

    until_s: float = math.inf
    steps: int = MOST_OUTPUTS


def run_headless(
    config: EngineConfig, slo: Slo | None, notice: Callable[[str], None], show_progress: bool = False
) -> Report:
    """Serve the config's workload and return the report. Raises `ConfigError` before anything runs."""
    if config.workload is not None and config.workload.rate == 0:
        raise ConfigError("--rate 0: nothing would ever arrive; give a rate above 0")
    engine = build_engine(config, notice)
    calm_collector()
    with StopSignals().heard() as stop, ExitStack() as stack:
        sinks = open_sinks(config, engine, stack, notice)
        config = with_end(config, notice)
        progress = stack.enter_context(Progress(config.duration_s, show_progress))
        report = Report.of(engine.header, slo)
        serve(engine, config, report, sinks, progress.update, notice, stop)
    report.stopped_by = stop.number
    report.unrecorded = config.record is not None and "recording" not in sinks
    return report


def with_end(config: EngineConfig, notice: Callable[[str], None]) -> EngineConfig:
    """`config`, with a duration if its workload would never end."""
    workload = config.workload
    if config.duration_s is None and workload is not None and workload.source in BY_NAME and workload.limit is None:
        notice(f"{workload.source} never ends: running {DEFAULT_DURATION_S:g} s (set --duration or --limit)")
        return msgspec.structs.replace(config, duration_s=DEFAULT_DURATION_S)
    return config


def serve(
    engine: Engine,
    config: EngineConfig,
    report: Report,
    sinks: dict[str, Sink],
    on_progress: OnProgress,
    notice: Callable[[str], None],
    stop: StopSignals,
) -> Report:
    """Step an engine until it is exhausted, its duration is over, or a signal or Ctrl+C ends it.

    Report and sinks get every record.
    """
    began_s = time.monotonic()
    # A recording needs the state after every step, and pacing works on single steps.
    walk = step_through if sinks or config.real_time else run_through
    try:
        for done in walk(engine, config, stop=stop):
            report.add(done)
            if sinks and isinstance(done, StepRecord):
                _hand_out(done, sinks, notice)
            on_progress(done.end_s)
    except KeyboardInterrupt:
        stop.number = signal.SIGINT
    if stop.number is not None:
        notice(f"interrupted at {engine.clock_s:.1f} s: the report covers what was served until then")
    report.wall_s = time.monotonic() - began_s
    report.close(config.duration_s or engine.clock_s if stop.number is None else engine.clock_s)
    return report


def step_through(engine: Engine, config: EngineConfig, *, stop: StopSignals | None = None) -> Iterator[StepRecord]:
    """Every record of an engine until it is exhausted or the config's duration is over, at the config's pace."""
    for _ in _turns(engine, config, stop or StopSignals()):
        record = engine.step()
        if record is not None:
            yield record


def run_through(
    engine: Engine,
    config: EngineConfig,
    ahead: Callable[[], Ahead] = lambda: Ahead(),
    *,
    stop: StopSignals | None = None,
) -> Iterator[StepRecord | Stretch]:
    """As `step_through`, but flat out, with stretches in place of records where there are any.

    `ahead` gives how far the engine may run before the caller might change something.
    """
    until_s = math.inf if config.duration_s is None else config.duration_s
    for _ in _turns(engine, config, stop or StopSignals()):
        free = ahead()
        done = run_stretch(engine, min(until_s, free.until_s), free.steps) or engine.step()
        if done is not None:
            yield done


def _turns(engine: Engine, config: EngineConfig, stop: StopSignals) -> Iterator[None]:
    """Yields before each step, at the config's pace, until the engine is exhausted, the duration is over or `stop`
    is requested."""
    began_s = time.monotonic()
    until_s = config.duration_s
    while until_s is None or engine.clock_s < until_s:
        wake_s = engine.next_wake_s()
        if not engine.num_unfinished and (
            wake_s in (None, math.inf) or (until_s is not None and wake_s >= until_s)
        ):
            return
        stop.sleep(_ahead_s(engine, config, began_s, wake_s))
        if stop.number is not None:
            return
        yield


def _ahead_s(engine: Engine, config: EngineConfig, began_s: float, wake_s: float | None) -> float:
    """Seconds to wait: for the wall clock under `--real-time`, for an arrival on a real clock."""
    if engine.clock.simulated and not config.real_time:
        return 0.0
    ahead_s = engine.clock_s - (time.monotonic() - began_s) if engine.clock.simulated else 0.0
    if not engine.num_unfinished and wake_s is not None:
        now_s = time.monotonic() - began_s if engine.clock.simulated else engine.clock_s
        ahead_s = wake_s - now_s
    return ahead_s


def _hand_out(record: StepRecord, sinks: dict[str, Sink], notice: Callable[[str], None]) -> None:
    encoded = encode(record)
    for name, sink in list(sinks.items()):
        try:
            sink.write(record, encoded)
        except OSError as error:
            del sinks[name]
            notice(f"{name} stopped: {error.strerror or error}; serving goes on")


class Progress:
    """A progress bar over the run's seconds, or a counter where the end is unknown; silent unless shown."""

    def __init__(self, total_s: float | None, shown: bool) -> None:
        self._total_s = total_s
        self._shown = shown
        self._next_s = 0.0

    def __enter__(self) -> Progress:
        if self._shown:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("serving", total=self._total_s)
            self._bar.start()
        return self

    def update(self, clock_s: float) -> None:
        if self._shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 0.1
            self._bar.update(self._task, completed=clock_s, description=f"serving, {clock_s:.0f} s")

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bar.stop()
