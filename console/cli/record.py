"""`schedtop record`: a recording of an engine that runs elsewhere on this machine."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace
from schedtop.console.cli.engine_flags import TOKEN_FILE
from schedtop.console.cli.errors import FAILED, CommandError, check_writable, say
from schedtop.console.cli.fleet import is_page
from schedtop.console.past.state import LiveState
from schedtop.engine.channel.client import ChannelClient, ChannelClosedError
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.commands import SetKnobs
from schedtop.engine.contract.telemetry import Bye, Header, Reply, Snapshot, StepRecord
from schedtop.engine.recording import RecordingWriter

LOOK_EVERY_S = 0.2
HEADER_WITHIN_S = 30.0
"""An engine that is still loading its model is slow to answer."""
END_WITHIN_S = 10.0


@click.command("record")
@click.argument("address")
@click.option("-o", "--output", required=True, metavar="FILE", help="The recording; it must not exist yet.")
@click.option(
    "--duration", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds; until Ctrl+C unless set."
)
@TOKEN_FILE
@click.pass_context
def command(
    ctx: click.Context, /, address: str, output: str, duration: float | None, token_file: str | None
) -> None:
    """Record the engine at ADDRESS (unix:PATH or tcp:127.0.0.1:PORT) until it ends, --duration or Ctrl+C.

    http://HOST:PORT records a server's metrics page, which `schedtop replay` shows.

    A vLLM server keeps its first records: if none was dropped, the recording begins with the server's start, which
    `schedtop verify` needs. Exit code 1 if records were lost on the way; the recording ends before them.
    """
    check_writable(output)
    if is_page(address):
        _record_pages(address, output, duration)
        return
    with ChannelClient.connect(address, token_file=token_file, read_only=True, from_start=True) as link:
        recorder = LinkRecorder(link, output)
        _stop_on_signals(recorder)
        try:
            recorder.run(duration)
        finally:
            recorder.close()
    say(recorder.summary())
    ctx.exit(FAILED if recorder.lost else 0)


def _record_pages(address: str, output: str, duration_s: float | None) -> None:
    from schedtop.console.cli.page_recordings import record_pages

    stopped = threading.Event()
    _on_signals(stopped.set)
    until_s = float("inf") if duration_s is None else time.monotonic() + duration_s
    say(record_pages([address], output, lambda: stopped.is_set() or time.monotonic() > until_s))


def _stop_on_signals(recorder: LinkRecorder) -> None:
    def stop() -> None:
        recorder.stopped = True

    _on_signals(stop)


def _on_signals(stop: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop())


class LinkRecorder:
    """Writes what a link receives to a new file. `lost` says why the recording ends before the engine did."""

    def __init__(self, link: ChannelClient, path: str) -> None:
        self.stopped = False
        self.lost = ""
        self._link, self._path = link, path
        self._state = LiveState()
        self._header: Header | None = None
        self._writer: RecordingWriter | None = None
        self._first_step = 0

    @property
    def num_finished(self) -> int:
        """Requests that have ended, by the records so far."""
        totals = self._state.totals
        return totals.finished + totals.aborted

    def run(self, duration_s: float | None) -> None:
        """Record until the engine ends, time is up (with everything reported by then) or `stopped`.

        Raises `ChannelError`, `RecordingError`.
        """
        began_s, finishing = time.monotonic(), False
        until_s = None if duration_s is None else began_s + duration_s
        while not self.stopped and not self.lost:
            if until_s is not None and time.monotonic() >= until_s:
                if finishing:
                    return  # it does not answer
                finishing, until_s = True, until_s + END_WITHIN_S
                self.finish()
            if self._writer is None and time.monotonic() > began_s + HEADER_WITHIN_S:
                raise ChannelError(f"the engine said nothing within {HEADER_WITHIN_S:g} s")
            try:
                message = self._link.receive(LOOK_EVERY_S)
            except ChannelClosedError:
                if self._writer is None:
                    raise
                return
            if isinstance(message, Bye):
                if self._writer is None:
                    raise CommandError(message.reason)
                return
            if isinstance(message, Reply):
                return
            if message is not None:
                self._take(message)

    def finish(self) -> None:
        """Finish with everything received so far; may be called from another thread."""
        with suppress(ChannelClosedError):
            self._link.send(SetKnobs(1, {}, dry_run=True))  # its answer, a refusal, comes after that

    def _take(self, message: Any) -> None:
        if isinstance(message, Header):
            self._header = replace(message, newest_s=None)
        elif isinstance(message, Snapshot):
            if self._writer is not None:
                self.lost = f"{message.dropped} records were lost: the recording ends at step {self._state.step}"
                return
            assert self._header is not None
            self._state.start_afresh(message)
            self._first_step = message.step
            self._writer = RecordingWriter(self._path, self._header, self._state.snapshot)
        elif isinstance(message, StepRecord) and self._writer is not None:
            self._state.apply(message)
            self._writer.write(message)

    def close(self) -> None:
        """Write what is queued. Raises `OSError` if the recording is not whole."""
        if self._writer is not None:
            self._writer.close()

    def summary(self) -> str:
        """The outcome, in one line."""
        if self._writer is None:
            return f"{self._path}: nothing was recorded"
        since = "the engine's start" if not self._first_step else f"step {self._first_step}"
        line = f"{Path(self._path)}: {self._state.step - self._first_step} steps, from {since}"
        return f"{line}; {self.lost}" if self.lost else line
