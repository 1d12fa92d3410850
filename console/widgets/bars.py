"""The thin widgets: footer, tabs, ticker and the divider between columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from schedtop.console.actions import GLOBAL, Action, Registry, key_name
from schedtop.console.drawing import text
from schedtop.console.drawing.layout import TABS
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD, BOLD_REVERSED, clickable
from schedtop.console.view import View
from schedtop.console.widgets.panel import Drawn

if TYPE_CHECKING:
    from schedtop.console.widgets.events import EventsPanel
    from schedtop.console.widgets.panel import Panel


class FooterBar(Drawn):
    """Keys for what has the focus; for a few seconds, what just happened. `leaves`: Esc leads to another screen."""

    def __init__(self, view: View, registry: Registry, *, id: str) -> None:
        super().__init__(view, id=id)
        self.registry = registry
        self.scope = ""
        self.leaves = True
        self.said: tuple[str, str] | None = None

    def lines(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        under = palette.on("text", "surface")
        line = Line().add(" ", under)
        if self.said is not None:
            words, role = self.said
            return [line.add(words, palette.on(role, "surface")).pad(width, under)]
        for action in self._shown():
            words = f" {action.footer}  "
            if line.length + len(key_name(action.keys[0])) + len(words) > width:
                break
            click = clickable(action.id)
            line.add(key_name(action.keys[0]), palette.on("accent", "surface") + click)
            line.add(words, palette.on("muted", "surface") + click)
        return [line.pad(width, under)]

    def _shown(self) -> list[Action]:
        """Help first, the way back, then what the focused panel can do, then the rest."""
        local, rest = (
            [action for action in self.registry.of_scope(scope) if action.footer and action.keys]
            for scope in (self.scope, GLOBAL)
        )
        back = [replace(self.registry["back"], footer="back")] if self.leaves else []
        return [*rest[:1], *(action for action in back if action.keys), *local, *rest[1:]]


class TabBar(Drawn):
    """Names the panels that share the lower pane; the shown one is highlighted."""

    def __init__(self, view: View, panels: dict[str, Panel], *, id: str) -> None:
        super().__init__(view, id=id)
        self.panels = panels
        self.tab = TABS[0]

    def lines(self, width: int, height: int) -> list[Line]:
        palette, rule = self.view.palette, self.view.glyphs.rule
        line = Line().add(rule, palette["rule"])
        for name in TABS:
            panel = self.panels[name]
            shown = name == self.tab
            click = clickable(f"panel_{panel.NUMBER}")
            line.add(f"[{panel.NUMBER}]", palette["accent"] + click)
            title = f"*{panel.TITLE}*" if shown else panel.TITLE
            style = palette["text"] + (BOLD_REVERSED if panel.active else BOLD) if shown else palette["muted"]
            line.add(title, style + click)
            note = self.note(name)
            if note:
                line.add(f" {note}", palette["warn" if name == "knobs" else "muted"])
            line.add(f" {rule}", palette["rule"])
        return [line.pad(width, palette["rule"], rule)]

    def note(self, name: str) -> str:
        """What a tab shows while its panel is hidden."""
        moment = self.view.moment
        if name == "queue" and moment.state.num_waiting:
            head = moment.record.head if moment.record is not None else None
            return f"{moment.state.num_waiting}" + (f" {head.reason.replace('_', ' ')}" if head else "")
        if name == "knobs":
            staged = self.panels["knobs"].staging.staged  # type: ignore[attr-defined]
            return f"{len(staged)} staged" if staged else ""
        if name == "requests":
            words = self.panels["requests"].filter.words  # type: ignore[attr-defined]
            return f"{len(moment.state.requests)}" + (f" filter {text.fit(words, 12).strip()}" if words else "")
        return ""


class Ticker(Drawn):
    """The newest event, where the event panel is not in sight."""

    def __init__(self, view: View, events: EventsPanel, *, id: str) -> None:
        super().__init__(view, id=id)
        self.events = events

    def lines(self, width: int, height: int) -> list[Line]:
        newest = next(self.events.listed(), None)
        return [Line() if newest is None else self.events.line(newest, width)]


class Divider(Drawn):
    """The line between the two columns of a wide screen."""

    UNHURRIED: ClassVar[bool] = True

    def lines(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        return [Line().add(f" {self.view.glyphs.column} ", palette["rule"]) for _ in range(height)]
