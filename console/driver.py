"""The terminal's driver: Textual's, but it is taken up anew only where it was let go before."""

from __future__ import annotations

import os

from textual.drivers.linux_driver import LinuxDriver


class ConsoleDriver(LinuxDriver):
    """Lets the terminal go before a SIGCONT that follows no Ctrl+Z (`kill -STOP` and `fg`, say) takes it up again.

    Without that a second set of threads would read and write, and what the terminal was like before would be lost.
    """

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
