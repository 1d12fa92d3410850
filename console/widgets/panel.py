"""A panel: a titled rule above lines drawn from the view, repainted only where they changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD, BOLD_REVERSED, Palette
from schedtop.console.view import View
from textual.color import TRANSPARENT
from textual.filter import ANSIToTruecolor
from textual.geometry import Offset, Region, Size
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.events import Blur, Focus, MouseDown, MouseScrollDown, MouseScrollUp, Resize

Pieces = list[tuple[str, str]]
"""Text with the role that colours it."""


class Drawn(Widget):
    """A widget of finished lines. `paint` draws again and refreshes only the lines that differ."""

    UNHURRIED: ClassVar[bool] = False

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(id=id)
        self.view = view
        self.strips: list[Strip] = []
        self._pieces: list[list[tuple[str, Style]]] = []
        self._painted_for: tuple[Palette, int | None] | None = None

    @property
    def size(self) -> Size:
        """What it is drawn on has no border and no padding, which Textual would look for each time."""
        return self.outer_size

    def lines(self, width: int, height: int) -> list[Line]:
        """The whole widget, top to bottom."""
        raise NotImplementedError

    def paint(self) -> None:
        """Draw from the view as it is now. The history must be locked."""
        width, height = self.size
        if not (width and height and self.display):
            self._painted_for = None
            return
        if self._may_wait():
            return
        self._painted_for = (self.view.palette, self.view.pinned)
        lines = self.lines(width, height)[:height]
        lines += [Line() for _ in range(height - len(lines))]
        if self._fits(width, height):
            changed = [y for y in range(height) if lines[y].pieces != self._pieces[y]]
        else:
            self._pieces, self.strips = [[] for _ in range(height)], [Strip([])] * height
            changed = list(range(height))
        if changed:
            self._show(lines, changed)

    def _fits(self, width: int, height: int) -> bool:
        """True if what is shown has this size."""
        return len(self._pieces) == height and self.strips[0].cell_length == width

    def _show(self, lines: list[Line], changed: list[int]) -> None:
        """Take over some of the lines."""
        width, base, ascii_only = self.size.width, self.view.palette["text"], self.view.options.ascii
        for y in changed:
            # A line is compared as it was drawn, before it was padded.
            self._pieces[y], self.strips[y] = lines[y].pieces, lines[y].strip(width, base, ascii_only)
        if not self._is_mounted:
            self.refresh()
            return
        # As Textual's refresh, without the turn that each widget's own queue takes until the screen hears of it.
        self._set_dirty(*[Region(0, first, width, last - first + 1) for first, last in runs(changed)])
        self.screen._dirty_widgets.add(self)
        self.screen.check_idle()

    def _may_wait(self) -> bool:
        """True if this frame can do without the widget: nothing but the newest figures differs from the last."""
        return self._is_painted() and self._is_left_out()

    def _is_painted(self) -> bool:
        """True if it shows this step in these colours."""
        return self._painted_for == (self.view.palette, self.view.pinned) and bool(self._pieces)

    def _is_left_out(self) -> bool:
        """True in frames that are not about this widget."""
        return self.UNHURRIED and self.view.every > 1

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines are finished: Textual's style cache would only go through every piece of them again."""
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in self.app.get_line_filters():
            if not isinstance(line_filter, ANSIToTruecolor):
                strips = [strip.apply_filter(line_filter, TRANSPARENT) for strip in strips]
        if crop.x or crop.width != self.size.width:
            strips = [strip.crop(crop.x, crop.right) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        if y < len(self.strips):
            return self.strips[y]
        return Strip.blank(self.size.width, self.view.palette["text"])

    def on_resize(self, event: Resize) -> None:
        self._pieces = []
        with self.view.history.lock:
            self.paint()


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, last) of each unbroken run."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


class Panel(Drawn, can_focus=True):
    """One numbered part of the screen. Subclasses draw `body` and give the rule's text in `headline`.

    `compact` panels are drawn without their rule where tabs name them (`show_rule` False). `BODY_TELLS_FOCUS` is for
    those whose body looks different while they have the focus.
    """

    NUMBER: ClassVar[int] = 0
    TITLE: ClassVar[str] = ""
    HELP: ClassVar[str] = ""
    BODY_TELLS_FOCUS: ClassVar[bool] = False

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.show_rule = True
        self.zoomed = False
        self._drawn_active = False

    def _is_left_out(self) -> bool:
        view = self.view
        if view.keyed:
            return not (self.active or self._drawn_active)
        # One after another: all at once would make every so many frames slow, and keys wait for them.
        return super()._is_left_out() and (view.frame + self.NUMBER) % view.every != 0

    def paint(self) -> None:
        if self._has_only_turned():
            self._drawn_active = self.active
            self._show([self.rule(self.size.width)], [0])
        else:
            super().paint()

    def _has_only_turned(self) -> bool:
        """True if the key that this frame answers changed no more than the rule."""
        if not (self.view.keyed and self.display and self.show_rule) or self.BODY_TELLS_FOCUS:
            return False
        if self.active == self._drawn_active or not (self.view.turned or not self.active):
            return False
        return self._is_painted() and self._fits(*self.size)

    @property
    def title(self) -> str:
        return self.TITLE

    @property
    def cursor_place(self) -> Offset:
        """Where the selected line begins on the terminal, for magnifiers, braille and input methods."""
        glyph = self.view.glyphs.cursor
        chosen = (y for y, pieces in enumerate(self._pieces) if pieces and pieces[0][0].startswith(glyph))
        return self.region.offset + Offset(0, next(chosen, 0))

    @property
    def active(self) -> bool:
        """True for the panel that keys go to, from the moment it is chosen."""
        return bool(self.is_attached and self.screen.focused is self)

    def watch_has_focus(self, has_focus: bool) -> None:
        """No style depends on the focus, so none is worked out again: that would redraw the whole screen."""

    def headline(self) -> Pieces:
        """What the rule says after the title."""
        return []

    def body(self, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def lines(self, width: int, height: int) -> list[Line]:
        self._drawn_active = self.active
        if not self.show_rule:
            return self.body(width, height)
        return [self.rule(width), *self.body(width, height - 1)]

    def rule(self, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        rule = palette["accent" if self.active else "rule"]
        line = Line().add(glyphs.rule, rule)
        line.add(f"[{self.NUMBER}]", palette["accent"])
        if self.active:
            line.add(f" {self.title} ", palette["accent"] + BOLD_REVERSED)
        else:
            line.add(self.title, palette["text"] + BOLD)
        for piece, role in self.headline():
            line.add(f" {glyphs.rule} ", rule).add(piece, palette[role])
        if line.length < width:
            line.add(" ", rule).pad(width, rule, glyphs.rule)
        return line

    def on_focus(self, event: Focus) -> None:
        self._paint_if_turned()

    def on_blur(self, event: Blur) -> None:
        self._paint_if_turned()

    def _paint_if_turned(self) -> None:
        """Nothing to do where the key that moved the focus has painted already."""
        if self.active != self._drawn_active:
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

    def copied(self) -> str:
        """The selected line, or what the rule says, as plain text."""
        return " ".join(piece for piece, _ in self.headline())

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
