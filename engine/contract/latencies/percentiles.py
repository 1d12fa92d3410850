"""Exact percentiles of many values in little memory."""

from __future__ import annotations

from array import array
from typing import Literal

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.latencies.cohort import Cohort, cohort

COMPACT_AT = 4 * 2**20
"""Values buffered before equal ones are merged. Rows of one step mostly share their gap, so few remain."""


class Percentiles:
    """Collects values and interpolates linearly between them. NaN is not a value.

    `code` is the array type that values are kept in: "d" (float64) or "f" (float32, as telemetry sends gaps).
    """

    def __init__(self, code: Literal["d", "f"] = "d") -> None:
        self._new: array[float] = array(code)
        dtype = np.float32 if code == "f" else np.float64
        self._values: npt.NDArray[np.floating] = np.zeros(0, dtype=dtype)
        self._counts = np.zeros(0, dtype=np.int64)
        self._ends = np.zeros(0, dtype=np.int64)

    def add(self, value: float) -> None:
        """One more value."""
        self._new.append(value)

    def add_bytes(self, raw: bytes) -> None:
        """Values as the bytes of an array of this type."""
        self._new.frombytes(raw)
        if len(self._new) >= COMPACT_AT:
            self._compact()

    @property
    def count(self) -> int:
        """How many values there are."""
        self._compact()
        return int(self._ends[-1]) if len(self._ends) else 0

    def percentile(self, share: float) -> float | None:
        """The value below which `share` (0 to 1) of the values fall; None without any."""
        count = self.count
        if not count:
            return None
        place = share * (count - 1)
        low = self._at(int(place))
        high = self._at(min(int(place) + 1, count - 1))
        return low + (high - low) * (place - int(place))

    def cohort(self, unended: npt.ArrayLike = ()) -> Cohort:
        """All values as known ones, and those still open."""
        self._compact()
        return cohort(self._values, unended, self._counts)

    def _at(self, rank: int) -> float:
        return float(self._values[np.searchsorted(self._ends, rank, side="right")])

    def _compact(self) -> None:
        if not self._new:
            return
        added = np.frombuffer(self._new, dtype=self._values.dtype)
        added = np.sort(added[~np.isnan(added)])
        self._new = self._new[:0]
        values = np.concatenate([self._values, added])
        counts = np.concatenate([self._counts, np.ones(len(added), dtype=np.int64)])
        if len(self._values):
            order = np.argsort(values, kind="stable")
            values, counts = values[order], counts[order]
        if len(values):
            starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
            values, counts = values[starts], np.add.reduceat(counts, starts)
        self._values, self._counts, self._ends = values, counts, np.cumsum(counts)
