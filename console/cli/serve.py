"""`schedtop serve`: an engine without a console, for consoles to attach to."""

from __future__ import annotations

from typing import Any

import click
from schedtop.console.cli.engine_flags import add_engine_flags, engine_config
from schedtop.console.cli.errors import check_writable
from schedtop.console.cli.pull import check_start


@click.command("serve")
@add_engine_flags()
@click.option(
    "--listen", "socket", metavar="ADDRESS", help="unix:PATH or tcp:127.0.0.1:PORT; a private path unless set."
)
@click.pass_context
def command(ctx: click.Context, /, socket: str | None, **flags: Any) -> None:
    """Run an engine until its workload or --duration ends, SIGTERM or Ctrl+C; it says where it listens.

    A simulated engine keeps pace with the wall clock unless --no-real-time is given.
    """
    from schedtop.engine.serving.service import serve

    config = engine_config(flags, socket=socket, real_time=flags.get("real_time") is not False)
    if config.record is not None:
        check_writable(config.record)
    check_start(config)
    ctx.exit(serve(config))
