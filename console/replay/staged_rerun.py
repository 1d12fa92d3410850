"""The knob staging of a recording: values staged for a run again, start-up settings among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from schedtop.console.knobs.staged import Staging
from schedtop.console.past.state import LiveState
from schedtop.engine.contract.knobs import BY_NAME, KNOBS, Knob


class ReplayStaging(Staging):
    """Nothing is applied: staged values are what a run again is to have."""

    NEXT: ClassVar[str] = "r runs it from this step, b from the start"

    @property
    def current(self) -> Mapping[str, Any]:
        return {**self.config, **self.history.live.knobs}

    def live_knobs(self) -> list[Knob]:
        return [knob for knob in KNOBS if knob.name in self.current and not knob.name.endswith("_ceiling")]

    def start_up_knobs(self) -> list[tuple[Knob, Any]]:
        return [
            (knob, self.config[knob.name])
            for knob in KNOBS
            if knob.name.endswith("_ceiling") and knob.name in self.config
        ]

    def value_in(self, state: LiveState, name: str) -> Any:
        return state.knobs.get(name, self.config.get(name))

    def start_only(self) -> list[str]:
        """Staged knobs that an engine takes at its start only."""
        return [name for name in self.staged if not BY_NAME[name].live]
