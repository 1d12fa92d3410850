"""Help: what the focused panel's figures mean, then every key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text
from schedtop.console.actions import SCOPES, Action, key_name
from schedtop.console.glyphs import to_ascii
from schedtop.console.screens.base import ConsoleScreen
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key

CLOSE = ("escape", "q", "question_mark", "f1", "enter")


class HelpScreen(ModalScreen[None]):
    """Scrolls with the same keys as everything else; Esc, q or ? close it."""

    def __init__(self, over: ConsoleScreen) -> None:
        super().__init__(classes="dialog")
        self.over = over

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(self._page(), id="help-text")

    def on_mount(self) -> None:
        self.query_one("#help", VerticalScroll).focus()

    def _page(self) -> Text:
        """The figures of what has the focus, its keys, then all other keys."""
        palette = self.over.view.palette
        heading, plain, quiet = (palette.on(role, "surface") for role in ("accent", "text", "muted"))
        title, words = self.over.help_page()
        page = Text()
        if words:
            page.append(f"{title}\n", heading).append(f"{words}\n\n", plain)
        own = self.over.scope
        for scope in sorted(SCOPES, key=lambda scope: scope != own):
            actions = self.over.registry.of_scope(scope)
            if not actions:
                continue
            page.append(f"{SCOPES[scope]}\n", heading)
            for action in actions:
                self._line(page, action, heading, plain, quiet)
            page.append("\n")
        page.append("Esc closes this page.", quiet)
        return Text(to_ascii(page.plain), spans=page.spans) if self.over.view.options.ascii else page

    def _line(self, page: Text, action: Action, key: Style, plain: Style, quiet: Style) -> None:
        keys = " ".join(key_name(key) for key in action.keys) or "(no key)"
        reason = self.over.why_not(action.id)
        page.append(f"  {keys:<14} ", key).append(action.title, plain)
        page.append(f". {action.help}" if action.help else "", quiet)
        page.append(f"  [now off: {reason}]\n" if reason else "\n", quiet)

    def on_key(self, event: Key) -> None:
        scroll = self.query_one("#help", VerticalScroll)
        moves: dict[str, Callable[[], object]] = {
            "j": lambda: scroll.scroll_down(animate=False),
            "k": lambda: scroll.scroll_up(animate=False),
            "space": lambda: scroll.scroll_page_down(animate=False),
            "g": lambda: scroll.scroll_home(animate=False),
            "G": lambda: scroll.scroll_end(animate=False),
        }
        if event.key in CLOSE:
            event.stop()
            self.dismiss(None)
        elif event.key in moves:
            event.stop()
            moves[event.key]()
