"""`schedtop status`: the Live screen's facts as plain text, once; and, for `attach --plain`, a line a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
from schedtop.console.cli.engine_flags import TOKEN_FILE
from schedtop.console.cli.errors import INTERRUPTED, CommandError
from schedtop.console.cli.output import show, show_json
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.contract.telemetry import Bye

LISTEN_S = 2.0
"""How long to listen to the engine: without its last minutes, rates and findings need some steps."""
CATCH_UP_S = 30.0


class Listener:
    """Follows an engine without a screen."""

    def __init__(self, link: ChannelClient, slo: Slo) -> None:
        from schedtop.console.explain.watch import Watch
        from schedtop.console.explain.window import Bounds
        from schedtop.console.past.history import History

        self.link = link
        self.history = History()
        self.watch = Watch(self.history, Bounds(slo.ttft_s, slo.itl_s))
        limits = {"ttft": slo.ttft_s, "itl": slo.itl_s}
        self.slos_s = {kind: limit_s for kind, limit_s in limits.items() if limit_s is not None}

    def listen(self, until: Callable[[], bool], wait_s: float = 0.1) -> bool:
        """Take in what comes until then, or all that is there where it does not wait; False at the engine's end."""
        try:
            while not until():
                message = self.link.receive(wait_s)
                if message is not None:
                    self.history.apply(message)
                    if isinstance(message, Bye):
                        return False
                elif not wait_s:
                    break
        except ChannelError:
            return False
        return True

    def listen_long(self, seconds: float) -> bool:
        """Listen this long, and longer while the engine's last minutes are still being read; False at its end."""
        return self.listen(after(seconds)) and self.listen(after(CATCH_UP_S), wait_s=0.0)

    def facts(self, last: bool = False) -> dict[str, object]:
        """The present state; `last`: there is no later look, so what every look found counts."""
        from schedtop.console.status import facts

        self.watch.log.look(last=last)
        self.watch.entries = self.watch.log.ranked()
        return facts(self.history, self.watch.entries, self.slos_s)


def after(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= until_s


def follow(link: ChannelClient, slo: Slo) -> int:
    """Print a line a second until the engine ends; the exit code."""
    from schedtop.console.status import brief

    listener = Listener(link, slo)
    try:
        while listener.listen_long(1.0):
            show(brief(listener.facts()))
    except KeyboardInterrupt:
        return INTERRUPTED
    show("the engine has ended")
    return 0


@click.command("status")
@click.argument("address")
@click.option("--json", "as_json", is_flag=True, help="One JSON document; times in seconds.")
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: says how many samples were within it.")
@TOKEN_FILE
def command(address: str, as_json: bool, slo: str | None, token_file: str | None) -> None:
    """Print the state of the engine at ADDRESS once, as plain lines.

    http://HOST:PORT is the metrics page of a vLLM or SGLang server, which says less.
    """
    from schedtop.console.cli.fleet import is_page
    from schedtop.console.status import page

    if is_page(address):
        _show_page(address, as_json)
        return
    link = ChannelClient.connect(address, token_file=token_file, read_only=True, recent=True)
    link.await_welcome()
    listener = Listener(link, parse_slo(slo) if slo is not None else Slo())
    alive = listener.listen_long(LISTEN_S)
    if listener.history.header is None or not listener.history.synced:
        raise CommandError(f"no state from {address}" + ("; it is still loading" if alive else ": it has ended"))
    found = listener.facts(last=True)
    if as_json:
        show_json(found)
    else:
        show("\n".join(page(found)))


def _show_page(address: str, as_json: bool) -> None:
    from schedtop.console.cli.page_status import PageStatus

    status = PageStatus(address)
    time.sleep(LISTEN_S)
    status.look()
    if as_json:
        show_json(status.document())
    else:
        show("\n".join(status.page()))
