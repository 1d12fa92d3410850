"""A screen of panels between header and footer, placed by the terminal's size; what its kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from schedtop.console.drawing import layout
from schedtop.console.screens.base import ConsoleScreen, TooSmall
from schedtop.console.widgets.banner import BannerBar
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


_MOVES: dict[str, Callable[[Panel], None]] = {
    "up": lambda panel: panel.move(-1),
    "down": lambda panel: panel.move(1),
    "page_up": lambda panel: panel.move_page(-1),
    "page_down": lambda panel: panel.move_page(1),
    "first": lambda panel: panel.move_end(last=False),
    "last": lambda panel: panel.move_end(last=True),
}


class MoveCommands:
    """The hands of a screen for moving in the panel that has the focus."""

    def __init__(self, screen: HasPanel) -> None:
        self._screen = screen
        for name, move in _MOVES.items():
            setattr(self, f"do_{name}", partial(self._move, move))

    def why_not(self, name: str) -> str | None:
        return None

    def _move(self, move: Callable[[Panel], None]) -> None:
        if self._screen.panel is not None:
            move(self._screen.panel)


class PanelScreen(ConsoleScreen):
    """`panels` in the order of Tab; the first has the focus when the screen opens. The stylesheet places them."""

    AUTO_FOCUS: ClassVar[str | None] = None
    HORIZONTAL_BREAKPOINTS = [(0, "-small"), (layout.STRIP[0], "-middle"), (layout.WIDE[0], "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (layout.STRIP[1], "-low"), (22, "-high"), (layout.COMPACT[1], "-tall")]  # noqa: RUF012

    def __init__(self, view: View, registry: Registry, panels: tuple[Panel, ...]) -> None:
        super().__init__(view, registry, str(panels[0].id))
        self.header = HeaderBar(view, id="header")
        self.banner = BannerBar(view, id="banner")
        self.panels = panels
        self.small = TooSmall()
        self._last = panels[0]

    def more(self) -> Iterable[Widget]:
        """Widgets below the footer."""
        return ()

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.banner
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
            self.banner.display = bool(self.view.guide)
            for widget in (self.header, self.banner, *self.panels, self.footer):
                widget.paint()

    def help_page(self) -> tuple[str, str]:
        return f"[{self.panel.NUMBER}] {self.panel.TITLE}", self.panel.HELP

    def copied_line(self) -> str:
        return self.panel.copied()
