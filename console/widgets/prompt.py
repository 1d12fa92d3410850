"""One line of input at the bottom: the filter, or a knob's value."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.segment import Segment
from schedtop.console.drawing import text
from schedtop.console.drawing.glyphs import to_ascii
from schedtop.console.view import View
from textual.events import Key
from textual.reactive import var
from textual.strip import Strip
from textual.widgets import Input

_LEAST_QUESTION = 12
"""Cells a question keeps beside a long text."""


class Typed(Input):
    """An input whose editing keys can take effect in their turn: bindings come behind what was typed after them.

    Nothing blinks.
    """

    cursor_blink: var[bool] = var(False, init=False)

    async def edit(self, event: Key) -> bool:
        """Carry out an editing key now; False for any other key."""
        edits = self._bindings.key_to_bindings.get(event.key, []) if not event.is_printable else []
        if edits:
            event.stop()
            event.prevent_default()
            await self.run_action(edits[0].action)
        return bool(edits)


class Prompt(Typed):
    """`ask` shows it; Enter hands the text over, Esc gives up; ? asks for help and is never text.

    What is wrong with the text so far is shown to its right. `heard` is the newest key it received.
    """

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(id=id, compact=True)
        self._view = view
        self._changed: Callable[[str], None] | None = None
        self._done: Callable[[str | None], None] | None = None
        self._wrong: Callable[[str], str] | None = None
        self.on_help: Callable[[], None] | None = None
        self.heard: Key | None = None
        self._question = ""

    def render_line(self, y: int) -> Strip:
        """Before a text, the question it answers: the placeholder that asks it is gone with the first character."""
        line = super().render_line(y)
        if not self.value:
            return line
        width, wrong = self.content_size.width, self._wrong(self.value) if self._wrong is not None else ""
        note = min(cell_len(wrong), width // 2)
        others = cell_len(self.value) + 4 + note  # a colon, two spaces and the cursor
        room = min(cell_len(self._question), max(_LEAST_QUESTION, width - others))
        question = Strip([Segment(f"{text.fit(self._question, room)}: ", self.rich_style)])
        line = Strip.join([question, line]).crop(0, width)
        if not note or room + others > width:
            return line
        view = self._view
        words = text.fit(to_ascii(wrong) if view.options.ascii else wrong, note)
        return Strip.join([line.crop(0, width - note), Strip([Segment(words, view.palette.on("warn", "surface"))])])

    def ask(
        self,
        what: str,
        value: str,
        done: Callable[[str | None], None],
        changed: Callable[[str], None] | None = None,
        wrong: Callable[[str], str] | None = None,
    ) -> None:
        """Ask for a text; `done` gets it, or None. `changed` sees every key; `wrong` says what a text lacks."""
        self._changed, self._done, self._wrong = None, done, wrong
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

    async def on_key(self, event: Key) -> None:
        if self._done is None:  # closed by a key before this one: it is the screen's
            event.stop()
            event.prevent_default()
            self.screen._forward_event(Key(event.key, event.character).set_sender(self.app))
            return
        self.heard = event
        helps = event.key in ("question_mark", "f1") and self.on_help is not None
        if not helps and event.key not in ("escape", "enter"):
            await self.edit(event)
            return
        event.stop()
        event.prevent_default()
        if helps and self.on_help is not None:
            self.on_help()
        else:
            self._finish(self.value if event.key == "enter" else None)
