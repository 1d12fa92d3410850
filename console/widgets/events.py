"""[7] Events: what happened, newest first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD
from schedtop.console.past.events import Event
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces

ROLES = {
    "A": "ok",
    "V": "breach",
    "K": "accent",
    "X": "breach",
    "F": "muted",
    "E": "warn",
    "P": "warn",
    "N": "warn",
    "G": "warn",
}
LEVELS = (("most", "AVKXEPNG"), ("important", "VKXEPNG"), ("all", "AVKXFEPNG"))


class EventsPanel(Panel):
    NUMBER: ClassVar[int] = 7
    TITLE: ClassVar[str] = "Events"
    UNHURRIED: ClassVar[bool] = True
    BODY_TELLS_FOCUS: ClassVar[bool] = True
    HELP: ClassVar[str] = """\
  A admitted   waited = time in the queue, cached = prompt tokens the prefix cache gave
  V preempted  the victim, who needed the room (for), blocks freed, tokens to compute again (lost)
  K knob changed, and by whom          X refused at submission, with need and capacity
  F finished                           E ended early: aborted, or cut off by a full pool (kv_capacity)
  P engine paused or resumed
  N notice                             G records that never came (totals stay right)
LOOP marks a request preempted and re-admitted three times while nothing finished in between.
Enter shows the step of the selected event in all panels. o chooses which events are listed."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.level = 0
        self.cursor = 0
        self.top = 0
        self._selected: Event | None = None

    def headline(self) -> Pieces:
        word = LEVELS[self.level][0]
        return [(word, "muted")] + ([("following", "muted")] if self._selected is None else [("held", "warn")])

    def listed(self) -> Iterator[Event]:
        """Events up to the shown moment, newest first."""
        kinds, last = LEVELS[self.level][1], self.view.moment.seq
        return (event for event in reversed(self.view.history.events) if event.kind in kinds and event.seq <= last)

    def body(self, width: int, height: int) -> list[Line]:
        if self._selected is not None:
            self._find_selected()
        self.top = max(min(self.top, self.cursor), self.cursor - height + 1, 0)
        shown = list(islice(self.listed(), self.top, self.top + height))
        if not shown:
            return [Line().add(" No events yet", self.view.palette["muted"])]
        return [
            self.line(event, width, self.active and self.top + index == self.cursor)
            for index, event in enumerate(shown)
        ]

    def _find_selected(self) -> None:
        """New events push the selected one down; the cursor goes with it."""
        index = next((at for at, event in enumerate(self.listed()) if event is self._selected), None)
        if index is None:
            self.cursor, self._selected = 0, None
        else:
            self.top += index - self.cursor
            self.cursor = index

    def line(self, event: Event, width: int, selected: bool = False) -> Line:
        palette = self.view.palette
        under = "cursor" if selected else "background"
        line = Line().add(f"{self.time(event)} ", palette.on("muted", under))
        line.add(event.kind, palette.on(ROLES[event.kind], under) + BOLD)
        words = event.describe()
        if line.length + 1 + len(words) > width:
            words = event.describe(short=True)
        return line.add(f" {words}", palette.on("text", under))

    def time(self, event: Event) -> str:
        header = self.view.history.header
        if header is None or header.simulated_clock:
            minutes, seconds = divmod(abs(event.clock_s), 60)
            return f"{'-' if event.clock_s < 0 else ''}{int(minutes):02d}:{seconds:05.2f}"
        return time.strftime("%H:%M:%S", time.localtime(header.started_at + event.clock_s))

    def move(self, lines: int) -> None:
        last = sum(1 for _ in self.listed()) - 1
        if last < 0:
            return
        self.cursor = max(0, min(last, self.cursor + lines))
        self._selected = self.selected() if self.cursor else None

    def cycle_level(self) -> None:
        """List more or fewer kinds of events."""
        self.level = (self.level + 1) % len(LEVELS)

    def selected(self) -> Event | None:
        return next(islice(self.listed(), self.cursor, None), None)

    def copied(self) -> str:
        event = self.selected()
        return f"{self.time(event)} {event.kind} {event.describe()}" if event is not None else ""

    def click_line(self, y: int, x: int) -> None:
        self.move(self.top + y - self.cursor)
