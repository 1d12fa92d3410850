"""The effect of staged knobs, computed by the owner of the console, off the screen's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from schedtop.console.drawing import text
from schedtop.console.past.past import Past
from schedtop.engine.contract.knobs import KnobValue
from schedtop.engine.contract.telemetry import Arrival, Header, Snapshot

RECENT_ARRIVALS = 200
AGAIN_AFTER_S = 5.0
"""Retry interval without a forecast: what was missing may be known by now."""


class Estimate(Protocol):
    """A figure and how sure it is; None is unknown."""

    @property
    def value(self) -> float | None: ...

    @property
    def error(self) -> float | None: ...


class Forecast(Protocol):
    """Figures by name over `horizon_s` seconds: as things are, as staged, and the change between them."""

    @property
    def horizon_s(self) -> float: ...

    @property
    def base(self) -> Mapping[str, Estimate]: ...

    @property
    def staged(self) -> Mapping[str, Estimate]: ...

    @property
    def change(self) -> Mapping[str, Estimate]: ...

    @property
    def note(self) -> str:
        """Where step times are from, and how far off they are; empty for a simulated device."""
        ...


Present = tuple[Header, Snapshot, Sequence[Arrival]]
"""What a forecast begins from: the engine's header and state, and the newest arrivals."""

MakeForecast = Callable[[Header, Snapshot, Mapping[str, KnobValue], Sequence[Arrival]], Forecast]
"""Raises an exception, whose text is the reason, where nothing can be forecast."""


class Forecaster:
    """One forecast at a time; of what is wanted meanwhile only the newest is done. `on_done` runs on its thread."""

    def __init__(self, history: Past, make_forecast: MakeForecast | None, on_done: Callable[[], None]) -> None:
        self.history, self._make_forecast, self.on_done = history, make_forecast, on_done
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._wanted: dict[str, KnobValue] | None = None
        self._busy = False
        self._of: dict[str, KnobValue] = {}
        self._found: Forecast | str = ""
        self._found_s = 0.0

    @property
    def busy(self) -> bool:
        return self._busy

    def found(self, staged: Mapping[str, KnobValue]) -> Forecast | str | None:
        """The forecast of exactly these values, or why there is none (then it is asked for again now and then); None
        while it is not known."""
        with self._lock:
            found = self._found if staged and self._of == dict(staged) and self._found else None
        if isinstance(found, str) and time.monotonic() - self._found_s > AGAIN_AFTER_S:
            self.want(staged)
        return found

    def want(self, staged: Mapping[str, KnobValue]) -> None:
        """Ask for a forecast."""
        if self._make_forecast is None or not staged or self.history.header is None:
            return
        with self._lock:
            self._wanted = dict(staged)
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="console-forecast", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                values, self._wanted = self._wanted, None
                if values is None:
                    self._busy = False
                    return
            found = self.ask(values)
            with self._lock:
                self._of, self._found, self._found_s = values, found, time.monotonic()
            self.on_done()

    @property
    def can_ask(self) -> bool:
        return self._make_forecast is not None and self.history.header is not None

    def present(self) -> Present:
        """The present state, to forecast several values from."""
        with self.history.lock:
            header, snapshot, recent = self.history.header, self.history.live.snapshot(), self._recent()
        assert header is not None
        return header, snapshot, recent

    def ask(self, values: Mapping[str, KnobValue], present: Present | None = None) -> Forecast | str:
        """The forecast of these values, or why there is none; waits for those under way."""
        assert self._make_forecast is not None
        with self._asking:
            header, snapshot, recent = present or self.present()
            try:
                return self._make_forecast(header, snapshot, values, recent)
            except Exception as error:  # any error explains why there is no forecast
                return text.clean(error) or type(error).__name__

    def _recent(self) -> list[Arrival]:
        """The newest arrivals that are still known, oldest first."""
        ended = [arrival for arrival, _ in list(self.history.finished.values())[-RECENT_ARRIVALS:]]
        live = [tracked.arrival for tracked in self.history.live.requests.values()]
        return sorted([*ended, *live], key=lambda arrival: arrival.number)[-RECENT_ARRIVALS:]


def _figure(number: float) -> str:
    return f"{number:.1f}" if abs(number) < 99.95 else text.count(number)


FIGURES: tuple[tuple[str, str, Callable[[float], str], bool], ...] = (
    ("ttft_p50_s", "TTFT p50", text.ms_unit, True),
    ("ttft_p95_s", "TTFT p95", text.ms_unit, True),
    ("itl_p50_s", "ITL p50", text.ms_unit, True),
    ("itl_p95_s", "ITL p95", text.ms_unit, True),
    ("output_tokens_per_s", "out tok/s", _figure, False),
    ("preemptions", "preemptions", _figure, True),
)
"""Name, words, how it is written and whether less is better."""


def describe(found: Forecast) -> list[tuple[str, str]]:
    """Lines about the figures that change, each with its role; one line where none does."""
    lines = []
    for name, words, figure, less_is_better in FIGURES:
        base, staged, change = (side.get(name) for side in (found.base, found.staged, found.change))
        if base is None or staged is None or change is None:
            continue
        if base.value is None or staged.value is None or change.value is None:
            continue
        if abs(change.value) <= max(change.error or 0.0, 0.02 * abs(base.value)):
            continue
        better = (change.value < 0) == less_is_better
        size = f"{figure(base.value)}→{figure(staged.value)}"
        sure = f" ±{figure(change.error)}" if change.error else ""
        lines.append((f"{words} {size}{sure} {'better' if better else 'worse'}", "ok" if better else "breach"))
    lines = lines or [("no figure changes by more than chance", "muted")]
    return [*lines, *([(found.note, "muted")] if found.note else [])]
