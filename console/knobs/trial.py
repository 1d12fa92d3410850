"""Commit-confirmed, as the engine describes it: what is on trial and until when on the console's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schedtop.console.past.past import Past
from schedtop.engine.contract.telemetry import Notice, Outgoing, Snapshot, Trial

TRIAL_S = 30.0


@dataclass(frozen=True, slots=True)
class Pending:
    """The engine's trial. `until_s` is on the console's clock, which need not agree with the engine's."""

    number: int
    values: dict[str, Any]
    until_s: float

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.until_s - now_s)


class FollowedTrials:
    """Follows what the engine says. The engine keeps the time: this console may be one of several, or gone by then."""

    def __init__(self, history: Past, now: Callable[[], float]) -> None:
        self._now = now
        self.pending: Pending | None = None
        self._outcome: Notice | None = None
        history.watchers.append(self._hear)

    def take_outcome(self) -> Notice | None:
        """How the last trial ended; once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def _hear(self, message: Outgoing) -> None:
        if isinstance(message, Snapshot):
            self._take(message.trial)
        elif isinstance(message, Notice) and message.trial is not None:
            self._take(message.trial)
            if self.pending is None:
                self._outcome = message

    def _take(self, trial: Trial | None) -> None:
        if trial is None or trial.left_s <= 0:
            self.pending = None
        else:
            self.pending = Pending(trial.number, trial.values, self._now() + trial.left_s)
