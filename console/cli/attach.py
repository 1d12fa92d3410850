"""`schedtop attach`: the console on an engine that runs elsewhere on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click
from schedtop.console.cli.engine_flags import CONSOLE_FLAGS, TOKEN_FILE
from schedtop.console.cli.errors import CommandError
from schedtop.console.cli.open_console import check_terminal, console_options
from schedtop.engine.channel.client import ChannelClient


def _console_flags(function: Any) -> Any:
    for option in reversed(CONSOLE_FLAGS):
        function = option(function)
    return function


@click.command("attach")
@click.argument("address")
@_console_flags
@TOKEN_FILE
@click.pass_context
def command(ctx: click.Context, /, address: str, token_file: str | None, **flags: Any) -> None:
    """Open the console on the engine at ADDRESS (unix:PATH or tcp:127.0.0.1:PORT), as `schedtop serve` says it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("attach needs a terminal")
    check_terminal()

    def connect() -> ChannelClient:
        return ChannelClient.connect(address, token_file=token_file, read_only=flags["read_only"])

    link = connect()
    link.await_welcome()
    from schedtop.console.app import run_console

    options = replace(console_options(flags, embedded=False), address=address)
    ctx.exit(run_console(link, options, reopen=connect))
