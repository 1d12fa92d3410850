"""`schedtop serve`: an engine without a console, for consoles to attach to."""

from __future__ import annotations

from typing import Any

import click
from schedtop.console.cli.engine_flags import TOKEN_FILE, add_engine_flags, engine_config
from schedtop.console.cli.errors import check_writable, say
from schedtop.console.cli.flights import flights_root, offer
from schedtop.console.cli.pull import check_start


@click.command("serve")
@add_engine_flags(http=True)
@click.option(
    "--listen", "socket", metavar="ADDRESS", help="unix:PATH or tcp:127.0.0.1:PORT; a private path unless set."
)
@TOKEN_FILE
@click.option("--read-only", is_flag=True, help="Consoles may watch; the engine takes no command.")
@click.pass_context
def command(
    ctx: click.Context, /, socket: str | None, token_file: str | None, read_only: bool, **flags: Any
) -> None:
    """Run an engine until its workload or --duration ends, or until SIGTERM or Ctrl+C.

    It says where it listens and who may connect: over a Unix socket only its own user, over TCP whoever has the
    token, which is made at first use in a file that only its owner can read.

    With --http it answers OpenAI's clients, too; without --workload nothing else is served then.

    A simulated engine keeps pace with the wall clock unless --no-real-time is given.
    """
    from schedtop.engine.serving.service import serve

    real_time = flags.get("real_time") is not False
    config = engine_config(
        flags,
        socket=socket,
        real_time=real_time,
        token_file=token_file,
        read_only=read_only,
        flight_folder=None if flags["no_flight_recorder"] else str(flights_root()),
    )
    if config.record is not None:
        check_writable(config.record)
    check_start(config)
    if lost := offer():
        say(lost)
    ctx.exit(serve(config))
