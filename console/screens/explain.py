"""The Explain screen: findings, their causes, and the way to the steps they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console.explain.tries import Tries
from schedtop.console.explain.watch import Watch
from schedtop.console.knobs.forecast import Forecaster
from schedtop.console.knobs.staged import Staging
from schedtop.console.screens.commands.common import CommonCommands
from schedtop.console.screens.panel_screen import MoveCommands, PanelScreen
from schedtop.console.widgets.findings import FindingsPanel, WhyPanel

if TYPE_CHECKING:
    from schedtop.console.actions import Registry
    from schedtop.console.view import View


class ExplainScreen(PanelScreen):
    """The list left, why right. Its figures change once a second, whenever they were has looked."""

    EXPLAINS: ClassVar[bool] = True

    def __init__(
        self, view: View, registry: Registry, explain: Watch, forecaster: Forecaster, staging: Staging
    ) -> None:
        self.staging = staging
        self.findings = FindingsPanel(view, explain, id="findings")
        self.why = WhyPanel(view, self.findings, Tries(forecaster, staging), id="finding")
        super().__init__(view, registry, (self.findings, self.why))
        self.commands = (ExplainCommands(self), MoveCommands(self), CommonCommands(self))

    def help_page(self) -> tuple[str, str]:
        return "Explain", self.panel.HELP


class ExplainCommands:
    """The hands of the Explain screen."""

    def __init__(self, screen: ExplainScreen) -> None:
        self.screen = screen

    def why_not(self, name: str) -> str | None:
        match name:
            case "finding_open" if self.screen.findings.selected() is None:
                return "nothing is found"
            case "evidence_step" if self.screen.why.steps() is None and self.screen.why.tried() is None:
                return "nothing on this line; those under Steps lead to Live, those under Try are staged"
        return None

    def do_finding_open(self) -> None:
        self.screen.why.to_steps()
        self.screen.set_focus(self.screen.why)

    def do_finding_back(self) -> None:
        self.screen.set_focus(self.screen.findings)

    def do_evidence_step(self) -> None:
        tried = self.screen.why.tried()
        if tried is not None:
            self.screen.staging.stage(tried.knob, tried.value)
            self.screen.say(f"staged {tried.title}: {self.screen.staging.NEXT}")
            return
        steps, view = self.screen.why.steps(), self.screen.view
        if steps is None:
            return
        if view.pin(steps.first_seq) or view.pin(steps.last_seq):
            self.screen.console.back_to_live("panel_1")
        else:
            self.screen.say(f"{steps.label}: {view.forgotten}", "warn")

    def do_next_panel(self) -> None:
        self.screen.focus_panel(1)

    do_previous_panel = do_next_panel

    def do_back(self) -> None:
        if self.screen.panel is self.screen.why:
            self.do_finding_back()
        else:
            self.screen.dismiss(None)

    def do_explain(self) -> None:
        self.screen.dismiss(None)
