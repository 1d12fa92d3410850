"""Runs all combinations of knob values on all cores; each result is saved as soon as it is done."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from schedtop.engine import __version__
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.latencies.slo import Slo
from schedtop.engine.decide_again.scenario import Scenario, check_changes
from schedtop.engine.sim.spec import PREFIX, CalibratedDevice, parse_device
from schedtop.engine.whatif.compare import run, setting
from schedtop.engine.whatif.sweep_results import Results, SweepRun
from schedtop.engine.whatif.sweep_table import Sweep

MAX_RUNS = 100_000


class SweepError(RuntimeError):
    """A sweep that cannot continue; the text says what was saved."""


def parse_vary(items: Iterable[str]) -> dict[str, list[Any]]:
    """`name=a,b,c` strings as typed values by knob. Raises `ConfigError` naming what cannot be used."""
    vary: dict[str, list[Any]] = {}
    for item in items:
        name, sep, values = (piece.strip() for piece in item.partition("="))
        texts = [text.strip() for text in values.split(",") if text.strip()]
        if not sep or not texts:
            raise ConfigError(f"{item!r}: write name=value,value,…")
        if name in vary:
            raise ConfigError(f"{name} is varied twice: give all its values at once")
        typed = [check_changes({name: text})[name] for text in texts]
        vary[name] = list(dict.fromkeys(typed))
    return vary


def combinations(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last name varying fastest."""
    count = 1
    for values in vary.values():
        count *= len(values)
    if count > MAX_RUNS:
        raise ConfigError(f"{count:,} combinations are more than {MAX_RUNS:,}: vary less")
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]


def sweep(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    slo: Slo | None,
    *,
    jobs: int = 1,
    results: Path | None = None,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """Run every combination, and the scenario as it is, in `jobs` processes.

    `results` keeps each run as a line of JSON; runs it has already are not repeated. `on_done` gets how many runs
    are there, and of how many. Raises `ConfigError` for what no run can use, `SweepError` if a process dies.
    """
    base_run = scenario.pinned()
    base = base_run.build()
    values_now = {name: base_run.turned(name, setting(base, name)) for name in vary}
    points = combinations(vary)
    if values_now not in points:
        points.insert(0, {})
    runs = {run_key(base_run.changed(point), slo): base_run.changed(point) for point in points}
    store = Results(results)
    missing = {key: one for key, one in runs.items() if key not in store.outcomes}
    on_done(len(runs) - len(missing), len(runs))
    for done, outcome in enumerate(_outcomes(missing, slo, jobs), len(runs) - len(missing) + 1):
        store.add(outcome)
        on_done(done, len(runs))
    return Sweep(
        source=scenario.source,
        device=base.header.device,
        slo=None if slo is None else str(slo),
        names=list(vary),
        points=[point or values_now for point in points],
        base=points.index({} if {} in points else values_now),
        outcomes=[store.outcomes[key] for key in runs],
        notes=list(scenario.notes),
    )


def run_key(scenario: Scenario, slo: Slo | None) -> str:
    """A digest of everything that decides a run's figures: settings, changes, and the content of its files."""
    config, device = scenario.config, scenario.device
    path = Path(scenario.source)
    parts = {
        "version": __version__,
        "config": msgspec.to_builtins(config),
        "changes": scenario.changes,
        "events": msgspec.to_builtins(scenario.events),
        "slo": None if slo is None else str(slo),
        "file": _digest_now(path) if path.is_file() else None,
        "device": None,
    }
    if device is None and config.device.startswith(PREFIX):
        device = parse_device(config.device, config.kv_cache_dtype, config.step_cost)
    if device is not None:  # the content of its files, not their names
        content = device.calibration if isinstance(device, CalibratedDevice) else device
        parts["device"] = msgspec.to_builtins(content)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest_now(path: Path) -> str:
    found = path.stat()
    return _digest(path, found.st_size, found.st_mtime_ns)


@cache
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    """Of a file's content; read again only if it has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _outcomes(runs: Mapping[str, Scenario], slo: Slo | None, jobs: int) -> Iterator[SweepRun]:
    """The outcomes of the runs, in order of completion."""
    if jobs == 1 or len(runs) == 1:
        yield from (_run(key, scenario, slo) for key, scenario in runs.items())
        return
    pool = ProcessPoolExecutor(min(jobs, len(runs) or 1), multiprocessing.get_context("spawn"), _join_parent)
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes start with it blocked, too
        try:
            futures: list[Future[SweepRun]] = [
                pool.submit(_run, key, scenario, slo) for key, scenario in runs.items()
            ]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        raise SweepError(
            "a process of the sweep died (out of memory?): the runs done so far are kept; go on with fewer --jobs"
        ) from None
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _run(key: str, scenario: Scenario, slo: Slo | None) -> SweepRun:
    try:
        report = run(scenario, slo)
    except ConfigError as error:
        return SweepRun(key, scenario.changes, None, str(error))
    return SweepRun(key, scenario.changes, report)


def _join_parent() -> None:
    """Makes a process of the sweep end with its parent, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
