"""The Request screen: one request's life, gaps and who made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console.actions import Registry
from schedtop.console.screens.base import ConsoleScreen
from schedtop.console.screens.everywhere import EverywhereCommands
from schedtop.console.view import View
from schedtop.console.widgets.header import HeaderBar
from schedtop.console.widgets.life import LifePanel

if TYPE_CHECKING:
    from textual.app import ComposeResult


class RequestCommands:
    """The hands of the Request screen."""

    def __init__(self, screen: RequestScreen) -> None:
        self.screen, self.panel = screen, screen.panel

    def why_not(self, name: str) -> str | None:
        if name == "request_step" and self.panel.chosen_seq() is None:
            return "it has not been in a step yet"
        return None

    def do_back(self) -> None:
        self.screen.console.pop_screen()

    def do_up(self) -> None:
        self.panel.move(-1)

    def do_down(self) -> None:
        self.panel.move(1)

    def do_page_up(self) -> None:
        self.panel.move_page(-1)

    def do_page_down(self) -> None:
        self.panel.move_page(1)

    def do_first(self) -> None:
        self.panel.move_end(last=False)

    def do_last(self) -> None:
        self.panel.move_end(last=True)

    def do_request_earlier(self) -> None:
        self.panel.walk(-1)

    def do_request_later(self) -> None:
        self.panel.walk(1)

    def do_request_next(self) -> None:
        self._turn(1)

    def do_request_previous(self) -> None:
        self._turn(-1)

    def _turn(self, offset: int) -> None:
        """To a neighbour in the order of the Live screen's table."""
        table = self.screen.console.live_screen.requests
        table.next_match(offset)
        if table.selected is not None:
            self.panel.show(table.selected)

    def do_request_step(self) -> None:
        seq = self.panel.chosen_seq()
        if seq is None or not self.screen.view.pin(seq):
            self.screen.say("that step is no longer kept", "warn")
            return
        self.screen.console.pop_screen()


class RequestScreen(ConsoleScreen):
    """Esc returns; everything else works as on the Live screen."""

    AUTO_FOCUS: ClassVar[str | None] = "#life"

    def __init__(self, view: View, registry: Registry, number: int) -> None:
        super().__init__(view, registry, scope="request")
        self.header = HeaderBar(view, id="header")
        self.panel = LifePanel(view, number, id="life")
        self.commands = (RequestCommands(self), EverywhereCommands(self))

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.panel
        yield self.footer

    def paint(self) -> None:
        with self.view.history.lock:
            self.view.look()
            for widget in (self.header, self.panel, self.footer):
                widget.paint()

    def help_page(self) -> tuple[str, str]:
        return "Request", LifePanel.HELP

    def copied_line(self) -> str:
        return self.panel.copied()
