"""The guided minute: pressure, read the finding, stage, try, keep. One line says what to do next; no key is taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from schedtop.console.drawing import text

if TYPE_CHECKING:
    from schedtop.console.knobs.staged import Staging
    from schedtop.console.view import View

KNOB = "max_num_seqs"
OFFER = "New here? A guided minute: press :, type guide, Enter."
OFFERED_S = 60.0
DONE = "Kept: the queue drains. R in [6] stages the launch values; ? explains a panel."
DONE_S = 20.0


class Guide:
    """Follows what the operator does. `tight` is the value that makes the pressure, None while nobody is guided."""

    def __init__(self, view: View, staging: Staging, offered: bool) -> None:
        self.view, self.staging = view, staging
        self.tight: int | None = None
        self._before: object = None
        self._until_s = view.now() + OFFERED_S if offered else -math.inf

    def tighten(self) -> int:
        """Begin; the value of `KNOB` that lets a queue build up."""
        self._before = self.staging.current[KNOB]
        self.tight = max(1, self.view.present.live.num_running // 3)
        self._until_s = math.inf
        return self.tight

    def words(self, reading: bool) -> str:
        """What to do next; empty while there is nothing to say. `reading`: Explain is open."""
        value, now_s = self.staging.current.get(KNOB), self.view.now()
        if now_s >= self._until_s or self.view.link.state != "open":
            self.tight = None
            return ""
        if self.tight is None:
            return OFFER
        if self.view.trial is not None:
            return "5/5 Keep it. "  # before the words that describe the trial
        if self.staging.staged:
            return "4/5 Try it: 6, then c and Enter. It reverts by itself unless you confirm it."
        if value not in (self.tight, self._before):
            self._until_s = min(self._until_s, now_s + DONE_S)
            return DONE
        if reading:
            return f"3/5 Stage a remedy: a value under Try and Enter; or 6, {KNOB} and +."
        if any(entry.active for entry in self.view.findings):
            return "2/5 Read the finding: x."
        return (
            f"1/5 Pressure: {KNOB} {text.value(self._before)}→{self.tight}, a queue builds up. Wait for a finding."
        )
