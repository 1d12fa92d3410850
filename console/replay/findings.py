"""Findings of a recording: read from the steps up to the shown one, once the position is at rest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

from schedtop.console.explain.log import Log, reading
from schedtop.console.explain.watch import Watch
from schedtop.console.explain.window import Bounds
from schedtop.console.past.recorded.history import RecordedHistory
from schedtop.console.view import View

SPAN_S = 60.0
MAX_READ = 4096
"""Records that a look goes back, whatever their time."""
STILL_S = 0.4
_SLICE_S = 0.015


class ReplayWatch(Watch):
    """The same findings wherever one came from: they depend on the shown step alone.

    Reading takes a while, so it is done in slices, one a call, while the position is at rest.
    """

    def __init__(self, history: RecordedHistory, bounds: Bounds) -> None:
        super().__init__(history, bounds)
        history.watchers.clear()
        self.history, self.bounds = history, bounds
        self._position, self._since_s = -1, 0.0
        self._work: Iterator[None] | None = None

    def is_due(self, now_s: float) -> bool:
        """True while there is more to read and the position has stood still for long enough."""
        return self._work is not None and now_s - self._since_s >= STILL_S

    def look_if_due(self, view: View) -> None:
        """Read on. Findings of another step are taken down at once."""
        position, now_s = self.history.position, view.now()
        if position != self._position:
            self._position, self._since_s = position, now_s
            self._work, self.entries = self._read(), []
        if self._work is None or not self.is_due(now_s):
            return
        until_s = time.monotonic() + _SLICE_S
        while time.monotonic() < until_s:
            if next(self._work, self) is self:
                self._finish()
                return

    def look(self, view: View) -> None:
        """Read to the end, now."""
        if self._position != self.history.position:
            self._position, self._work = self.history.position, self._read()
        if self._work is not None:
            for _ in self._work:
                pass
            self._finish()

    def _finish(self) -> None:
        self._work = None
        self.entries = self.log.ranked()

    def _read(self) -> Iterator[None]:
        """Take in the stretch before the position, a message a turn, as a file's reader does."""
        history, source = self.history, self.history.source
        self.log = Log(bounds=self.bounds)
        begin = source.index_at(history.live.clock_s - SPAN_S) or 0
        begin = max(begin, history.position - MAX_READ, 0)
        snapshot, first = source.keyframe_before(begin)
        records = history.between_indices(first, history.position + 1)
        yield from reading(chain((source.header, snapshot), records), self.log)
