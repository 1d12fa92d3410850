"""The line over the footer: the whole recording from left to right, what happened in it, and the position."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.style import Style
from schedtop.console.drawing.line import Line
from schedtop.console.past.recorded.source import MARKS, RecordedSource
from schedtop.console.view import View
from schedtop.console.widgets.panel import Drawn
from schedtop.engine.contract.telemetry import FinishReason, StepRecord

if TYPE_CHECKING:
    from schedtop.console.replay.player import Player
    from textual.events import MouseDown

LETTERS: dict[str, tuple[str, str]] = {
    "knobs": ("K", "accent"),
    "refusals": ("X", "breach"),
    "loops": ("L", "breach"),
    "preemptions": ("V", "breach"),
    "aborts": ("E", "warn"),
}
"""Letter and colour of each mark; where several fall together the first of these is shown."""

_LOOK_S = 0.01


class RecordingMarks:
    """Where the marks are. Chunks longer than a cell are searched, a few at a time."""

    def __init__(self, source: RecordedSource) -> None:
        self.source = source
        self.marks: list[tuple[float, str]] = []
        self._chunks = [
            (first, num, end_s, [name for name in MARKS if getattr(marks, name)])
            for first, num, end_s, marks in source.timeline()
        ]
        self._next = 0
        self.version = 0

    @property
    def done(self) -> bool:
        return self._next >= len(self._chunks)

    def look(self, cells: int, budget_s: float = _LOOK_S) -> None:
        """Place the marks of more chunks, as long as it takes no more than about `budget_s`."""
        until_s = time.monotonic() + budget_s
        cell_s = (self.source.end_s - self.source.start_s) / max(1, cells)
        while not self.done and time.monotonic() < until_s:
            first, num, end_s, names = self._chunks[self._next]
            before_s = self._chunks[self._next - 1][2] if self._next else self.source.start_s
            if names and end_s - before_s > cell_s:
                for record in self.source.records(first, first + num):
                    self.marks += [(record.end_s, name) for name in names if happened(record, name)]
            else:
                self.marks += [(end_s, name) for name in names]
            self._next += 1
            self.version += 1

    def letters(self, cells: int) -> dict[int, str]:
        """The mark of each cell that has one."""
        span_s = self.source.end_s - self.source.start_s
        order = list(LETTERS)
        found: dict[int, str] = {}
        for clock_s, name in self.marks:
            cell = cell_of(clock_s - self.source.start_s, span_s, cells)
            if cell not in found or order.index(name) < order.index(found[cell]):
                found[cell] = name
        return found


def happened(record: StepRecord, name: str) -> bool:
    """Whether a record has a mark."""
    match name:
        case "loops":
            return any(preemption.loop for preemption in record.preemptions)
        case "aborts":
            early = (FinishReason.ABORT, FinishReason.KV_CAPACITY)
            return any(finish.reason in early for finish in record.finishes)
    return bool(getattr(record, name))


def cell_of(at_s: float, span_s: float, cells: int) -> int:
    """The cell of `cells` that contains a time."""
    return min(cells - 1, max(0, int(at_s / span_s * cells))) if span_s > 0 else 0


class TimelineBar(Drawn):
    """Time and length, then a cell for every stretch. A click goes there."""

    def __init__(self, view: View, player: Player, *, id: str) -> None:
        super().__init__(view, id=id)
        self.player = player
        self.timeline = RecordingMarks(player.history.source)
        self._known: tuple[object, dict[int, str]] = ((), {})

    def _label(self) -> str:
        status = self.player.status()
        span_s = status.end_s - status.start_s
        return f" {clock(status.clock_s - status.start_s, span_s)} of {clock(span_s, span_s)} "

    def lines(self, width: int, height: int) -> list[Line]:
        palette, glyphs = self.view.palette, self.view.glyphs
        label = self._label()
        cells = max(1, width - len(label) - 1)
        status = self.player.status()
        here = cell_of(status.clock_s - status.start_s, status.end_s - status.start_s, cells)
        letters = self._letters(cells)
        under = palette.on("text", "surface")
        chars, styles = [], []
        for cell in range(cells):
            name = letters.get(cell)
            letter, role = LETTERS[name] if name else (glyphs.rule, "accent" if cell <= here else "muted")
            style = palette.on(role, "surface")
            if cell == here:
                style = palette.on("text", "surface") + Style(reverse=True, bold=True)
                letter = letter if name else glyphs.column
            chars.append(letter)
            styles.append(style)
        return [Line().add(label, under).cells(chars, styles).add(" ", under)]

    def _letters(self, cells: int) -> dict[int, str]:
        self.timeline.look(cells)
        key = (self.timeline, cells, self.timeline.version)
        if self._known[0] != key:
            self._known = (key, self.timeline.letters(cells))
        return self._known[1]

    def on_mouse_down(self, event: MouseDown) -> None:
        label = self._label()
        share = (event.x - len(label) + 0.5) / max(1, self.size.width - len(label) - 1)
        with self.view.history.lock:
            index = self.player.index_after(min(max(share, 0.0), 1.0))
            self.player.move(self.player.last if index is None else index)
        event.stop()


def clock(at_s: float, span_s: float) -> str:
    """A time of a recording as long as `span_s`: tenths of seconds up to ten minutes, hours where it has any."""
    tenths = round(max(0.0, at_s) * 10)
    minutes, rest = divmod(tenths, 600)
    if span_s < 600:
        return f"{minutes:02d}:{rest // 10:02d}.{rest % 10}"
    if span_s < 3600:
        return f"{minutes:02d}:{rest // 10:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest // 10:02d}"
