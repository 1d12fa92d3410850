"""Commit-confirmed: a change that goes back by itself unless it is confirmed, or at once when an SLO breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schedtop.console.history import History
from schedtop.console.latency import merge
from schedtop.engine.knobs import KnobValue

TRIAL_S = 30.0
WATCH_S = 5.0
MIN_SAMPLES = 20


@dataclass(slots=True)
class Trial:
    """A change under trial. `until_s` is on the console's clock, `began_s` on the engine's.

    `breach` says which SLO broke, empty while all hold.
    """

    before: dict[str, KnobValue]
    values: dict[str, KnobValue]
    until_s: float
    began_s: float
    breach: str = ""

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.until_s - now_s)


class Trials:
    """At most one trial at a time. `revert` is called once with the values to go back to, and why."""

    def __init__(
        self,
        history: History,
        slos: dict[str, float],
        now: Callable[[], float],
        revert: Callable[[dict[str, KnobValue], str], None],
    ) -> None:
        self.history, self.slos, self.now, self._revert = history, slos, now, revert
        self.trial: Trial | None = None

    def begin(self, before: dict[str, KnobValue], values: dict[str, KnobValue], seconds: float = TRIAL_S) -> None:
        """Start the clock of a change that has just been applied."""
        self.trial = Trial(before, values, self.now() + seconds, self.history.live.clock_s)

    def confirm(self) -> bool:
        """Keep the change; False if none is on trial."""
        found, self.trial = self.trial is not None, None
        return found

    def check(self) -> None:
        """Revert what ran out of time or broke an SLO. Called now and then, with the history locked."""
        trial = self.trial
        if trial is None:
            return
        breach = self._breach(trial)
        if breach:
            self.end(breach)
        elif not trial.left_s(self.now()):
            self.end("not confirmed in time")

    def end(self, why: str) -> None:
        """Revert now."""
        trial, self.trial = self.trial, None
        if trial is not None:
            self._revert(trial.before, why)

    def _breach(self, trial: Trial) -> str:
        """The first SLO whose p95 broke since the change, over the last seconds and enough samples."""
        moment = self.history.now()
        window_s = min(WATCH_S, moment.clock_s - trial.began_s - 1.0)
        if window_s < 1.0:
            return ""
        for kind, limit_s in self.slos.items():
            samples = merge(self.history.latency_columns(kind, moment, window_s, 8))
            p95 = samples.quantile(0.95)
            if p95 is not None and samples.n >= MIN_SAMPLES and p95 > limit_s:
                return f"{kind.upper()} p95 {p95 * 1000:.0f} ms broke its SLO of {limit_s * 1000:.0f} ms"
        return ""
