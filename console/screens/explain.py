"""The Explain screen: findings, their causes, and the way to the steps they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from schedtop.console import layout
from schedtop.console.explain.desk import ExplainDesk
from schedtop.console.screens.base import ConsoleScreen
from schedtop.console.screens.everywhere import EverywhereCommands
from schedtop.console.widgets.findings import FindingsPanel, WhyPanel
from schedtop.console.widgets.header import HeaderBar
from schedtop.console.widgets.panel import Drawn, Panel
from textual.widgets import Static

if TYPE_CHECKING:
    from schedtop.console.actions import Registry
    from schedtop.console.view import View
    from textual.app import ComposeResult
    from textual.events import DescendantFocus, Resize

_LEAST_LEFT, _MOST_LEFT, _LEFT_SHARE = 24, 44, 0.3


class ExplainScreen(ConsoleScreen):
    """The list left, why right. Its figures change once a second, whenever the desk has looked."""

    AUTO_FOCUS: ClassVar[str | None] = None

    def __init__(self, view: View, registry: Registry, desk: ExplainDesk) -> None:
        super().__init__(view, registry, "findings")
        self.header = HeaderBar(view, id="header")
        self.findings = FindingsPanel(view, desk, id="findings")
        self.why = WhyPanel(view, self.findings, id="finding")
        self.commands = (ExplainCommands(self), EverywhereCommands(self))

    def compose(self) -> ComposeResult:
        yield from self.drawn
        yield Static("", id="small")

    def on_mount(self) -> None:
        self.place()
        self.set_focus(self.findings)

    def on_resize(self, event: Resize) -> None:
        self.place()

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        return self.header, self.findings, self.why, self.footer

    @property
    def panel(self) -> Panel:
        """The panel that has the focus."""
        return self.why if self.focused is self.why else self.findings

    def paint(self) -> None:
        with self.view.history.lock:
            for widget in self.drawn:
                widget.paint()

    def place(self) -> None:
        """List and explanation side by side, between header and footer."""
        width, height = self.app.size
        small = layout.mode(width, height) == "small"
        note = self.query_one("#small", Static)
        note.display = small
        least = layout.STRIP
        words = f"schedtop needs {least[0]}x{least[1]}\nthis terminal is {width}x{height}\n\nq quits"
        note.update(Text(words if small else "", justify="center"))
        left = min(_MOST_LEFT, max(_LEAST_LEFT, round(width * _LEFT_SHARE)))
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
        self.footer.scope = str(self.panel.id)
        self.paint()

    def help_page(self) -> tuple[str, str]:
        return "Explain", self.panel.HELP

    def copied_line(self) -> str:
        return self.panel.copied()


class ExplainCommands:
    """The hands of the Explain screen."""

    def __init__(self, screen: ExplainScreen) -> None:
        self.screen = screen

    def why_not(self, name: str) -> str | None:
        match name:
            case "finding_open" if self.screen.findings.selected() is None:
                return "nothing is found"
            case "evidence_step" if self.screen.why.steps() is None:
                return "no steps on this line; those under Steps lead to Live"
        return None

    def do_finding_open(self) -> None:
        self.screen.why.to_steps()
        self.screen.set_focus(self.screen.why)

    def do_finding_back(self) -> None:
        self.screen.set_focus(self.screen.findings)

    def do_evidence_step(self) -> None:
        steps, view = self.screen.why.steps(), self.screen.view
        if steps is None:
            return
        if view.pin(steps.first_seq) or view.pin(steps.last_seq):
            self.screen.console.back_to_live("panel_1")
        else:
            self.screen.say(f"{steps.label}: no longer kept", "warn")

    def do_next_panel(self) -> None:
        self.screen.set_focus(self.screen.findings if self.screen.panel is self.screen.why else self.screen.why)

    do_previous_panel = do_next_panel

    def do_back(self) -> None:
        if self.screen.panel is self.screen.why:
            self.do_finding_back()
        else:
            self.screen.dismiss(None)

    def do_explain(self) -> None:
        self.screen.dismiss(None)

    def do_up(self) -> None:
        self.screen.panel.move(-1)

    def do_down(self) -> None:
        self.screen.panel.move(1)

    def do_page_up(self) -> None:
        self.screen.panel.move_page(-1)

    def do_page_down(self) -> None:
        self.screen.panel.move_page(1)

    def do_first(self) -> None:
        self.screen.panel.move_end(last=False)

    def do_last(self) -> None:
        self.screen.panel.move_end(last=True)
