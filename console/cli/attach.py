"""`schedtop attach`: the console on an engine that runs elsewhere on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import click
from schedtop.console.cli.engine_flags import CONSOLE_FLAGS, TOKEN_FILE
from schedtop.console.cli.errors import CommandError, say
from schedtop.console.cli.open_console import check_terminal, console_options
from schedtop.console.cli.record_process import RecordProcess
from schedtop.console.cli.status import follow
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.contract.latencies.slo import Slo, parse_slo


def _console_flags(function: Any) -> Any:
    for option in reversed(CONSOLE_FLAGS):
        function = option(function)
    return function


@click.command("attach")
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@_console_flags
@click.option("--plain", is_flag=True, help="A line of text a second, for screen readers, logs and watch.")
@TOKEN_FILE
@click.pass_context
def command(
    ctx: click.Context, /, addresses: tuple[str, ...], plain: bool, token_file: str | None, **flags: Any
) -> None:
    """Open the console on the engine at ADDRESS (unix:PATH or tcp:127.0.0.1:PORT), as `schedtop serve` says it.

    http://HOST:PORT is the metrics page of a vLLM or SGLang server. Several addresses, or a pattern of socket paths,
    are a fleet: a row per engine; Enter opens one that reports its steps.
    """
    from schedtop.console.cli.fleet import expand, is_page

    if plain:
        if len(addresses) != 1:
            raise CommandError("--plain follows one engine: give one address")
        slo = parse_slo(flags["slo"]) if flags["slo"] is not None else Slo()
        if is_page(addresses[0]):
            from schedtop.console.cli.page_status import PageStatus

            ctx.exit(PageStatus(addresses[0]).follow())
        link = ChannelClient.connect(addresses[0], token_file=token_file, read_only=True, recent=True)
        link.await_welcome()
        ctx.exit(follow(link, slo))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("attach needs a terminal; --plain needs none")
    check_terminal()
    found = expand(addresses)
    if not found:
        raise CommandError(f"no socket matches {' '.join(addresses)}")
    if len(found) == 1 and not is_page(found[0]):
        ctx.exit(_open(found[0], token_file, flags))
    ctx.exit(_open_fleet(found, token_file, flags))


def _open(address: str, token_file: str | None, flags: dict[str, Any]) -> int:
    def connect() -> ChannelClient:
        return ChannelClient.connect(address, token_file=token_file, read_only=flags["read_only"], recent=True)

    link = connect()
    link.await_welcome()
    from schedtop.console.app import run_console
    from schedtop.console.cli.attached_forecast import AttachedForecast, SeenSteps

    options = replace(console_options(flags, embedded=False), address=address)
    seen = SeenSteps()
    make_forecast, recorder = AttachedForecast(seen), RecordProcess(address, token_file)
    try:
        return run_console(
            seen.through(link),
            options,
            reopen=lambda: seen.through(connect()),
            make_forecast=make_forecast,
            recorder=recorder,
        )
    finally:
        make_forecast.close()
        if (recorded := recorder.close()) is not None:
            say(recorded)


def _open_fleet(addresses: list[str], token_file: str | None, flags: dict[str, Any]) -> int:
    """The fleet's screen, and from it into one engine and back, until it is left."""
    from schedtop.console.cli.fleet import Members, is_page
    from schedtop.console.cli.set_limits import set_everywhere
    from schedtop.console.fleet.app import FleetApp

    engines = [address for address in addresses if not is_page(address)]
    members = Members(addresses, token_file)
    members.start()
    try:
        while True:
            title = f"{len(addresses)} addresses" if len(addresses) > 1 else addresses[0]
            set_limits = partial(set_everywhere, engines, token_file=token_file)
            app = FleetApp(members, title, set_limits=set_limits if engines and not flags["read_only"] else None)
            address = app.run(mouse=not flags["no_mouse"])
            if address is None:
                return app.return_code or 0
            _open(address, token_file, flags)
    finally:
        members.close()
