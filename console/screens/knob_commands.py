"""Changing knobs: staging, asking the engine what would happen, applying, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedtop.console import text
from schedtop.console.desk import KnobDesk
from schedtop.console.screens.base import ConsoleScreen
from schedtop.console.screens.everywhere import EverywhereCommands, engine_refuses
from schedtop.console.trial import TRIAL_S
from schedtop.engine.knobs import KnobError
from schedtop.engine.telemetry import Reply, SetKnobs

if TYPE_CHECKING:
    from schedtop.console.app import ConsoleApp
    from schedtop.console.widgets.knobs import KnobsPanel
    from schedtop.console.widgets.prompt import Prompt


class KnobCommands:
    """The hands of a screen with a knob panel and a prompt."""

    def __init__(self, screen: ConsoleScreen, panel: KnobsPanel, prompt: Prompt) -> None:
        self.screen, self.panel, self.prompt = screen, panel, prompt

    @property
    def desk(self) -> KnobDesk:
        return self.panel.desk

    @property
    def app(self) -> ConsoleApp:
        return self.screen.console

    def why_not(self, name: str) -> str | None:
        if not name.startswith("knob_"):
            return None
        refused = engine_refuses(self.screen.view)
        if refused is None and self.screen.view.pinned is not None:
            return "a past step is shown; End returns to the present"
        return refused

    def do_knob_up(self) -> None:
        self._nudge(1)

    def do_knob_down(self) -> None:
        self._nudge(-1)

    def _nudge(self, direction: int) -> None:
        knob = self.panel.selected()
        if knob is not None:
            self.desk.nudge(knob.name, direction)
            self.foresee()

    def do_knob_type(self) -> None:
        knob = self.panel.selected()
        if knob is None:
            return

        def done(words: str | None) -> None:
            if words is not None:
                try:
                    self.desk.stage(knob.name, words)
                except KnobError as error:
                    self.desk.refused = str(error)
                else:
                    self.foresee()
            self.screen.set_focus(self.panel)
            self.screen.paint()

        self.prompt.on_help = EverywhereCommands(self.screen).do_help
        shown = text.value(self.desk.shown(knob.name))
        self.prompt.ask(f"{knob.name} ({self.desk.range_of(knob)})", shown, done)

    def do_knob_apply(self) -> None:
        if not self.desk.staged:
            self.do_knob_type()
            return
        self._apply("key")

    def do_knob_try(self) -> None:
        """Confirm what is on trial; without that, apply the staged values on trial."""
        if self.app.trials.confirm():
            self.screen.say("confirmed: the change stays", "ok")
        elif not self.desk.staged:
            self.screen.say("stage a change first; c then applies it for a while only", "warn")
        else:
            self._apply("trial", on_trial=True)

    def _apply(self, by: str, on_trial: bool = False) -> None:
        values, version = self.desk.applying(), self.screen.view.history.live.knobs_version
        before = {name: self.desk.current.get(name) for name in values}

        def replied(reply: Reply) -> None:
            if not reply.ok:
                self.desk.refused = reply.text
                self.screen.say(reply.text, "breach")
                return
            self.desk.applied(values)
            words = f"applied {', '.join(values)}"
            if on_trial:
                self.app.trials.begin(before, values)
                words += f": goes back in {TRIAL_S:.0f} s unless c confirms it"
            notes = "; ".join(reply.warnings)
            self.screen.say(words + (f": {notes}" if notes else ""), "ok")

        self.app.command(lambda id: SetKnobs(id, values, version, by=by), replied)

    def do_knob_undo(self) -> None:
        if self.desk.stage_undo():
            self.foresee()
            self.screen.say("the values before your last change are staged; Enter applies them")
        else:
            self.screen.say("no change of yours is left to undo", "warn")

    def do_knob_launch(self) -> None:
        if self.desk.stage_launch():
            self.foresee()
            self.screen.say("the launch values are staged; Enter applies them")
        else:
            self.screen.say("every knob is at its launch value")

    def foresee(self) -> None:
        """Ask the engine what the staged values would do."""
        values: dict[str, Any] = dict(self.desk.staged)
        if not values:
            return

        def replied(reply: Reply) -> None:
            if values == self.desk.staged:
                self.desk.warnings = list(reply.warnings)
                self.desk.refused = "" if reply.ok else reply.text

        self.app.command(lambda id: SetKnobs(id, values, by="key", dry_run=True), replied)
        self.app.forecaster.want(values)
