"""Changing knobs: staging, asking the engine what would happen, applying, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from schedtop.console.drawing import text
from schedtop.console.knobs.staged import Staging
from schedtop.console.knobs.trial import TRIAL_S
from schedtop.console.screens.base import Console, ConsoleScreen
from schedtop.console.screens.commands.common import CommonCommands, engine_refuses
from schedtop.engine.contract.commands import EndTrial, SetKnobs
from schedtop.engine.contract.knobs import KnobError
from schedtop.engine.contract.telemetry import Reply

if TYPE_CHECKING:
    from schedtop.console.widgets.knobs import KnobsPanel
    from schedtop.console.widgets.prompt import Prompt


class KnobCommands:
    """The hands of a screen with a knob panel and a prompt."""

    def __init__(self, screen: ConsoleScreen, panel: KnobsPanel, prompt: Prompt) -> None:
        self.screen, self.panel, self.prompt = screen, panel, prompt

    @property
    def staging(self) -> Staging:
        return self.panel.staging

    @property
    def console(self) -> Console:
        return self.screen.console

    def why_not(self, name: str) -> str | None:
        if not name.startswith("knob_") or self.screen.view.replay is not None:
            return None
        if name == "knob_untry" and self.console.trials.pending is None:
            return "no change is on trial"
        refused = engine_refuses(self.screen.view)
        if refused is None and self.screen.view.pinned is not None:
            return "a past step is shown; End returns to the present"
        if (
            refused is None
            and name in ("knob_apply", "knob_try")
            and self.staging.sent_over is self.screen.view.link
        ):
            return "the engine has not answered the last change yet"
        return refused

    @property
    def _does(self) -> str:
        return "applies" if self.screen.view.replay is None else "re-runs with"

    def do_knob_up(self) -> None:
        self._nudge(1)

    def do_knob_down(self) -> None:
        self._nudge(-1)

    def _nudge(self, direction: int) -> None:
        knob = self.panel.selected()
        if knob is not None:
            before = self.staging.shown(knob.name)
            self.staging.nudge(knob.name, direction)
            if self.staging.shown(knob.name) == before:
                self.screen.say(f"{knob.name} {text.value(before)} is at its limit: {self.staging.range_of(knob)}")
            self.preview()

    def do_knob_type(self) -> None:
        knob = self.panel.selected()
        if knob is None:
            return

        def typed(words: str) -> None:
            if not words.strip() and not knob.optional:
                self.screen.say(f"nothing was typed: {knob.name} stays {text.value(self.staging.shown(knob.name))}")
                return
            self.staging.stage(knob.name, words)
            self.preview()

        def wrong(words: str) -> str:
            try:
                self.staging.check(knob.name, words)
            except KnobError as error:
                return str(error).partition(": ")[2] or str(error)
            return ""

        value = text.value(self.staging.shown(knob.name))
        self._ask(f"{knob.name} ({self.staging.range_of(knob)})", value, typed, wrong)

    def _ask(self, what: str, value: str, typed: Callable[[str], None], wrong: Callable[[str], str]) -> None:
        """Let the operator type something; `wrong` says what a text lacks, and one that lacks it is asked for again."""

        def done(words: str | None) -> None:
            if words and wrong(words):
                self.prompt.ask(what, words, done, wrong=wrong)
                return
            if words is not None:
                typed(words)
            self.screen.set_focus(self.panel)
            self.screen.paint()

        self.prompt.on_help = CommonCommands(self.screen).do_help
        self.prompt.ask(what, value, done, wrong=wrong)

    def do_knob_apply(self) -> None:
        if not self.staging.staged:
            self.do_knob_type()
            return
        self._apply("console")

    def do_knob_try(self) -> None:
        """Confirm what is on trial; without that, apply the staged values on trial."""
        trial = self.console.trials.pending
        if trial is not None and self.staging.staged:
            # Somebody else's, maybe: who has just staged a change means that one.
            named = ", ".join(f"{name} {text.value(value)}" for name, value in trial.values.items())
            self.screen.say(f"{named} is on trial: revert it (r) first, or drop your change (Esc)", "warn")
        elif trial is not None:
            self._end_trial(keep=True)
        elif not self.staging.staged:
            self.screen.say("stage a change first; c then applies it on trial", "warn")
        else:
            watched = " or once an SLO breaks" if self.console.slos_s else ""
            question = f"seconds until it reverts unless confirmed{watched} ({TRIAL_S:g})"
            self._ask(question, "", self._try, lambda words: "" if _seconds(words) else "enter a number of seconds")

    def _try(self, words: str) -> None:
        seconds = _seconds(words)
        assert seconds is not None
        self._apply("console", seconds)

    def do_knob_untry(self) -> None:
        self._end_trial(keep=False)

    def _end_trial(self, keep: bool) -> None:
        trial = self.console.trials.pending
        assert trial is not None

        def replied(reply: Reply) -> None:
            self.screen.say(reply.text, "ok" if reply.ok else "breach")

        by = f"console {self.screen.view.options.who}".strip()
        self.console.command(lambda id: EndTrial(id, trial.number, keep, by=by), replied)

    def _apply(self, by: str, trial_s: float | None = None) -> None:
        by = f"{by} {self.screen.view.options.who}".strip()
        values, version = self.staging.applying(), self.screen.view.present.live.knobs_version
        slos_s = {} if trial_s is None else self.console.slos_s

        def replied(reply: Reply) -> None:
            self.staging.sent_over = None
            if not reply.ok:
                self.staging.refused = reply.text
                self.screen.say(reply.text, "breach")
                return
            self.staging.applied(values)
            words = f"applied {', '.join(values)}"
            if trial_s is not None:
                words += f": reverts in {trial_s:g} s unless confirmed (c)"
            notes = "; ".join(reply.warnings)
            self.screen.say(words + (f": {notes}" if notes else ""), "ok")

        self.staging.sent_over = self.screen.view.link
        self.screen.say(f"sent {', '.join(values)}; waiting for the engine")
        self.console.command(lambda id: SetKnobs(id, values, version, by, trial_s=trial_s, slo_s=slos_s), replied)

    def do_knob_undo(self) -> None:
        if self.staging.stage_undo():
            self.preview()
            self.screen.say("the values before your last change are staged; Enter applies them")
        else:
            self.screen.say("nothing to undo", "warn")

    def do_knob_launch(self) -> None:
        if self.staging.stage_launch():
            self.preview()
            self.screen.say(f"the launch values are staged; Enter {self._does} them")
        else:
            self.screen.say("every knob is at its launch value")

    def preview(self) -> None:
        """Ask the engine what the staged values would do; a recording has none."""
        values: dict[str, Any] = dict(self.staging.staged)
        if not values or self.screen.view.replay is not None:
            return

        def replied(reply: Reply) -> None:
            if values == self.staging.staged:
                self.staging.warnings = list(reply.warnings)
                self.staging.refused = "" if reply.ok else reply.text

        self.console.command(lambda id: SetKnobs(id, values, by="console", dry_run=True), replied)
        self.console.forecaster.want(values)


def _seconds(words: str) -> float | None:
    """How long a trial is to last; None if the text is not such a number."""
    try:
        seconds = float(words.strip().removesuffix("s")) if words.strip() else TRIAL_S
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None
