"""The engine's clock: seconds since its start, simulated or real."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    simulated: bool

    def now_s(self) -> float: ...

    def advance(self, elapsed_s: float | None) -> float:
        """The time after a device worked for `elapsed_s` (None: it took as long as it took)."""
        ...

    def skip_to(self, time_s: float) -> bool:
        """Jump an idle clock forward; False if it cannot be moved and `time_s` has not come."""
        ...


class SimulatedClock:
    """Moves only on request: the same run gives the same times, whatever the pace."""

    simulated = True

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def advance(self, elapsed_s: float | None) -> float:
        self._now_s += elapsed_s or 0.0
        return self._now_s

    def skip_to(self, time_s: float) -> bool:
        self._now_s = max(self._now_s, time_s)
        return True


class RealClock:
    """Monotonic time since the engine's start."""

    simulated = False

    def __init__(self) -> None:
        self._start_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def advance(self, elapsed_s: float | None) -> float:
        return self.now_s()

    def skip_to(self, time_s: float) -> bool:
        return self.now_s() >= time_s
