"""Help: what the focused panel's figures mean, then every key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text
from schedtop.console.actions import SCOPES, Action, Registry, key_name
from schedtop.console.glyphs import to_ascii
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key

CLOSE = ("escape", "q", "question_mark", "f1", "enter")


class HelpScreen(ModalScreen[None]):
    """Scrolls with the same keys as everything else; Esc, q or ? close it."""

    def __init__(
        self, title: str, panel_help: str, registry: Registry, why_not: Callable[[str], str | None]
    ) -> None:
        super().__init__(classes="dialog")
        self.heading, self.panel_help = title, panel_help
        self.registry, self.why_not = registry, why_not

    def compose(self) -> ComposeResult:
        words = self._words()
        plain = getattr(self.app, "ascii_only", False)
        body = Static(Text(to_ascii(words) if plain else words, no_wrap=False), id="help-text")
        with VerticalScroll(id="help"):
            yield body

    def on_mount(self) -> None:
        self.query_one("#help", VerticalScroll).focus()

    def _words(self) -> str:
        parts = [f"{self.heading}\n\n{self.panel_help}"] if self.panel_help else []
        for scope, name in SCOPES.items():
            lines = [self._line(action) for action in self.registry.of_scope(scope)]
            parts.append(f"{name}\n" + "\n".join(lines))
        parts.append("Esc closes this page.")
        return "\n\n".join(parts)

    def _line(self, action: Action) -> str:
        keys = " ".join(key_name(key) for key in action.keys) or "(no key)"
        reason = self.why_not(action.id)
        words = f"{action.title}. {action.help}" if action.help else action.title
        return f"  {keys:<14} {words}" + (f"  [now off: {reason}]" if reason else "")

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
