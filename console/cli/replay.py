"""`schedtop replay`: the console over a recording."""

from __future__ import annotations

import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from schedtop.console.cli.attach import _console_flags
from schedtop.console.cli.errors import CommandError
from schedtop.console.cli.forecast_process import ForecastProcess
from schedtop.console.cli.open_console import check_terminal, console_options
from schedtop.console.cli.recording_flags import opened
from schedtop.console.cli.rerun_process import beginner
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.scrape.recorded import is_page_recording
from schedtop.engine.sim.spec import parse_device


def _replay_pages(file: Path, flags: dict[str, Any]) -> int:
    from schedtop.console.cli.page_recordings import RecordedPages

    pages = RecordedPages(file)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("replay needs a terminal")
    check_terminal()
    from schedtop.console.fleet.app import FleetReplayApp

    app = FleetReplayApp(pages, f"replay of {file.name}")
    app.run(mouse=not flags["no_mouse"])
    return app.return_code or 0


@click.command("replay")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--at", metavar="PLACE", help="Begin there: a step, 12.5s, 1:30, 40%, end, 'next preemption'.")
@click.option("--speed", type=click.FloatRange(0.1, 1000), default=1.0, show_default=True, help="0.1 to 1000.")
@click.option("--paused", is_flag=True, help="Begin paused.")
@click.option(
    "--device", metavar="SPEC", help="sim:…: re-runs and forecasts simulate it in place of the recorded device."
)
@_console_flags
@click.pass_context
def command(
    ctx: click.Context,
    /,
    file: Path,
    at: str | None,
    speed: float,
    paused: bool,
    device: str | None,
    **flags: Any,
) -> None:
    """Open the console over the recording FILE: play, step, jump; every panel shows what it holds for that step.

    Staged knobs run it again, from the shown step (r) or from the start (b), and show both runs over each other.
    """
    if math.isnan(speed):
        raise CommandError("--speed nan: must be from 0.1 to 1000")
    if device is not None:
        parse_device(device)
    if is_page_recording(file):
        ctx.exit(_replay_pages(file, flags))
    with opened(file, check=True) as recording:
        if not recording.num_records:
            raise CommandError(f"{recording.path} holds no step: there is nothing to replay")
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CommandError("replay needs a terminal; schedtop info and export read a recording without one")
        check_terminal("info")
        from schedtop.console.replay.app import run_replay

        options = console_options(flags, embedded=False)
        begin = beginner(recording.path, flags.get("slo"), device)
        with closing(ForecastProcess(device)) as forecast:
            code = run_replay(recording, options, speed, paused, at, RecordingError, begin, forecast)
    ctx.exit(code)
