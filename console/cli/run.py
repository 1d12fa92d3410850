"""`schedtop run`: serve a workload without a console."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from schedtop.console.cli.engine_flags import add_engine_flags, engine_config
from schedtop.console.cli.errors import CommandError, check_writable, say
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.pull import check_start
from schedtop.engine.contract.latencies.slo import parse_slo


@click.command("run")
@add_engine_flags()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: adds goodput under these bounds.")
@click.option("--profile", is_flag=True, help="Tell on stderr where the steps of a model on the CPU spend time.")
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, slo: str | None, profile: bool, **flags: Any) -> None:
    """Serve a workload to its end, or for --duration seconds, and report.

    A trace without --duration runs until every request is accounted for; a generator without --duration or
    --limit runs for 60 seconds. Exit code 1: the recording is not whole, or not where it
    was asked for. Ctrl+C, SIGTERM and SIGHUP end it after a step, with report and recording: 130, 143, 129.
    """
    from schedtop.engine.offline.headless import run_headless

    bounds = None if slo is None else parse_slo(slo)
    config = engine_config(flags)
    if config.record is not None:
        check_writable(config.record)
    check_start(config)
    with _profiled(profile):
        report = run_headless(config, bounds, notice=say, show_progress=sys.stderr.isatty())
    show_json(report.as_dict()) if as_json else show(report.as_text())
    ctx.exit(int(report.unrecorded) if report.stopped_by is None else 128 + report.stopped_by)


@contextmanager
def _profiled(wanted: bool) -> Iterator[None]:
    """Profile what runs inside and print it, if asked."""
    if not wanted:
        yield
        return
    try:
        from schedtop.engine.runner.profile import profiled
    except ImportError as error:
        raise CommandError(f"--profile needs the engine extra ({error.name} is missing)") from None
    with profiled() as profile:
        yield
    show(profile.as_text(), err=True)
