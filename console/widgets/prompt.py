"""One line of input at the bottom: the filter, or a knob's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip
from textual.widgets import Input

if TYPE_CHECKING:
    from textual.events import Key


class Prompt(Input):
    """`ask` shows it; Enter hands the text over, Esc gives up; ? asks for help and is never text.

    `heard` is the newest key that came to it.
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, compact=True)
        self._changed: Callable[[str], None] | None = None
        self._done: Callable[[str | None], None] | None = None
        self.on_help: Callable[[], None] | None = None
        self.heard: Key | None = None
        self._question = ""

    def render_line(self, y: int) -> Strip:
        """Before a text, the question it answers: the placeholder that asks it is gone with the first character."""
        line = super().render_line(y)
        if not self.value:
            return line
        question = Strip([Segment(f"{self._question}: ", self.rich_style)])
        return Strip.join([question, line]).crop(0, self.content_size.width)

    def ask(
        self,
        what: str,
        value: str,
        done: Callable[[str | None], None],
        changed: Callable[[str], None] | None = None,
    ) -> None:
        """Ask for a text; `done` gets it, or None. `changed` hears every key."""
        self._changed, self._done = None, done
        self.placeholder = what
        self._question = what.partition(":")[0]
        self.value = value
        self.cursor_position = len(value)
        self._changed = changed
        self.display = True
        self.screen.set_focus(self)

    def _finish(self, value: str | None) -> None:
        done, self._done, self._changed = self._done, None, None
        self.display = False
        if done is not None:
            done(value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._changed is not None and self.display:
            self._changed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._finish(event.value)

    def on_key(self, event: Key) -> None:
        self.heard = event
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self._finish(None)
        elif event.key in ("question_mark", "f1") and self.on_help is not None:
            event.stop()
            event.prevent_default()
            self.on_help()
