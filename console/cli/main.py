"""`schedtop`: the console by default, and one command per file beside this one."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click
from schedtop.console.cli.engine_flags import add_engine_flags
from schedtop.console.cli.errors import exit_code_of
from schedtop.engine.contract.nearest_name import did_you_mean

COMMANDS: dict[str, str] = {
    "run": "Serve a workload without a console; one JSON document or a page of text at the end.",
    "serve": "Run an engine that consoles attach to.",
    "attach": "Open the console on an engine that is already running.",
    "status": "Print the state of a running engine once, as plain lines.",
    "record": "Record an engine that is already running.",
    "knobs": "List or set the limits of a running engine; for scripts.",
    "generate": "Answer the prompts of a file with a real model.",
    "pull": "Fetch a small model once; it works offline from then on.",
    "whatif": "Serve the same requests under changed knobs, and compare.",
    "sweep": "Serve the same requests under every combination of knobs, and name the best.",
    "replay": "Open the console over a recording: play, step, jump.",
    "info": "What a recording is, its totals and percentiles.",
    "explain": "Read the symptoms of a recording: causes, evidence, and what to turn.",
    "study": "Comparisons that show what a mechanism of the scheduler is worth.",
    "calibrate": "Fit a simulated device to recordings of a real one.",
    "check": "Test conditions over a recording; for scripts and CI.",
    "diff": "Where two recordings first diverge, and why.",
    "export": "Write a recording as a Perfetto trace, CSV, Parquet or JSONL.",
    "verify": "Decide a recording or a golden case again and compare every step.",
}
"""Every command and its line in the help; its module has the same name (`-` as `_`), its function `command`."""


class LazyGroup(click.Group):
    """Imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            hint = _of_file(args[0]) if os.path.exists(args[0]) else did_you_mean(args[0], COMMANDS).strip()
            raise click.UsageError(f"no command is called {args[0]!r}{hint and f': {hint}'}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"schedtop.console.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _of_file(name: str) -> str:
    from schedtop.engine.inspect.kind import kind_of

    kind = kind_of(Path(name))
    return "" if kind is None else f"it is {kind.name}; {kind.use}"


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from schedtop.engine import __version__

        click.echo(f"schedtop {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Version.")
@add_engine_flags(console=True, http=True)
@click.pass_context
def cli(ctx: click.Context, /, **flags: Any) -> None:
    """A terminal operator console for an LLM inference scheduler.

    Without a command it starts an engine and opens the console on it; without a terminal it prints a report of
    30 simulated seconds.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_stray_flags(ctx)
        return
    from schedtop.console.cli.open_console import open_console

    ctx.exit(open_console(flags, bare=all(_is_left_out(ctx, name) for name in flags)))


def _is_left_out(ctx: click.Context, flag: str) -> bool:
    return ctx.get_parameter_source(flag) is not click.core.ParameterSource.COMMANDLINE


def _refuse_stray_flags(ctx: click.Context) -> None:
    for param in ctx.command.params:
        if param.name and ctx.get_parameter_source(param.name) == click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} goes after {ctx.invoked_subcommand}")


def main(arguments: list[str] | None = None) -> None:
    """Run one command and raise `SystemExit`.

    Exit codes: 0 done, 1 a check failed or the engine died, 2 bad input (one line says what).
    """
    try:
        code = cli.main(arguments, prog_name="schedtop", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output has gone; the rest is silently discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code_of(error)
    sys.exit(code if isinstance(code, int) else 0)
