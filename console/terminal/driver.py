"""The terminal's driver: Textual's, but it is taken up again only where it was released before."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Any

from schedtop.console.terminal.frames import Frames
from textual.drivers.linux_driver import LinuxDriver
from textual.events import CursorPosition
from textual.message import Message

PATIENCE_S = 5.0
"""After so long without an answer the next frame is sent all the same."""
LAST_ANSWER_S = 0.5


class Outlet:
    """A terminal's file. Once the terminal is gone what is written is dropped: an error would end the thread that
    writes, and whoever has something to write would wait for it forever.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.writing = False
        """Something is written that has not been flushed: the terminal takes no more for now."""

    def write(self, words: str) -> None:
        self.writing = True
        with suppress(OSError):
            self._file.write(words)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()
        self.writing = False

    def fileno(self) -> int:
        """The number of the file behind it."""
        number: int = self._file.fileno()
        return number


def has_hung_up(fileno: int) -> bool:
    """Whether the terminal is gone: its window closed, its connection lost."""
    poll = select.poll()
    poll.register(fileno, 0)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


class ConsoleDriver(LinuxDriver):
    """Lets the terminal go before a SIGCONT that follows no Ctrl+Z (`kill -STOP` and `fg`, say) takes it up again.

    Without that a second set of threads would read and write, and what the terminal was like before would be lost.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._file: Any = Outlet(self._file)
        self.frames = Frames()
        self._sent_at_s: float | None = None
        self._answers = False
        self._lag_s = 0.0
        self._cursor = (-1, -1)

    # One frame at a time: a terminal behind a slow line is never sent what it could not show by then

    @property
    def busy(self) -> bool:
        """The terminal has not reported the last frame as shown."""
        if self._answers and self._sent_at_s is not None:
            return time.monotonic() - self._sent_at_s < PATIENCE_S
        return bool(self._file.writing)

    @property
    def lag_s(self) -> float:
        """How long the last frame took to reach the terminal, or is on its way already; 0 where nothing says."""
        on_way_s = time.monotonic() - self._sent_at_s if self._sent_at_s is not None and self._answers else 0.0
        return max(self._lag_s, on_way_s)

    def send_frame(self, cursor: tuple[int, int], begin: str, end: str) -> None:
        """Write what changed, and ask the terminal to answer once it is there."""
        words = self.frames.changes()
        if not words and cursor == self._cursor:
            return
        self._cursor = cursor
        self.write(f"{begin}{words}\x1b[{cursor[1] + 1};{cursor[0] + 1}H{end}\x1b[6n")
        self._sent_at_s = time.monotonic()

    def process_message(self, message: Message) -> None:
        """As Textual's; the terminal's answer to a frame is for nobody else."""
        if isinstance(message, CursorPosition):
            if self._sent_at_s is not None:
                self._lag_s, self._sent_at_s, self._answers = time.monotonic() - self._sent_at_s, None, True
            return
        super().process_message(message)

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.frames.forget()
        self._sent_at_s = None

    def disable_input(self) -> None:
        """The answer to the last frame is waited for: after us the shell would take it for typed."""
        until_s = time.monotonic() + LAST_ANSWER_S
        while self._answers and self._sent_at_s is not None and time.monotonic() < until_s:
            time.sleep(0.01)
        super().disable_input()

    def has_hung_up(self) -> bool:
        """Whether the terminal is gone."""
        return has_hung_up(self.fileno)

    def _sigcont_application(self, *_: object) -> None:
        if not self._must_signal_resume:  # which Ctrl+Z leaves behind
            if not self._in_use():
                return
            self.suspend_application_mode()
        super()._sigcont_application()

    def _in_use(self) -> bool:
        """Whether it draws on a terminal that is there and ours: a closed one sends SIGHUP and SIGCONT."""
        writer = self._writer_thread
        try:
            return writer is not None and writer.is_alive() and os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:
            return False

    def take_mouse(self, taken: bool) -> None:
        """Take the terminal's mouse, or leave it to the terminal."""
        self._disable_mouse_support()
        self._mouse = taken
        self._enable_mouse_support()
