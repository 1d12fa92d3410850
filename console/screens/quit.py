"""The question before quitting, asked only while requests are in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key


class QuitScreen(ModalScreen[bool]):
    """Answers True for y, False for n or Esc."""

    def __init__(self, question: str) -> None:
        super().__init__(classes="dialog")
        self.question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self.question}\n\ny  quit      n  stay"), id="dialog")

    def on_key(self, event: Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key in ("y", "Y", "enter"):
            self.dismiss(True)
        elif event.key in ("n", "N", "q", "escape", "ctrl+c"):
            self.dismiss(False)
