"""The findings of a console: fed with what history takes in, looked at no more than once a second."""

from __future__ import annotations

from schedtop.console.drawing import text
from schedtop.console.explain import catalogue
from schedtop.console.explain.log import Log, LogEntry
from schedtop.console.explain.window import Bounds
from schedtop.console.past.past import Past
from schedtop.console.view import View
from schedtop.engine.contract.telemetry import Header, Outgoing

EVERY_S = 1.0


class Watch:
    """`entries` are the findings as of the last look, those that hold first. Look with the history locked."""

    def __init__(self, history: Past, bounds: Bounds) -> None:
        self.log = Log(bounds=bounds)
        self.entries: list[LogEntry] = []
        self._looked_at_s: float | None = None
        self._looked_seq, self._looks_there = -1, 0
        self._started_at: float | None = None
        history.watchers.append(self._take)

    def _take(self, message: Outgoing) -> None:
        """What was found in another engine's run is nothing of this one, from its first message on."""
        if isinstance(message, Header) and message.started_at != self._started_at:
            self.entries, self._started_at, self._looked_seq = [], message.started_at, -1
        self.log.take(message)

    def look_if_due(self, view: View) -> None:
        """Look, if a second has passed on the console's clock."""
        now_s = view.now()
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        if now_s - self._looked_at_s >= EVERY_S:
            self._looked_at_s = now_s
            self.look(view)

    def look(self, view: View) -> None:
        """Look now. A live engine that says nothing is itself a symptom; one that has ended is not."""
        facts = self.log.diagnosis.facts
        silent_s = view.silent_s if view.link.state == "open" else None
        self._looks_there = self._looks_there + 1 if facts.seq == self._looked_seq else 1
        self._looked_seq = facts.seq
        if self._looks_there > catalogue.LOOKS.value and (silent_s is None or silent_s < catalogue.SILENT.value):
            return  # everything in the newest record has been reported
        self.log.look(silent_s)
        self.entries = self.log.ranked()

    @property
    def num_active(self) -> int:
        return sum(entry.active for entry in self.entries)

    def badge(self, key: str) -> str:
        """What the header says: `! 2 findings x`; nothing while nothing is found."""
        return f"! {text.plural(self.num_active, 'finding')} {key}".rstrip() if self.num_active else ""
