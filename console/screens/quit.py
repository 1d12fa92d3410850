"""The question before something that cannot be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key


class QuitScreen(ModalScreen[bool]):
    """Answers True for y, False for n or Esc. `yes` and `no` say what these do."""

    def __init__(self, question: str, yes: str = "quit", no: str = "stay") -> None:
        super().__init__(classes="dialog")
        self.question, self.answers = question, f"y  {yes}      n  {no}"

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self.question}\n\n{self.answers}"), id="dialog")

    def on_key(self, event: Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key in ("y", "Y", "enter"):
            self.dismiss(True)
        elif event.key in ("n", "N", "q", "escape", "ctrl+c"):
            self.dismiss(False)
