"""The Request screen: one request's life, gaps and who made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedtop.console.screens.commands.common import CommonCommands, abort_refused, ask_abort
from schedtop.console.screens.panel_screen import MoveCommands, PanelScreen
from schedtop.console.widgets.life import LifePanel

if TYPE_CHECKING:
    from schedtop.console.actions import Registry
    from schedtop.console.view import View


class RequestCommands:
    """The hands of the Request screen."""

    def __init__(self, screen: RequestScreen) -> None:
        self.screen, self.life = screen, screen.life

    def why_not(self, name: str) -> str | None:
        if name == "request_step" and self.life.chosen_seq() is None:
            return "it has not been in a step yet"
        return abort_refused(self.screen.view, self.life.number) if name == "request_abort" else None

    def do_request_abort(self) -> None:
        ask_abort(self.screen, self.life.number)

    def do_back(self) -> None:
        self.screen.app.pop_screen()

    def do_request_earlier(self) -> None:
        self.life.walk(-1)

    def do_request_later(self) -> None:
        self.life.walk(1)

    def do_request_next(self) -> None:
        self._turn(1)

    def do_request_previous(self) -> None:
        self._turn(-1)

    def _turn(self, offset: int) -> None:
        """To a neighbour in the order of the Live screen's table."""
        number = self.screen.console.next_request(offset)
        if number is not None:
            self.life.show(number)

    def do_request_step(self) -> None:
        seq = self.life.chosen_seq()
        if seq is None or not self.screen.view.pin(seq):
            self.screen.say(self.screen.view.forgotten, "warn")
            return
        self.screen.app.pop_screen()


class RequestScreen(PanelScreen):
    """Esc returns; everything else works as on the Live screen."""

    def __init__(self, view: View, registry: Registry, number: int) -> None:
        self.life = LifePanel(view, number, id="request")
        super().__init__(view, registry, (self.life,))
        self.commands = (RequestCommands(self), MoveCommands(self), CommonCommands(self))

    def help_page(self) -> tuple[str, str]:
        return "Request", LifePanel.HELP
