"""Signals end a run between two steps, so that its report and recording are written."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_LOOK_EVERY_S = 0.1


class StopSignals:
    """`number` is the signal that requested the end, or None."""

    def __init__(self) -> None:
        self.number: int | None = None

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal requests the end."""
        if seconds <= 0:
            return
        until_s = time.monotonic() + seconds
        while self.number is None and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_EVERY_S))

    @contextmanager
    def heard(self) -> Iterator[StopSignals]:
        """Inside, SIGTERM and SIGHUP only set a flag; a second one ends the process as usual. Ignored signals
        (nohup) stay ignored. Outside the main thread nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_DFL
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(number, signal.SIG_DFL)
