"""`schedtop sweep`: every combination of some knobs' values."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from platformdirs import user_cache_path
from schedtop.console.cli.engine_flags import add_engine_flags
from schedtop.console.cli.errors import CommandError, check_name, say
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.scenario_flags import NOT_HERE, open_scenario
from schedtop.console.cli.unused_flags import without
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.files.output_files import make_folder
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.decide_again.scenario import Scenario

LINES = 10
"""Of progress where there is no terminal, at most."""


@click.command("sweep")
@click.argument("file", metavar="FILE")
@click.option("--vary", multiple=True, required=True, metavar="NAME=A,B,C", help="A knob and the values to try.")
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: the winner has the most goodput under these bounds.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Processes at once; as many as there are cores unless set."
)
@click.option("--results", metavar="FILE", help="Keep each run here (JSONL); runs it has are not repeated.")
@click.option("--fresh", is_flag=True, help="Forget earlier runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of a table.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV on stdout instead of a table.")
@add_engine_flags()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    file: str,
    vary: tuple[str, ...],
    slo: str | None,
    jobs: int | None,
    results: str | None,
    fresh: bool,
    as_json: bool,
    as_csv: bool,
    **flags: Any,
) -> None:
    """Serve FILE once for every combination of --vary, and name the best.

    A sweep that was interrupted continues where it was when the same command is given again.
    """
    from schedtop.engine.whatif.sweep import parse_vary, sweep
    from schedtop.engine.whatif.sweep_results import Results

    if as_json and as_csv:
        raise CommandError("--json and --csv: give one")
    values = parse_vary(vary)
    bounds = None if slo is None else parse_slo(slo)
    if results is not None:
        check_name(results)
        _check(Path(results))
    scenario = open_scenario(ctx, file, flags, notice=say)
    path = Path(results) if results is not None else _default_results(scenario, bounds)
    _check(path)
    if fresh:
        if results:
            Results(path)  # refuses a file of another kind: only results of a sweep are ever removed
        path.unlink(missing_ok=True)
    with _progress(path, shown=sys.stderr.isatty()) as on_done, _ended_by_signals():
        outcome = sweep(scenario, values, bounds, jobs=jobs or _cores(), results=path, on_done=on_done)
    if as_json:
        show_json(outcome.as_dict())
    else:
        show(outcome.as_csv() if as_csv else outcome.as_text())
    ctx.exit(0)


without(command, NOT_HERE)


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default_results(scenario: Scenario, slo: Slo | None) -> Path:
    """One results file per base."""
    from schedtop.engine.whatif.sweep import run_key

    folder = user_cache_path("schedtop") / "sweeps"
    try:
        make_folder(folder)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}: name a file for the runs with --results") from None
    return folder / f"{run_key(scenario, slo)[:16]}.jsonl"


def _check(path: Path) -> None:
    """Raise `CommandError` where runs cannot be kept, before the first is made."""
    if not path.parent.is_dir():
        raise CommandError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise CommandError(f"{path} is a folder: name a file")
    if odd := odd_file(path):
        raise CommandError(odd)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CommandError(f"{path}: cannot be written: name another file")


@contextmanager
def _progress(path: Path, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over the runs on the terminal, elsewhere a line after each tenth; and a line if earlier runs were found."""
    bar: Any = None
    if shown:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress

        bar = Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))
        task = bar.add_task("runs", total=None)
        bar.start()
    counts: list[tuple[int, int]] = []

    def on_done(done: int, total: int) -> None:
        before = counts[0][0] if counts else None
        counts[:] = [(done, total)]
        if done and before is None:
            say(f"{done} of {total} runs were done before ({path}; --fresh runs them again)")
        if bar is not None:
            bar.update(task, completed=done, total=total)
        elif before is not None and done * LINES // total > before * LINES // total:
            say(f"{done} of {total} runs")

    try:
        yield on_done
    except (KeyboardInterrupt, SystemExit):
        done, total = counts[0] if counts else (0, 0)
        say(f"interrupted: {done} of {total} runs are kept; the same command goes on")
        raise
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the sweep as Ctrl+C does, its processes with it; one that is ignored (nohup) stays so."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)
