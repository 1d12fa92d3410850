"""Returns freed memory that the allocator keeps to the system now and then.

What outlives a burst is scattered among what the burst freed, so glibc alone would never return it.
"""

from __future__ import annotations

import ctypes

EVERY_S = 10.0
"""Returning memory takes a few milliseconds."""


class SpareMemory:
    """Returns memory every `EVERY_S`, from `now_s` on; only glibc supports this."""

    def __init__(self, now_s: float) -> None:
        self._due_s = now_s + EVERY_S
        self._give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def look(self, now_s: float) -> None:
        """Return memory if it is time."""
        if now_s >= self._due_s and self._give_back is not None:
            self._due_s = now_s + EVERY_S
            self._give_back(0)
