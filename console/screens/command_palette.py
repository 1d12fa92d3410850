"""The command palette: actions, requests, findings and steps in one list, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.text import Text
from schedtop.console.drawing import text
from schedtop.console.widgets.prompt import Typed
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Key

ROWS = 14
NOTE = 14
"""Cells for the keys of an action, or the state of anything else."""

MOVES = {"up": "cursor_up", "down": "cursor_down", "pageup": "page_up", "pagedown": "page_down"}
"""Keys that move in the list, and its actions."""


class PaletteEntry(NamedTuple):
    """One line, and what choosing it does; `off` says why that cannot be done now."""

    title: str
    note: str
    run: Callable[[], None]
    off: str = ""


class PaletteInput(Typed):
    async def on_key(self, event: Key) -> None:
        if event.key not in MOVES:
            await self.edit(event)


class PaletteScreen(ModalScreen[PaletteEntry | None]):
    """Type to narrow, Enter runs, Esc leaves. `find` gives the entries for what is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave", show=False)]

    def __init__(self, find: Callable[[str], list[PaletteEntry]]) -> None:
        super().__init__(classes="dialog")
        self.find = find
        self.found: list[PaletteEntry] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="palette"):
            yield PaletteInput(placeholder="Type to search actions, requests, findings, steps", id="palette-input")
            yield OptionList(id="palette-list", markup=False)

    @property
    def list(self) -> OptionList:
        return self.query_one(OptionList)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    async def on_key(self, event: Key) -> None:
        if event.key in MOVES:
            event.stop()
            await self.list.run_action(MOVES[event.key])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._choose(self.list.highlighted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose(event.option_index)

    def _choose(self, index: int | None) -> None:
        self.dismiss(None if index is None or not self.found else self.found[index])

    def on_resize(self) -> None:
        self._show(self.query_one(Input).value, self.list.highlighted)

    def _show(self, words: str, highlighted: int | None = None) -> None:
        self.found = self.find(words)
        width, height = self.app.size
        room = min(80, width * 96 // 100) - 4
        titles = min(44, room - NOTE - 2)
        lines = [
            f" {text.fit(entry.title, titles)} {text.fit(entry.note, NOTE)}"
            + (f" off: {entry.off}" if entry.off else "")
            for entry in self.found
        ]
        options = [Option(Text(text.fit(line, room), no_wrap=True)) for line in lines]
        self.list.styles.max_height = max(1, min(ROWS, height * 9 // 10 - 3))
        self.list.clear_options().add_options(options or [Option(" No match", disabled=True)])
        self.list.highlighted = (highlighted or 0) if options else None
