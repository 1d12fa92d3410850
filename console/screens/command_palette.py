"""The command palette: every action by name, with its key and, where it is off, why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from rich.text import Text
from schedtop.console.actions import SCOPES, Action, Registry, key_name
from schedtop.console.drawing import text
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Click, Key, MouseScrollDown, MouseScrollUp

ROWS = 14
KEYS = 14
"""Cells for the keys of an action."""


class PaletteList(Static):
    """The actions in sight: a click runs one, the wheel moves on."""

    @property
    def _palette(self) -> PaletteScreen:
        return cast("PaletteScreen", self.screen)

    def on_click(self, event: Click) -> None:
        event.stop()
        if self._palette.found:
            self._palette.choose(self._palette.top + event.y)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self._palette.move(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self._palette.move(-3)


class PaletteScreen(ModalScreen[str | None]):
    """Type to narrow, Enter runs, Esc leaves. Returns the chosen action's id."""

    def __init__(self, registry: Registry, why_not: Callable[[str], str | None]) -> None:
        super().__init__(classes="dialog")
        self.registry, self.why_not = registry, why_not
        self.cursor = 0
        self.found: list[Action] = list(registry.actions)

    def compose(self) -> ComposeResult:
        with Vertical(id="palette"):
            yield Input(placeholder="Type to search", id="palette-input")
            yield PaletteList("", id="palette-list")

    def on_input_changed(self, event: Input.Changed) -> None:
        self.found = match(event.value, self.registry.actions)
        self.cursor = 0
        self._show()

    def on_key(self, event: Key) -> None:
        if event.key == "escape":
            event.stop()
            self.dismiss(None)
        elif event.key in ("up", "down"):
            event.stop()
            self.move(1 if event.key == "down" else -1)
        elif event.key == "enter":
            event.stop()
            self.choose(self.cursor)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.choose(self.cursor)

    def move(self, lines: int) -> None:
        """Move the cursor by so many lines."""
        self.cursor = max(0, min(len(self.found) - 1, self.cursor + lines))
        self._show()

    def choose(self, index: int) -> None:
        """Leave with an action by its place in the list; with none where none is."""
        self.dismiss(self.found[index].id if 0 <= index < len(self.found) else None)

    @property
    def top(self) -> int:
        """The place of the first action in sight."""
        rows = self._room()[1]
        return max(0, min(self.cursor - rows // 2, len(self.found) - rows))

    def on_resize(self) -> None:
        self._show()

    def _room(self) -> tuple[int, int]:
        """Cells and lines of the list, as the stylesheet gives them."""
        width, height = self.app.size
        return min(80, width * 96 // 100) - 4, max(1, min(ROWS, height * 9 // 10 - 3))

    def _show(self) -> None:
        width, rows = self._room()
        top = self.top
        words = Text(no_wrap=True)
        titles = min(44, width - KEYS - 2)
        for index, action in enumerate(self.found[top : top + rows], start=top):
            reason = self.why_not(action.id)
            where = "" if action.scope == "global" else f" ({SCOPES[action.scope]})"
            keys = " ".join(key_name(key) for key in action.keys)
            line = f" {text.fit(action.title + where, titles)} {keys:<{KEYS}}" + (
                f" off: {reason}" if reason else ""
            )
            words.append(text.fit(line, width) + "\n", style="reverse" if index == self.cursor else "")
        words.rstrip()
        self.query_one("#palette-list", Static).update(words if self.found else Text(" No match"))


def match(words: str, actions: tuple[Action, ...]) -> list[Action]:
    """Actions whose title, help or key holds all words; those whose title begins with them first."""
    wanted = words.lower().split()
    found = [action for action in actions if all(word in _haystack(action) for word in wanted)]
    return sorted(found, key=lambda action: not action.title.lower().startswith(words.lower().strip()))


def _haystack(action: Action) -> str:
    return f"{action.title} {action.help} {' '.join(map(key_name, action.keys))}".lower()
