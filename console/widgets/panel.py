"""A panel: a titled rule above lines drawn from the view, repainted only where they changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from schedtop.console.line import Line
from schedtop.console.view import View
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.events import Blur, Focus, MouseDown, MouseScrollDown, MouseScrollUp, Resize

Pieces = list[tuple[str, str]]
"""Text with the role that colours it."""


class Drawn(Widget):
    """A widget of finished lines. `paint` draws anew and refreshes only the lines that differ."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(id=id)
        self.view = view
        self._strips: list[Strip] = []

    def lines(self, width: int, height: int) -> list[Line]:
        """The whole widget, top to bottom."""
        raise NotImplementedError

    def paint(self) -> None:
        """Draw from the view as it is now. The history must be locked."""
        width, height = self.size
        if not (width and height and self.display):
            return
        base = self.view.palette["text"]
        ascii_only = self.view.options.ascii
        strips = [line.strip(width, base, ascii_only) for line in self.lines(width, height)[:height]]
        strips += [Strip.blank(width, base)] * (height - len(strips))
        old, self._strips = self._strips, strips
        if len(old) != height:
            self.refresh()
            return
        changed = [y for y in range(height) if strips[y] is not old[y] and strips[y] != old[y]]
        if changed:
            self.refresh(*[Region(0, y, width, 1) for y in changed])

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.view.palette["text"])

    def on_resize(self, event: Resize) -> None:
        self._strips = []
        with self.view.history.lock:
            self.paint()


class Panel(Drawn, can_focus=True):
    """One numbered part of the screen. Subclasses draw `body` and say in `headline` what the rule tells.

    `compact` panels are drawn without their rule where tabs name them (`show_rule` False).
    """

    NUMBER: ClassVar[int] = 0
    TITLE: ClassVar[str] = ""
    HELP: ClassVar[str] = ""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.show_rule = True

    def headline(self) -> Pieces:
        """What the rule says after the title."""
        return []

    def body(self, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def lines(self, width: int, height: int) -> list[Line]:
        if not self.show_rule:
            return self.body(width, height)
        return [self.rule(width), *self.body(width, height - 1)]

    def rule(self, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        rule = palette["accent" if self.has_focus else "rule"]
        line = Line().add(glyphs.rule, rule)
        line.add(f"[{self.NUMBER}]", palette["accent"])
        bold = Style(bold=True, reverse=self.has_focus)
        if self.has_focus:
            line.add(f" {self.TITLE} ", palette["accent"] + bold)
        else:
            line.add(self.TITLE, palette["text"] + bold)
        for piece, role in self.headline():
            line.add(f" {glyphs.rule} ", rule).add(piece, palette[role])
        if line.length < width:
            line.add(" ", rule).pad(width, rule, glyphs.rule)
        return line

    def on_focus(self, event: Focus) -> None:
        self._paint_locked()

    def on_blur(self, event: Blur) -> None:
        self._paint_locked()

    def _paint_locked(self) -> None:
        with self.view.history.lock:
            self.paint()

    # Moving, for panels that have something to move in

    def move(self, lines: int) -> None:
        """Move the cursor or the text by so many lines."""

    def move_page(self, pages: int) -> None:
        self.move(pages * max(1, self.size.height - 3))

    def move_end(self, last: bool) -> None:
        """Move to the first or the last line."""
        self.move(10**9 if last else -(10**9))

    def _on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.move(3)
        event.stop()
        self._paint_locked()

    def _on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.move(-3)
        event.stop()
        self._paint_locked()

    def on_mouse_down(self, event: MouseDown) -> None:
        self.focus()
        self.click_line(event.y - (1 if self.show_rule else 0), event.x)
        self._paint_locked()

    def click_line(self, y: int, x: int) -> None:
        """The mouse was pressed on line `y` of the body."""
