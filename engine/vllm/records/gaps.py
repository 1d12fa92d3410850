"""Delivery gaps of all requests, seconds: the newest in one table, so that a step adds all of its own at once."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

WIDTH = 32
"""Gaps of a request in the table, before they join its older ones."""


class Gaps:
    """By slot. float32, as a finished request's percentile needs them."""

    def __init__(self, num_slots: int) -> None:
        self._newest: npt.NDArray[np.float32] = np.zeros((num_slots, WIDTH), dtype=np.float32)
        self._filled: npt.NDArray[np.intp] = np.zeros(num_slots, dtype=np.intp)
        self._older: dict[int, array[float]] = {}

    def grow(self) -> None:
        """Double the number of slots."""
        self._newest = np.concatenate([self._newest, np.zeros_like(self._newest)])
        self._filled = np.concatenate([self._filled, np.zeros_like(self._filled)])

    def add(self, slots: npt.NDArray[np.intp], gaps_s: npt.NDArray[np.float64]) -> None:
        """One more gap of each of these."""
        filled = self._filled[slots]
        self._newest[slots, filled] = gaps_s
        self._filled[slots] = filled + 1
        for slot in slots[filled + 1 == WIDTH].tolist():
            self._older[slot] = self.take(slot)

    def take(self, slot: int) -> array[float]:
        """Take all gaps of a slot."""
        gaps = self._older.pop(slot, None) or array("f")
        gaps.frombytes(self._newest[slot, : self._filled[slot]].tobytes())
        self._filled[slot] = 0
        return gaps
