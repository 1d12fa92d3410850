"""Staged knob values: their bounds, and how to undo them. No drawing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from schedtop.console.drawing import text
from schedtop.console.knobs.forecast import Forecaster
from schedtop.console.past.past import Past
from schedtop.console.past.state import LiveState
from schedtop.engine.contract.knobs import BY_NAME, KNOBS, LIVE, Knob, KnobValue, bounds, check_value, in_force

DRAINING = ("max_num_seqs", "max_num_active_seqs")


class Staging:
    """What the operator is about to change. Reads the live state; the screen sends what `values_to_apply` says.

    `warnings` are the engine's own words about the staged values, from a dry run. `sent_over` is the link over which
    a change went that is not answered yet; once that link broke, no answer will come.
    """

    NEXT: ClassVar[str] = "Enter on Knobs applies, c tries it"
    """What to do with staged values."""

    def __init__(self, history: Past) -> None:
        self.history = history
        self.staged: dict[str, KnobValue] = {}
        self.warnings: list[str] = []
        self.refused = ""
        self.forecaster: Forecaster | None = None
        self.sent_over: object = None
        self._before: dict[str, KnobValue] = {}
        self._undo: list[dict[str, KnobValue]] = []

    @property
    def current(self) -> Mapping[str, Any]:
        return self.history.live.knobs

    @property
    def config(self) -> Mapping[str, Any]:
        """Start-up settings by name."""
        return self.history.header.config if self.history.header is not None else {}

    @property
    def ceilings(self) -> dict[str, int | None]:
        config = self.config
        return {knob.ceiling: config.get(knob.ceiling) for knob in LIVE if knob.ceiling}

    def live_knobs(self) -> list[Knob]:
        """Knobs that can be changed now, in the table's order."""
        current = self.current
        return [knob for knob in LIVE if knob.name in current]

    def start_up_knobs(self) -> list[tuple[Knob, Any]]:
        """Settings that only a restart changes, with their values."""
        config = self.config
        return [(knob, config[knob.name]) for knob in KNOBS if not knob.live and knob.name in config]

    def range_of(self, knob: Knob) -> str:
        """The bounds as the panel shows them."""
        if knob.choices:
            return "|".join(knob.choices)
        if knob.kind is bool:
            return "on|off"
        low, high, _ = bounds(knob, self.ceilings)
        return f"{_bound(low)}..{_bound(high)}"

    def value_in(self, state: LiveState, name: str) -> Any:
        """A knob's value at the shown moment."""
        return state.knobs.get(name)

    def shown(self, name: str) -> KnobValue:
        """The value the next key press starts from: staged if there is one, else the current one."""
        return self.staged.get(name, self.current.get(name))

    def stage(self, name: str, value: Any) -> None:
        """Stage a value, typed or computed. Raises `KnobError` with the bound when it is refused."""
        typed = self.check(name, value)
        self.refused = ""
        if typed == self.current.get(name):
            self.staged.pop(name, None)
        else:
            self.staged[name] = typed
        if not self.staged:
            self.warnings = []

    def check(self, name: str, value: Any) -> KnobValue:
        """The value as it would be staged. Raises `KnobError` with the bound when it is refused."""
        return check_value(name, _parsed(BY_NAME.get(name), value), self.ceilings)

    def nudge(self, name: str, direction: int) -> None:
        """Stage the value one step up or down, kept within the bounds."""
        knob = BY_NAME[name]
        value = self.shown(name)
        if knob.kind is bool:
            return self.stage(name, direction > 0)
        if knob.choices:
            index = knob.choices.index(str(value)) + direction
            return self.stage(name, knob.choices[max(0, min(len(knob.choices) - 1, index))])
        if value is None:
            value = self._automatic(knob)
        assert isinstance(value, int | float)
        low, high, _ = bounds(knob, self.ceilings)
        moved = value + direction * knob.step
        if knob.step > 1 and value % knob.step:
            # Onto the grid of steps: 1 -> 64 -> 128, not 65.
            moved = (value // knob.step + (1 if direction > 0 else 0)) * knob.step
        moved = max(moved, low if low is not None else moved)
        moved = min(moved, high if high is not None else moved)
        return self.stage(name, round(moved, 6) if knob.kind is float else int(moved))

    def _automatic(self, knob: Knob) -> float:
        """Where a knob set to `auto` starts from."""
        value = in_force(self.current, knob.name)
        return value if isinstance(value, int | float) else knob.low or 0

    def drop(self) -> None:
        """Forget what is staged."""
        self.staged.clear()
        self.warnings, self.refused = [], ""

    def applying(self) -> dict[str, KnobValue]:
        """The staged values, to be sent; `applied` later remembers the way back from them."""
        self._before = {name: self.current.get(name) for name in self.staged}
        return dict(self.staged)

    def applied(self, values: Mapping[str, KnobValue]) -> None:
        """The engine took these values."""
        before = {name: self._before[name] for name in values if name in self._before}
        if before:
            self._undo.append(before)
        self.drop()

    def stage_undo(self) -> bool:
        """Stage the values before the last applied change; False if there is none."""
        while self._undo:
            before = {name: value for name, value in self._undo.pop().items() if self.current.get(name) != value}
            if before:
                self.staged = before
                return True
        return False

    def stage_launch(self) -> bool:
        """Stage the values the engine started with; False if nothing differs."""
        launch = {knob.name: self.launch_value(knob.name) for knob in self.live_knobs()}
        self.staged = {name: value for name, value in launch.items() if self.current.get(name) != value}
        return bool(self.staged)

    def launch_value(self, name: str) -> Any:
        if name == "rate":
            return self.history.header.workload.get("rate") if self.history.header is not None else None
        return self.config.get(name, self.current.get(name))

    def draining(self, name: str, state: LiveState) -> int | None:
        """Requests running beyond a lowered cap; None while nothing drains."""
        cap = state.knobs.get(name)
        running = state.num_running
        return running if name in DRAINING and isinstance(cap, int) and running > cap else None


def _parsed(knob: Knob | None, value: Any) -> Any:
    """`auto` and nothing typed mean None for a knob that may be left to its rule."""
    if isinstance(value, str) and knob is not None and knob.optional and value.strip().lower() in ("", "auto"):
        return None
    return value


def _bound(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g}" if abs(value) < 1e6 else text.count(value)
