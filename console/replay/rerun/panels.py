"""What the panels of a re-run have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from schedtop.console.drawing.line import Line
from schedtop.console.widgets.panel import Panel

if TYPE_CHECKING:
    from schedtop.console.replay.rerun.overlay import Overlay
    from schedtop.console.view import View


class UnnumberedPanel(Panel):
    """Its rule has no number: digits belong to the Live screen."""

    def rule(self, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        rule = palette["rule"]
        line = Line().add(glyphs.rule, rule).add(self.TITLE, palette["text"] + Style(bold=True))
        for piece, role in self.headline():
            line.add(f" {glyphs.rule} ", rule).add(piece, palette[role])
        return line.add(" ", rule).pad(width, rule, glyphs.rule)


class RunsPanel(UnnumberedPanel):
    """Shows something of both runs, from line `_top` on."""

    def __init__(self, view: View, overlay: Overlay, *, id: str) -> None:
        super().__init__(view, id=id)
        self.overlay = overlay
        self._top = 0

    def move(self, lines: int) -> None:
        self._top += lines
