"""Forecasts a change: the present state, simulated forward with and without it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.prefixes.paths import path_keys
from schedtop.engine.contract.telemetry import Arrival, Header, Snapshot
from schedtop.engine.decide_again.restore import ask_of, recorded_builder, restore
from schedtop.engine.decide_again.scenario import check_changes
from schedtop.engine.offline.headless import run_through
from schedtop.engine.offline.report import Report
from schedtop.engine.sim.features import StepCost
from schedtop.engine.sim.spec import PREFIX, parse_device
from schedtop.engine.step.engine import Engine
from schedtop.engine.whatif.compared_figures import BY_NAME
from schedtop.engine.workload.paced import Ask, PacedSource, Tempo

FORETOLD = tuple(
    BY_NAME[name]
    for name in ("ttft_p50_s", "ttft_p95_s", "itl_p50_s", "itl_p95_s", "output_tokens_per_s", "preemptions")
)
"""The figures of a forecast; all are over the horizon alone."""

Figures = dict[str, float | None]
"""Those of one run, by name; None is unknown."""

LEAST_SPAN_S = 1.0
"""The shortest time over which a rate is reported."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure's mean over the replicas, and twice the standard error of that mean. None is unknown."""

    value: float | None
    error: float | None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by name (see `FORETOLD`) with the knobs as they are and as staged, and the change between them.

    Both sides of a replica see the same arrivals, so `change` is surer than the two figures are. `rate` is that of
    the expected arrivals, requests/s, None if none are expected. `warnings` are the engine's own on the change, `note`
    says where the step times are from, if not from a simulated device.
    """

    horizon_s: float
    replicas: int
    rate: float | None
    base: dict[str, Estimate]
    staged: dict[str, Estimate]
    change: dict[str, Estimate]
    warnings: list[str]
    note: str = ""


def forecast(
    header: Header,
    snapshot: Snapshot,
    staged: Mapping[str, Any],
    *,
    recent: Sequence[Arrival] = (),
    horizon_s: float = 10.0,
    replicas: int = 4,
    cost: StepCost | None = None,
) -> Forecast:
    """Simulate `horizon_s` seconds from `snapshot` under the present knobs and under `staged` ones.

    Expected arrivals are drawn from `recent` ones (oldest first), at the rate of the workload or, without one,
    theirs. Without any they are drawn from the snapshot's, among which long requests are more frequent than they
    arrive. `cost` is how long the device takes; a simulated engine's header says it. Outputs are taken to be as long
    as allowed. Pure: the same arguments give the same forecast. Raises `ConfigError` for knobs that cannot be used,
    and where `cost` is missing.
    """
    typed = check_changes(staged, live=True)
    cost = cost or device_cost(header)
    known = list(recent) or [state.arrival for state in snapshot.requests]
    rate = expected_rate(snapshot, known)
    base: list[Figures] = []
    changed: list[Figures] = []
    warnings: list[str] = []
    for seed in range(replicas):
        for values, runs in (({}, base), (typed, changed)):
            engine = restore(header, snapshot, cost, recent)
            if rate is not None and known:
                engine.source = _expected(header, known, rate, snapshot.clock_s, seed)
            if values:
                reply = engine.set_knobs(values)
                if not reply.ok:
                    raise ConfigError(reply.text)
                warnings = reply.warnings
            runs.append(_run(engine, snapshot.clock_s + horizon_s, horizon_s))
    return Forecast(
        horizon_s=horizon_s,
        replicas=replicas,
        rate=rate,
        base=_estimates(base),
        staged=_estimates(changed),
        change=_estimates([_less(run, other) for run, other in zip(changed, base, strict=True)]),
        warnings=warnings,
    )


def device_cost(header: Header) -> StepCost:
    """The step times of a simulated engine's device. Raises `ConfigError` for a real one."""
    if not header.device.startswith(PREFIX):
        raise ConfigError(f"{header.device} is a real device: a forecast needs step times fitted to its steps")
    ranks, stages = (header.settings.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    settings = header.settings
    priced = (settings.get("kv_cache_dtype", "auto"), settings.get("step_cost", "roofline"))
    device = parse_device(header.device, *priced)
    return device.step_cost(ranks, stages)


def expected_rate(snapshot: Snapshot, known: Sequence[Arrival]) -> float | None:
    """Requests/s to expect: the workload's where it has one, else that of the known arrivals; None: none."""
    rate = snapshot.knobs.get("rate")
    if rate is not None:
        return float(rate) or None
    if len(known) < 2:
        return None
    # The oldest one opens the span. A single burst is not a lasting rate.
    span_s = snapshot.clock_s - min(arrival.arrival_s for arrival in known)
    return (len(known) - 1) / max(span_s, LEAST_SPAN_S)


def _expected(header: Header, known: Sequence[Arrival], rate: float, clock_s: float, seed: int) -> PacedSource:
    """Poisson arrivals from `clock_s` on, each drawn from the known ones."""
    builder = recorded_builder(header, seed + 1)
    first = 1 + max(arrival.number for arrival in known)
    shared = _shared_prefixes(known)

    def asks() -> Iterator[Ask]:
        rng = np.random.default_rng([seed, 5])
        own_s, ordinal = clock_s, first
        while True:
            own_s += float(rng.exponential(1 / rate))
            arrival = known[int(rng.integers(len(known)))]
            ask = ask_of(arrival, header.block_size, ordinal, own_s)
            yield replace(ask, shared=None if ask.shared is None else ask.shared[: shared[arrival.number]])
            ordinal += 1

    return PacedSource(asks(), Tempo(rate, 1.0), builder, {"source": "expected arrivals", "rate": rate})


def _shared_prefixes(known: Sequence[Arrival]) -> dict[int, int]:
    """How many leading blocks of each arrival's prompt another one has, too, by number; the rest is its own."""
    paths = {arrival.number: path_keys(arrival.prefix_keys) for arrival in known}
    counts = Counter(path for keys in paths.values() for path in keys)
    return {number: sum(counts[path] > 1 for path in keys) for number, keys in paths.items()}


def _run(engine: Engine, until_s: float, horizon_s: float) -> Figures:
    """From now to `until_s`, `horizon_s` later."""
    report = Report()
    report.begin(engine.snapshot())
    start = report.totals
    for done in run_through(engine, EngineConfig(duration_s=until_s)):
        report.add(done)
    report.close(until_s)
    document = report.as_dict(start, until_s - horizon_s)
    return {figure.name: figure.of(document) for figure in FORETOLD}


def _less(run: Figures, other: Figures) -> Figures:
    pairs = ((name, value, other[name]) for name, value in run.items())
    return {name: None if value is None or less is None else value - less for name, value, less in pairs}


def _estimates(runs: list[Figures]) -> dict[str, Estimate]:
    return {figure.name: _estimate([run[figure.name] for run in runs]) for figure in FORETOLD}


def _estimate(values: list[float | None]) -> Estimate:
    known = [value for value in values if value is not None]
    if not known:
        return Estimate(None, None)
    mean = sum(known) / len(known)
    if len(known) < 2:
        return Estimate(mean, None)
    variance = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Estimate(mean, 2 * math.sqrt(variance / len(known)))
