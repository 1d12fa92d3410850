"""A screen of panels between header and footer, placed by the terminal's size; what its kinds have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Protocol

from schedtop.console.drawing import layout
from schedtop.console.screens.base import ConsoleScreen, TooSmall
from schedtop.console.widgets.header import HeaderBar
from schedtop.console.widgets.panel import Panel
from textual.containers import Container

if TYPE_CHECKING:
    from schedtop.console.actions import Registry
    from schedtop.console.view import View
    from textual.app import ComposeResult
    from textual.events import DescendantFocus, Resize
    from textual.widget import Widget


class HasPanel(Protocol):
    @property
    def panel(self) -> Panel | None: ...


class MoveCommands:
    """The hands of a screen for moving in the panel that has the focus."""

    def __init__(self, screen: HasPanel) -> None:
        self._screen = screen

    def why_not(self, name: str) -> str | None:
        return None

    def _move(self, lines: int) -> None:
        if self._screen.panel is not None:
            self._screen.panel.move(lines)

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def _move_page(self, pages: int) -> None:
        if self._screen.panel is not None:
            self._screen.panel.move_page(pages)

    def do_page_up(self) -> None:
        self._move_page(-1)

    def do_page_down(self) -> None:
        self._move_page(1)

    def _move_end(self, last: bool) -> None:
        if self._screen.panel is not None:
            self._screen.panel.move_end(last)

    def do_first(self) -> None:
        self._move_end(last=False)

    def do_last(self) -> None:
        self._move_end(last=True)


class PanelScreen(ConsoleScreen):
    """`panels` in the order of Tab; the first has the focus when the screen opens. The stylesheet places them."""

    AUTO_FOCUS: ClassVar[str | None] = None
    HORIZONTAL_BREAKPOINTS = [(0, "-small"), (layout.STRIP[0], "-middle"), (layout.WIDE[0], "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (layout.STRIP[1], "-low"), (22, "-high"), (layout.COMPACT[1], "-tall")]  # noqa: RUF012

    def __init__(self, view: View, registry: Registry, panels: tuple[Panel, ...]) -> None:
        super().__init__(view, registry, str(panels[0].id))
        self.header = HeaderBar(view, id="header")
        self.panels = panels
        self.small = TooSmall()
        self._last = panels[0]

    def more(self) -> Iterable[Widget]:
        """Widgets below the footer."""
        return ()

    def compose(self) -> ComposeResult:
        yield self.header
        with Container(id="panels"):
            yield from self.panels
        yield self.footer
        yield from self.more()
        yield self.small

    def on_resize(self, event: Resize) -> None:
        self.small.tell(*self.app.size)
        if self.focused is None:
            self.set_focus(self._last)  # hidden widgets lose it

    @property
    def panel(self) -> Panel:
        """The panel that has the focus, or had it before a prompt or a small terminal took it."""
        if isinstance(self.focused, Panel):
            self._last = self.focused
        return self._last

    def focus_panel(self, direction: int) -> None:
        """Give the focus to the next (1) or the previous (-1) panel in sight."""
        shown = [panel for panel in self.panels if panel.display]
        if shown:
            index = shown.index(self.panel) if self.panel in shown else 0
            self.set_focus(shown[(index + direction) % len(shown)])

    def focus_moved(self) -> None:
        self.footer.scope = str(self.panel.id)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        self.paint()

    def paint(self) -> None:
        if not self.small.is_attached:
            return  # not composed yet, or already being taken apart
        with self.view.history.lock:
            self.view.look()
            for widget in (self.header, *self.panels, self.footer):
                widget.paint()

    def help_page(self) -> tuple[str, str]:
        return f"[{self.panel.NUMBER}] {self.panel.TITLE}", self.panel.HELP

    def copied_line(self) -> str:
        return self.panel.copied()
