"""Presets: named sets of knob values to stage with one key."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.knobs.presets import KnobPreset
from schedtop.console.knobs.staged import Staging
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces


class PresetsPanel(Panel):
    NUMBER: ClassVar[int] = 8
    TITLE: ClassVar[str] = "Presets"
    BODY_TELLS_FOCUS: ClassVar[bool] = True
    HELP: ClassVar[str] = """\
Enter stages a preset's values where they differ from the current ones. Nothing reaches the engine until you
apply them in [6]. w saves the current values of all live knobs under a name of yours."""

    def __init__(self, view: View, staging: Staging, presets: list[KnobPreset], *, id: str) -> None:
        super().__init__(view, id=id)
        self.staging, self.presets = staging, presets
        self.cursor = 0

    def headline(self) -> Pieces:
        return [("Enter stages", "muted"), ("w saves the current values", "muted")]

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        self.cursor = max(0, min(self.cursor, len(self.presets) - 1))
        top = max(0, self.cursor - height + 1)
        lines = []
        for index, preset in enumerate(self.presets[top : top + height], start=top):
            selected = self.active and index == self.cursor
            under = "cursor" if selected else "background"
            line = Line().add(self.view.glyphs.cursor if selected else " ", palette.on("accent", under))
            line.add(text.fit(text.clean(preset.name, 32), 12) + " ", palette.on("text", under) + Style(bold=True))
            differing = self.differing(preset)
            words = f"changes {len(differing)}" if differing else "in effect"
            line.add(f"{words:<13}", palette.on("warn" if differing else "muted", under))
            line.add(text.clean(preset.words), palette.on("muted", under))
            lines.append(line.pad(width, palette.on("text", under)))
        return lines

    def differing(self, preset: KnobPreset) -> dict[str, object]:
        """The preset's values that are not in force."""
        current = self.staging.current
        return {name: value for name, value in preset.values.items() if name in current and current[name] != value}

    def selected(self) -> KnobPreset | None:
        return self.presets[self.cursor] if self.cursor < len(self.presets) else None

    def move(self, lines: int) -> None:
        self.cursor = max(0, min(len(self.presets) - 1, self.cursor + lines))

    def click_line(self, y: int, x: int) -> None:
        self.cursor = y
