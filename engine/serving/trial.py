"""Commit-confirmed changes: they revert unless confirmed in time, or at once when they break an SLO."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from schedtop.engine.contract.commands import CONFIRM_WITHIN_S, MAX_TRIAL_S, EndTrial, SetKnobs
from schedtop.engine.contract.telemetry import Notice, StepRecord, Trial
from schedtop.engine.serving.engine_protocol import KnobOutcome, Tunable
from schedtop.engine.serving.slo_watch import KINDS, SETTLE_S, Recent, Watched

JUDGE_EVERY_S = 0.25


class Trials:
    """At most one trial at a time. It lives with the engine, so it ends even if every console is gone.

    `tell` sends what every console should know. All of it belongs to the thread that steps.
    """

    def __init__(
        self, engine: Tunable, tell: Callable[[Notice], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._tell, self._now = engine, tell, now
        self._trial: Trial | None = None
        self._until_s = self._judge_at_s = 0.0
        self._number = 0
        self._watched: list[Watched] = []
        self._recent = self._since = Recent()

    @property
    def pending(self) -> Trial | None:
        """The trial in its present state."""
        return self._trial and msgspec.structs.replace(self._trial, left_s=self.left_s())

    def left_s(self) -> float:
        """Seconds of wall time until the pending trial expires; infinite without one."""
        return max(0.0, self._until_s - self._now()) if self._trial else float("inf")

    def set_knobs(self, command: SetKnobs) -> KnobOutcome:
        """Apply a change, permanently or on trial. Raises `ValueError` for a trial that cannot begin."""
        on_trial = command.trial_s is not None and not command.dry_run
        if on_trial:
            self._refuse(command)
        engine = self._engine
        old = dict(engine.knobs)
        outcome = engine.set_knobs(command.values, command.expected_version, command.by, command.dry_run)
        if not outcome.ok or command.dry_run:
            return outcome
        changed = {name: value for name, value in engine.knobs.items() if old.get(name) != value}
        if command.trial_s is not None and changed:
            self._begin({name: old.get(name) for name in changed}, changed, command.trial_s, command.slo_s)
        elif self._trial is not None:
            self._leave_out({*command.values, *changed})
        return outcome

    def end(self, command: EndTrial) -> str:
        """Confirm or revert the pending trial; returns the reply. Raises `ValueError` if it is not pending."""
        trial = self._trial
        if trial is None or trial.number != command.number:
            raise ValueError("that trial is over: look at the knobs again")
        by = f" ({command.by})" if command.by else ""
        if not command.keep:
            return self._take_back(f"ended by hand{by}")
        text = f"confirmed{by}: {_words(trial.values)} stays"
        self._over(text)
        return text

    def watch(self, record: StepRecord) -> None:
        """Take in a record, on trial or not: a change is judged against the time before it."""
        self._recent.take(record)
        if self._trial is not None:
            self._since.take(record)

    def check(self) -> None:
        """Revert a trial that ran out of time or broke an SLO."""
        if self._trial is None:
            return
        why = self._breach() if self._watched and not self._engine.paused else ""
        if why or not self.left_s():
            self._take_back(why or "not confirmed in time")

    def _breach(self) -> str:
        """What broke; judged only now and then, because it walks all requests."""
        now_s = self._engine.clock_s
        if now_s < self._judge_at_s:
            return ""
        self._judge_at_s = now_s + JUDGE_EVERY_S
        unended = self._engine.unended()
        return next(
            (breach for watched in self._watched if (breach := watched.breach(now_s, self._since, unended))), ""
        )

    def _refuse(self, command: SetKnobs) -> None:
        seconds = command.trial_s or 0.0
        if self._trial is not None:
            raise ValueError(f"{_words(self._trial.values)} is on trial: confirm it or take it back first")
        if not 0 < seconds <= MAX_TRIAL_S + CONFIRM_WITHIN_S:
            raise ValueError(f"a trial of {seconds:g} s: must be above 0 and at most {MAX_TRIAL_S:g}")
        for kind, bound_s in command.slo_s.items():
            if kind not in KINDS or not bound_s > 0:
                raise ValueError(f"a trial cannot watch {kind}={bound_s:g} s: it knows {', '.join(KINDS)}")

    def _begin(
        self, before: dict[str, Any], values: dict[str, Any], seconds: float, slo_s: Mapping[str, float]
    ) -> None:
        self._number += 1
        self._until_s = self._now() + seconds
        trial = self._trial = Trial(self._number, values, before, seconds, dict(slo_s))
        now_s = self._engine.clock_s
        self._judge_at_s = now_s + SETTLE_S
        unended = self._engine.unended()
        self._watched = [Watched(kind, bound_s, self._recent, unended, now_s) for kind, bound_s in slo_s.items()]
        self._since = Recent(self._judge_at_s)
        words = f"{_words(values)} on trial: reverts to {_words(before)} in {seconds:g} s unless confirmed"
        self._tell(Notice("info", words, trial))

    def _leave_out(self, names: set[str]) -> None:
        """These knobs were set permanently."""
        trial = self._trial
        if trial is None or not trial.values.keys() & names:
            return
        values = {name: value for name, value in trial.values.items() if name not in names}
        before = {name: trial.before[name] for name in values}
        self._trial = msgspec.structs.replace(trial, values=values, before=before)
        if values:
            self._tell(Notice("info", f"still on trial: {_words(values)}", self.pending))
        else:
            self._over("the trial is over: its knobs were set again")

    def _take_back(self, why: str) -> str:
        trial = self._trial
        assert trial is not None
        outcome = self._engine.set_knobs(dict(trial.before), None, f"trial: {why}", False)
        if not outcome.ok:
            why = f"cannot go back to {_words(trial.before)}: {outcome.text}"
            self._over(why, "error")
            return why
        text = f"back to {_words(trial.before)}: {why}"
        self._over(text, "warning")
        return text

    def _over(self, words: str, level: str = "info") -> None:
        trial, self._trial, self._watched = self._trial, None, []
        self._tell(Notice(level, words, trial and msgspec.structs.replace(trial, left_s=0.0)))


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'auto' if value is None else value}" for name, value in values.items())
