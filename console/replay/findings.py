"""Findings of a recording: read from the stretch that ends at the shown step, once the position stands still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from schedtop.console.explain.desk import ExplainDesk
from schedtop.console.explain.log import Log, read
from schedtop.console.explain.window import Bounds
from schedtop.console.replay.history import RecordedHistory
from schedtop.console.view import View
from schedtop.engine.telemetry import Outgoing

SPAN_S = 60.0
MAX_READ = 4096
"""Records that a look goes back, whatever their time."""
STILL_S = 0.4


class ReplayExplainDesk(ExplainDesk):
    """The same findings wherever one came from: they depend on the shown step alone."""

    def __init__(self, history: RecordedHistory, bounds: Bounds) -> None:
        super().__init__(history, bounds)
        history.watchers.clear()
        self.history, self.bounds = history, bounds
        self._position, self._since_s = -1, 0.0
        self._read = -1

    def look_if_due(self, view: View) -> bool:
        """Look once the position has not moved for a moment; findings of another step are taken down at once."""
        position, now_s = self.history.position, view.now()
        if position != self._position:
            self._position, self._since_s = position, now_s
            had, self.entries = bool(self.entries), []
            return had
        if position == self._read or now_s - self._since_s < STILL_S:
            return False
        self.look(view)
        return True

    def look(self, view: View) -> None:
        """Look now."""
        self.log = read(self._messages(), Log(bounds=self.bounds))
        self.entries = self.log.ranked()
        self._read = self.history.position

    def _messages(self) -> Iterator[Outgoing]:
        history, source = self.history, self.history.source
        begin = source.index_at(history.live.clock_s - SPAN_S) or 0
        begin = max(begin, history.position - MAX_READ, 0)
        snapshot, first = source.keyframe_before(begin)
        yield source.header
        yield snapshot
        yield from cast(Iterator[Outgoing], history.between_indices(first, history.position + 1))
