"""Rows of a trace in order of arrival, without reading the whole file."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from schedtop.engine.workload.trace import BadRowError, Tally, TraceRow

WINDOW_ROWS = 50_000
"""How far ahead a trace is read. A file of no more rows is sorted whole; in a longer one a row may stand up to this
many rows after its place."""

Timed = tuple[float, int, TraceRow]


class ByArrival:
    """Iterates once over (time, place in file, row) by time; rows of one time keep the file's order.

    Of `num_rows` read so far, `inversions` counts those that come after a later one in the file; one that comes
    too late for the window is reported to the tally as a bad row.
    """

    def __init__(self, rows: Iterator[TraceRow], tally: Tally, window: int) -> None:
        self.num_rows = self.inversions = 0
        self._rows = self._counted(rows)
        self._tally = tally
        self._window = window

    def __iter__(self) -> Iterator[Timed]:
        heap = sorted(islice(self._rows, self._window))  # sorted, hence a heap
        last_s = float("-inf")
        for item in self._rows:
            if item[0] < last_s:
                self._tally.reject(item[2].line, BadRowError("arrival too far out of order: sort the file by time"))
                continue
            first = heapq.heappushpop(heap, item)
            last_s = first[0]
            yield first
        while heap:
            yield heapq.heappop(heap)

    def _counted(self, rows: Iterator[TraceRow]) -> Iterator[Timed]:
        latest_s = float("-inf")
        for place, row in enumerate(rows):
            self.num_rows = place + 1
            time_s = row.time_s or 0.0
            self.inversions += time_s < latest_s
            latest_s = max(latest_s, time_s)
            yield time_s, place, row
