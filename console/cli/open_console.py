"""Bare `schedtop`: an engine of its own and the console on it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from platformdirs import user_config_path
from schedtop.console.cli.client_name import who
from schedtop.console.cli.default_model import choose_default
from schedtop.console.cli.engine_flags import engine_config
from schedtop.console.cli.errors import (
    FAILED,
    CommandError,
    check_positive,
    check_writable,
    say,
    short_line,
)
from schedtop.console.cli.flights import flights_root, offer
from schedtop.console.cli.forecast_process import ForecastProcess
from schedtop.console.cli.output import show
from schedtop.console.cli.pull import check_start
from schedtop.console.cli.record_process import RecordProcess
from schedtop.console.cli.terminal_abilities import has_colours, speaks_utf8
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.contract.nearest_name import did_you_mean
from schedtop.engine.serving.flight.files import discard

REPORT_S = 30.0
"""Simulated seconds of the report that a pipe gets instead of a console."""
JOIN_WITHIN_S = 10.0
END_WITHIN_S = 1.0
RECORDED_WITHIN_S = 6.0
"""Longer with a recording, so that its last steps are written."""


def open_console(flags: Mapping[str, Any], bare: bool = False) -> int:
    """Start an engine and show it; the exit code. `bare`: no flag was given."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    notice = ""
    if on_terminal:
        check_terminal("run")
        flags, notice = choose_default(flags)
    config = engine_config(
        flags,
        real_time=flags.get("real_time") is not False,
        join_within_s=JOIN_WITHIN_S,
        flight_folder=None if flags["no_flight_recorder"] else str(flights_root()),
    )
    if on_terminal and (lost := offer()):
        notice = f"{lost}; {notice}" if notice else lost
    options = console_options(flags, notice=notice, guide=bare and not user_config_path("schedtop").exists())
    if config.record is not None:
        check_writable(config.record)
    check_start(config)
    if not on_terminal and config.http is not None:
        raise CommandError("--http without a terminal: use schedtop serve --http")
    if not on_terminal:
        return _print_report(config, parse_slo(flags["slo"]) if flags["slo"] is not None else None)
    if notice:
        say(notice)
    process = start_engine(config)
    with _ended_with(process, RECORDED_WITHIN_S if config.record is not None else END_WITHIN_S):
        # The engine builds while this process imports the console.
        from schedtop.console.app import run_console

        try:
            link = process.connect(read_only=options.read_only)
        except ChannelError as error:
            raise CommandError(str(error)) from None
        make_forecast, recorder = ForecastProcess(), RecordProcess(process.address)
        try:
            code = run_console(
                link, options, make_forecast=make_forecast, why_ended=process.exit_cause, recorder=recorder
            )
        finally:
            make_forecast.close()
            if (recorded := recorder.close()) is not None:
                say(recorded)
        if process.process.poll() not in (None, 0):
            say(process.exit_cause() or "the engine ended")
            return code or (process.process.poll() if process.process.poll() == 2 else FAILED) or FAILED
    return code


def _check_theme(name: str | None) -> None:
    """Raise `CommandError` for a theme that is neither built in nor in the user's folder."""
    if name is None:
        return
    from schedtop.themes.load import load_themes

    themes, failures = load_themes(user_config_path("schedtop") / "themes")
    if name not in themes:
        broken = next(
            (f" ({failure.path} {failure.reason})" for failure in failures if failure.path == f"{name}.toml"), ""
        )
        hint = "" if broken else did_you_mean(name, themes)
        raise CommandError(
            f"--theme {name}: no such theme{broken}; {hint}the themes are {', '.join(sorted(themes))}"
        )


@contextmanager
def _ended_with(process: EngineProcess, within_s: float) -> Iterator[None]:
    """The engine ends with what runs inside, by force if it takes longer than `within_s`."""
    try:
        yield
    finally:
        running = process.process.poll() is None
        if process.close(within_s) == -signal.SIGKILL and running:
            say(f"the engine did not end within {within_s:g} s and was killed")
            discard(flights_root(), process.process.pid)  # ended on purpose: nothing to investigate


def _print_report(config: EngineConfig, slo: Slo | None) -> int:
    """Plain text without escapes: the report of 30 seconds of this engine."""
    import msgspec
    from schedtop.engine.offline.headless import run_headless

    duration_s = config.duration_s or REPORT_S
    config = msgspec.structs.replace(config, duration_s=duration_s, real_time=False)
    report = run_headless(config, slo, notice=say)
    source = config.workload.source if config.workload else ""
    show(short_line(f"schedtop: {duration_s:g} s of {config.device}, {source}"))
    show(report.as_text())
    return 0 if report.stopped_by is None else 128 + report.stopped_by


def check_terminal(instead: str = "") -> None:
    """Raise `CommandError` where a full-screen program cannot draw; `instead` is the command that needs none."""
    term = os.environ.get("TERM", "")
    if term in ("", "dumb"):
        other = f", or use schedtop {instead}" if instead else ""
        raise CommandError(f"TERM={term!r} cannot draw a console: set TERM{other}")


def console_options(flags: Mapping[str, Any], *, embedded: bool = True, notice: str = "", guide: bool = False):  # type: ignore[no-untyped-def]
    """The console's flags as its options."""
    from schedtop.console.options import ConsoleOptions

    _check_theme(flags.get("theme"))
    slo = Slo() if flags.get("slo") is None else parse_slo(flags["slo"])
    check_positive("--window", flags["window_s"])
    check_positive("--refresh", flags["refresh"])
    return ConsoleOptions(
        theme=flags.get("theme") or (None if has_colours() else "monochrome"),
        ascii=flags["ascii_only"] or not speaks_utf8(),
        read_only=flags["read_only"],
        mouse=not flags["no_mouse"],
        embedded=embedded,
        ttft_slo_s=slo.ttft_s,
        itl_slo_s=slo.itl_s,
        window_s=flags["window_s"],
        paint_every_s=1 / flags["refresh"],
        notice=notice,
        who=who(),
        guide=guide,
    )
