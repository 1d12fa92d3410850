"""Memory that was freed and that the allocator keeps, given back to the system now and then.

What outlives a burst lies between what the burst left, so that glibc alone would keep it all for good.
"""

from __future__ import annotations

import ctypes

EVERY_S = 10.0
"""Giving back takes a few milliseconds."""


class SpareMemory:
    """Gives back every `EVERY_S`, from `now_s` on. Other C libraries than glibc do so themselves, or never."""

    def __init__(self, now_s: float) -> None:
        self._due_s = now_s + EVERY_S
        self._give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def look(self, now_s: float) -> None:
        """Give back if it is time to."""
        if now_s >= self._due_s and self._give_back is not None:
            self._due_s = now_s + EVERY_S
            self._give_back(0)
