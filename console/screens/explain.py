"""The Explain screen: findings, their causes, and the way to the steps they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from schedtop.console import layout
from schedtop.console.actions import Action, key_name
from schedtop.console.explain.desk import ExplainDesk
from schedtop.console.line import Line
from schedtop.console.screens.help import HelpScreen
from schedtop.console.screens.palette import PaletteScreen
from schedtop.console.widgets.findings import FindingsPanel, WhyPanel
from schedtop.console.widgets.header import HeaderBar
from schedtop.console.widgets.panel import Drawn, Panel
from textual.screen import Screen
from textual.widgets import Static

if TYPE_CHECKING:
    from schedtop.console.screens.live import LiveScreen
    from textual.app import ComposeResult
    from textual.events import DescendantFocus, Key, Resize

_WITH_LIVE = ("pause_engine", "step_engine", "theme", "mouse", "screenshot", "suspend", "quit", "interrupt")
"""Actions that mean the same here as on Live."""

_MOST_LEFT, _LEFT_SHARE = 44, 0.3


class ExplainScreen(Screen[None]):
    """Lies over Live, whose view and actions it shares. Enter on steps shows them in Live."""

    AUTO_FOCUS: ClassVar[str | None] = None

    def __init__(self, live: LiveScreen, desk: ExplainDesk) -> None:
        super().__init__()
        self.live, self.desk, self.view, self.registry = live, desk, live.view, live.registry
        self.header = HeaderBar(self.view, id="header")
        self.findings = FindingsPanel(self.view, desk, id="findings")
        self.why = WhyPanel(self.view, self.findings, id="finding")
        self.footer = _Footer(self, id="footer")
        self.handlers = {
            "up": lambda: self._panel.move(-1),
            "down": lambda: self._panel.move(1),
            "page_up": lambda: self._panel.move_page(-1),
            "page_down": lambda: self._panel.move_page(1),
            "first": lambda: self._panel.move_end(last=False),
            "last": lambda: self._panel.move_end(last=True),
            "next_panel": self._other_panel,
            "previous_panel": self._other_panel,
            "finding_open": self._to_steps,
            "finding_back": lambda: self.set_focus(self.findings),
            "evidence_step": self._jump,
            "back": self._back,
            "explain": self._close,
            "help": self._help,
            "palette": self._palette,
        }

    def compose(self) -> ComposeResult:
        yield from self._drawn
        yield Static("", id="small")

    def on_mount(self) -> None:
        self.place()
        self.set_focus(self.findings)
        self.paint()

    def on_resize(self, event: Resize) -> None:
        self.place()
        self.paint()

    @property
    def _drawn(self) -> tuple[Drawn, ...]:
        return self.header, self.findings, self.why, self.footer

    @property
    def _panel(self) -> Panel:
        return self.why if self.focused is self.why else self.findings

    @property
    def scope(self) -> str:
        return str(self._panel.id)

    # Painting

    def paint(self) -> None:
        """Draw the findings of the last look."""
        with self.view.history.lock:
            for widget in self._drawn:
                widget.paint()

    def place(self) -> None:
        """The list left, the explanation right, between header and footer."""
        width, height = self.app.size
        small = layout.mode(width, height) == "small"
        note = self.query_one("#small", Static)
        note.display = small
        least = layout.STRIP
        words = f"schedtop needs {least[0]}x{least[1]}\nthis terminal is {width}x{height}\n\nq quits"
        note.update(Text(words if small else "", justify="center"))
        left = min(_MOST_LEFT, max(24, round(width * _LEFT_SHARE)))
        places = {
            self.header: (0, 0, width, 1),
            self.findings: (0, 1, left, height - 2),
            self.why: (left + 1, 1, width - left - 1, height - 2),
            self.footer: (0, height - 1, width, 1),
        }
        for widget, (x, y, cells, lines) in places.items():
            widget.display = not small
            widget.styles.offset = (x, y)
            widget.styles.width, widget.styles.height = cells, max(1, lines)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        self.paint()

    # Keys

    def on_key(self, event: Key) -> None:
        action = self.registry.find(event.key, self.scope)
        if action is None and event.character is not None:
            action = self.registry.find(event.character, self.scope)
        if action is not None:
            event.stop()
            event.prevent_default()
            self.action_act(action.id)

    def action_act(self, name: str) -> None:
        """Carry out an action by id; one that belongs to Live says so."""
        self.live.unsay()
        handler = self.handlers.get(name)
        if handler is not None:
            handler()
        elif name in _WITH_LIVE:
            self.live.action_act(name)
        else:
            self.live.say(f"{self.registry[name].title}: on the Live screen; Esc goes back there", "warn")
        self.paint()

    def why_not(self, name: str) -> str | None:
        """Why an action cannot be taken from here."""
        if name in self.handlers:
            return None
        return self.live.commands.why_not(name)

    def _other_panel(self) -> None:
        self.set_focus(self.findings if self.focused is self.why else self.why)

    def _to_steps(self) -> None:
        self.why.to_steps()
        self.set_focus(self.why)

    def _back(self) -> None:
        if self.focused is self.why:
            self.set_focus(self.findings)
        else:
            self._close()

    def _close(self) -> None:
        self.dismiss(None)
        self.live.paint()

    def _jump(self) -> None:
        steps = self.why.steps()
        if steps is None:
            self.live.say("no steps on this line: the lines under Steps lead to Live", "warn")
            return
        with self.view.history.lock:
            shown = self.view.pin(steps.first_seq) or self.view.pin(steps.last_seq)
        if not shown:
            self.live.say(f"{steps.label}: no longer kept", "warn")
            return
        self.dismiss(None)
        self.live.show_panel("batch")

    def _help(self) -> None:
        panel = self._panel
        self.app.push_screen(HelpScreen(panel.TITLE, panel.HELP, self.registry, self.why_not))

    def _palette(self) -> None:
        def run(name: str | None) -> None:
            if name is None:
                return
            if name in self.handlers or name in _WITH_LIVE:
                self.action_act(name)
            else:
                self.dismiss(None)
                self.live.action_act(name)

        self.app.push_screen(PaletteScreen(self.registry, self.why_not), run)


class _Footer(Drawn):
    """Keys of the focused panel, or what was just said."""

    def __init__(self, screen: ExplainScreen, *, id: str) -> None:
        super().__init__(screen.view, id=id)
        self.of = screen

    def lines(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        under = palette.on("text", "surface")
        line = Line().add(" ", under)
        said = self.of.live.footer.said
        if said is not None:
            return [line.add(said[0], palette.on(said[1], "surface")).pad(width, under)]
        for action, word in self._shown():
            click = Style(meta={"@click": f"screen.act('{action.id}')"})
            line.add(key_name(action.keys[0]), palette.on("accent", "surface") + click)
            line.add(f" {word}  ", palette.on("muted", "surface") + click)
        return [line.pad(width, under)]

    def _shown(self) -> list[tuple[Action, str]]:
        registry = self.of.registry
        local = [(action, action.footer) for action in registry.of_scope(self.of.scope) if action.footer]
        rest = [(registry[name], word) for name, word in (("back", "back"), ("next_panel", "panel"))]
        rest += [(registry[name], registry[name].footer) for name in ("palette", "quit")]
        return [(action, word) for action, word in [(registry["help"], "help"), *local, *rest] if action.keys]
