"""The terminal's driver: Textual's, but it is taken up anew only where it was let go before."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Any

from textual.drivers.linux_driver import LinuxDriver


class Outlet:
    """A terminal's file. Once the terminal is gone what is written is dropped: an error would end the thread that
    writes, and whoever has something to write would wait for it for ever.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, words: str) -> None:
        with suppress(OSError):
            self._file.write(words)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

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
