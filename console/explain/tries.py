"""The measured effect of a finding's knobs: the forecaster runs a few values of each, off the screen's thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schedtop.console.drawing import text
from schedtop.console.explain.finding import Advice, Finding
from schedtop.console.knobs.forecast import FIGURES, Forecast, Forecaster
from schedtop.console.knobs.staged import Staging
from schedtop.engine.contract.knobs import BY_NAME, KnobError, KnobValue, in_force

FRESH_S = 20.0
"""A forecast older than this, on the engine's clock, is renewed while its finding is shown."""
NOTABLE = 0.02
"""Of a figure; a smaller change is none."""
WEIGHTS = {"ttft_p50_s": 1.0, "ttft_p95_s": 1.0, "itl_p50_s": 0.5, "itl_p95_s": 1.0, "output_tokens_per_s": 2.0}
"""How much a relative gain in a figure counts; preemptions are a means, not an end, and show without counting."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One value of a knob and what it would do: `words` has the figures that change, `gain` weighs them."""

    knob: str
    value: KnobValue
    words: str
    gain: float

    @property
    def title(self) -> str:
        return f"{self.knob} {text.value(self.value)}"


@dataclass(frozen=True, slots=True)
class TriedValues:
    """What came of a finding's values: those that help, best first; how many were tried, or why none could be."""

    helpful: tuple[Tried, ...]
    tried: tuple[str, ...]
    failed: str = ""


class Tries:
    """Outcomes by finding. `found` asks for one that is missing or old; `on_done` runs on the worker's thread."""

    def __init__(self, forecaster: Forecaster, staging: Staging) -> None:
        self._forecaster, self._staging = forecaster, staging
        self._lock = threading.Lock()
        self._outcomes: dict[str, tuple[int, float, TriedValues]] = {}
        self._doing: str | None = None
        self._left = 0

    @property
    def can_try(self) -> bool:
        """There is a forecaster, and an engine to forecast."""
        return self._forecaster.can_ask

    def found(self, finding: Finding) -> TriedValues | None:
        """The newest outcome for a finding; None while the first is being worked out, or nothing can be tried.

        The first outcome grows value by value, see `left`; a newer one replaces it once it is complete.
        """
        if not self.can_try:
            return None
        live = self._forecaster.history.live
        with self._lock:
            known = self._outcomes.get(finding.id)
            fresh = known is not None and known[0] == live.knobs_version and abs(live.clock_s - known[1]) < FRESH_S
            if not fresh and self._doing is None:
                candidates = list(self._candidates(finding))
                self._doing, self._left = finding.id, len(candidates)
                at = (live.knobs_version, live.clock_s)
                threading.Thread(
                    target=self._run, args=(finding.id, candidates, at), name="console-tries", daemon=True
                ).start()
            return known[2] if known is not None and known[0] == live.knobs_version else None

    def left(self, finding: Finding) -> int:
        """Values of a finding that are still to be worked out."""
        with self._lock:
            return self._left if self._doing == finding.id else 0

    def measure(self, finding: Finding) -> TriedValues:
        """What the finding's knobs would do from the present state; works it out at once."""
        *_, outcome = self._measuring(list(self._candidates(finding)))
        return outcome

    def _candidates(self, finding: Finding) -> Iterator[tuple[str, KnobValue]]:
        for advice in finding.advice:
            if advice.live and advice.knob in self._staging.current:
                yield from ((advice.knob, value) for value in values_of(advice, self._staging))

    def _run(self, name: str, candidates: list[tuple[str, KnobValue]], at: tuple[int, float]) -> None:
        for left, outcome in zip(range(len(candidates), -1, -1), self._measuring(candidates), strict=True):
            with self._lock:
                before = self._outcomes.get(name)
                if not left or (outcome.tried and (before is None or before[:2] == at or before[0] != at[0])):
                    self._outcomes[name] = (*at, outcome)
                self._left = left
                if not left:
                    self._doing = None
            self._forecaster.on_done()

    def _measuring(self, candidates: list[tuple[str, KnobValue]]) -> Iterator[TriedValues]:
        """Outcomes before the first candidate and after each one, all from one state of the engine."""
        tried: list[Tried] = []
        failed = ""
        yield TriedValues((), ())
        present = self._forecaster.present()
        for knob, value in candidates:
            forecast = self._forecaster.ask({knob: value}, present)
            if isinstance(forecast, str):
                failed = forecast
            else:
                tried.append(judged(knob, value, forecast))
            helpful = sorted((one for one in tried if one.gain > NOTABLE), key=lambda one: -one.gain)
            yield TriedValues(tuple(helpful), tuple(one.title for one in tried), "" if tried else failed)


def values_of(advice: Advice, staging: Staging) -> list[KnobValue]:
    """Two or three values to try, in the direction of the advice, within the knob's bounds."""
    knob, now = BY_NAME[advice.knob], in_force(staging.current, advice.knob)
    if advice.direction.startswith("back to "):
        wanted: list[Any] = [advice.direction.removeprefix("back to ")]
    elif knob.kind is bool:
        wanted = [advice.direction == "on" or advice.direction == "up"]
    elif knob.kind is float:
        now = float(now or 0.0)
        wanted = [now + 0.02, now + 0.05, now + 0.1] if advice.direction == "up" else [now / 2, 0.0]
    else:
        start = int(now or 0)
        if not start:
            wanted = [256, 1024]
        elif advice.direction == "up":
            wanted = [start + max(1, start // 2), 2 * start, 4 * start]
        else:
            wanted = [start - max(1, start // 4), start // 2, start // 4]
    found: list[KnobValue] = []
    for value in wanted:
        try:
            typed = staging.check(advice.knob, round(value, 4) if isinstance(value, float) else value)
        except KnobError:
            continue
        if typed not in found and typed != staging.current.get(advice.knob):
            found.append(typed)
    return found


def judged(knob: str, value: KnobValue, forecast: Forecast) -> Tried:
    """The figures that change by more than chance, and their gain."""
    words, gain = [], 0.0
    for name, label, figure, less_is_better in FIGURES:
        base, staged, change = (side.get(name) for side in _sides(forecast))
        if base is None or staged is None or change is None:
            continue
        if base.value is None or staged.value is None or change.value is None:
            continue
        if abs(change.value) <= max(change.error or 0.0, NOTABLE * abs(base.value)):
            continue
        words.append(f"{label} {figure(base.value)}→{figure(staged.value)}")
        relative = change.value / abs(base.value) if base.value else (1.0 if change.value > 0 else -1.0)
        gain += WEIGHTS.get(name, 0.0) * max(-1.0, min(1.0, -relative if less_is_better else relative))
    return Tried(knob, value, ", ".join(words) or "no figure changes by more than chance", gain)


def _sides(forecast: Forecast) -> tuple[Mapping[str, Any], ...]:
    return forecast.base, forecast.staged, forecast.change
