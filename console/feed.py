"""From the link to history, on its own thread, and commands the other way."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from schedtop.console.drawing import text
from schedtop.console.past.history import History
from schedtop.console.view import LinkStatus
from schedtop.engine.contract.commands import Incoming
from schedtop.engine.contract.spare_memory import SpareMemory
from schedtop.engine.contract.telemetry import PROTOCOL, Bye, Header, Outgoing, Reply, Stage, StepRecord

_LOOK_S = 0.25
_RETRY_S = (1.0, 2.0, 4.0, 8.0)


class Link(Protocol):
    """One connection to an engine. `receive` raises an exception, whose text is the cause, when it is gone."""

    def receive(self, timeout_s: float) -> Outgoing | None:
        """The next message; None if none came in time."""
        ...

    def send(self, command: Incoming) -> None: ...

    def close(self) -> None: ...


class Commanded(Protocol):
    """Where the console's data come from and its commands go."""

    status: LinkStatus
    received_at_s: float | None
    behind_s: float
    why_ended: Callable[[], str | None] | None

    @property
    def never_began(self) -> bool:
        """The console's own engine ended before it had loaded, as with settings that do not go together."""
        return False

    def start(self) -> None: ...

    def close(self) -> None:
        """Hang up and let the thread end."""
        ...

    def looked(self) -> None:
        """The screen has taken the present state: notify it of the next change."""
        ...

    def next_command(self) -> int:
        """A fresh id for a command."""
        ...

    def send(self, command: Incoming) -> str | None:
        """Send a command; why it could not be sent, or None."""
        ...


class Feed(Commanded):
    """Reads a link until it ends, applies what comes to `history` under its lock, and tells `on_change` once per
    look: it is not called again before `looked`. With `reopen` a lost link is opened again, ever more patiently.

    `on_change` and `on_reply` are called on the feed's thread.
    """

    def __init__(
        self,
        link: Link,
        history: History,
        on_change: Callable[[], None],
        on_reply: Callable[[Reply], None],
        reopen: Callable[[], Link] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = history
        self.status = LinkStatus("connecting", since_s=now())
        self.received_at_s: float | None = None
        self.behind_s = 0.0  # by so much the record read last is older than it came
        self._joined_at_s = self._newest_s = -math.inf
        self.why_ended: Callable[[], str | None] | None = None
        self._link = link
        self._on_change, self._on_reply, self._reopen, self._now = on_change, on_reply, reopen, now
        self._reported = False
        self._closing = threading.Event()
        self._commands = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="console-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._link.close()
        if self._thread.is_alive():
            self._thread.join(0.5)

    def looked(self) -> None:
        self._reported = False

    def next_command(self) -> int:
        return next(self._commands)

    def send(self, command: Incoming) -> str | None:
        if self.status.state != "open":
            return f"not connected to an engine: {self.status.cause or self.status.state}"
        try:
            self._link.send(command)
        except Exception as error:
            return text.clean(error)
        return None

    def _run(self) -> None:
        tries, spare = 0, SpareMemory(self._now())
        while not self._closing.is_set():
            spare.look(self._now())
            try:
                message = self._link.receive(_LOOK_S)
            except Exception as error:  # whatever a link raises explains why no more data arrives
                if not self._lost(text.clean(error), tries):
                    return
                tries += 1
                continue
            if message is not None:
                tries = 0
                if not self._taken(message):
                    return

    def _taken(self, message: Outgoing) -> bool:
        """Take a message in; False if it makes no sense, which ends the feed and is shown."""
        try:
            self._take(message)
        except Exception as error:
            cause = f"cannot read a message from the engine ({type(error).__name__}: {text.clean(error)})"
            self._set(LinkStatus("ended", cause, self._now()))
            return False
        return True

    def _take(self, message: Outgoing) -> None:
        if isinstance(message, StepRecord) and self.status.state == "open":  # nearly all: thousands a second
            with self.history.lock:
                self.history.apply(message)
                self.received_at_s = now_s = self._now()
                if self._newest_s > -math.inf:
                    self._note_age(now_s)
            self._tell()
            return
        if isinstance(message, Header) and message.protocol != PROTOCOL:
            cause = f"the engine uses protocol {message.protocol}, this console {PROTOCOL}: use one version"
            self._set(LinkStatus("ended", cause, self._now()))
            self._closing.set()
            return
        with self.history.lock:
            self.history.apply(message)
            self.received_at_s = now_s = self._now()
            if isinstance(message, Header) and message.newest_s is not None:
                self._joined_at_s, self._newest_s = now_s, message.newest_s
            self._note_age(now_s)
        if isinstance(message, Reply):
            self._on_reply(message)
        if isinstance(message, Bye) and not (self.history.header is None and self.why_ended):
            self.status = LinkStatus("ended", text.clean(message.reason), self._now())
        elif self.status.state != "open" and (self.status.state != "ended" or isinstance(message, Header | Stage)):
            self.status = LinkStatus("open", since_s=self._now())
        self._tell()

    def _note_age(self, now_s: float) -> None:
        """How far the reading of the last minutes is behind."""
        left_s = self._newest_s - self.history.live.clock_s
        self.behind_s = now_s - self._joined_at_s + left_s if left_s > 0 else 0.0

    @property
    def never_began(self) -> bool:
        return self.status.state == "ended" and self.history.header is None and self.why_ended is not None

    def _lost(self, cause: str, tries: int) -> bool:
        """Note the end of the link; True once it is open again, False when there is nothing to wait for."""
        ended = self.status.state == "ended"
        if self._closing.is_set() or (ended and self._reopen is None):
            return False
        if self._reopen is None:
            self._set(LinkStatus("ended", self._fuller_cause(cause), self._now()))
            return False
        # An engine that said why it ends may be started again, as one that crashed.
        state, cause = ("ended", self.status.cause) if ended else ("lost", cause)
        since_s = self.status.since_s if self.status.state in ("lost", "ended") else self._now()
        wait_s = _RETRY_S[min(tries, len(_RETRY_S) - 1)]
        self._set(LinkStatus(state, cause, since_s, self._now() + wait_s))
        if self._closing.wait(wait_s):
            return False
        try:
            self._link = self._reopen()
        except Exception as error:
            self._set(LinkStatus(state, cause if ended else text.clean(error), since_s, None))
        return True

    def _fuller_cause(self, cause: str) -> str:
        """What the engine's owner knows of its end; a process may take a moment to be gone."""
        for _ in range(10):
            words = self.why_ended() if self.why_ended is not None else cause
            if words:
                return text.clean(words)
            self._closing.wait(0.05)
        return cause

    def _set(self, status: LinkStatus) -> None:
        self.status = status
        self._tell()

    def _tell(self) -> None:
        if not self._reported:
            self._reported = True
            self._on_change()
