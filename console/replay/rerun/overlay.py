"""What the re-run screen shows: which runs, which stretch of time, which moment. No drawing here."""

from __future__ import annotations

import numpy as np
from schedtop.console.drawing import text
from schedtop.console.replay.rerun.curves import Curves, Span
from schedtop.console.replay.rerun.runs import Outcome

CLOSEST = 1 / 64
"""The shortest stretch is this share of the whole."""


class Overlay:
    """An outcome under the operator's eyes. Times are seconds since its start.

    `over_recorded`: what is recorded lies under the re-run, not the recording's own re-run. `page_note` is for the
    rule of a page that shares the screen with no other.
    """

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.version = 0
        self.moment_s = 0.0
        self.whole = Span(0.0, 1.0)
        self.span = self.whole
        self.over_recorded = True
        self.page_note: list[tuple[str, str]] = []
        self._curves: dict[str, Curves] = {}

    def show(self, outcome: Outcome) -> None:
        """Take up an outcome; the moment is where its runs part."""
        if outcome is self.outcome:
            return
        self.outcome = outcome
        self.version += 1
        sizes_s = np.array(outcome.sizes_s)
        courses = {"recorded": outcome.recorded, "base": outcome.base, "variant": outcome.variant}
        self._curves = {name: Curves(course, sizes_s) for name, course in courses.items()}
        self.over_recorded = outcome.exact
        longest_s = max(outcome.variant.span_s, outcome.base.span_s, outcome.recorded.span_s)
        self.whole = self.span = Span(0.0, longest_s or 1.0)
        self.moment_s = 0.0
        self.choose(self.parting_s or 0.0)

    @property
    def parting_s(self) -> float | None:
        outcome = self.outcome
        if outcome is None or outcome.parting_s is None:
            return None
        return outcome.parting_s - outcome.start_s

    # Names

    @property
    def under_name(self) -> str:
        """The run below."""
        assert self.outcome is not None
        if self.over_recorded:
            return "recorded"
        return "simulated as recorded" if self.outcome.measured else "re-run as recorded"

    @property
    def variant_name(self) -> str:
        """The run above: what was changed."""
        assert self.outcome is not None
        return f"{'simulated with' if self.outcome.measured else 're-run with'} {self.change}"

    @property
    def change(self) -> str:
        """The changed knobs, old and new."""
        assert self.outcome is not None
        return ", ".join(
            f"{name} {text.value(old)}→{text.value(new)}" for name, (old, new) in self.outcome.changes.items()
        )

    @property
    def pair(self) -> tuple[Curves, Curves]:
        """The run below and the one above."""
        return self._curves["recorded" if self.over_recorded else "base"], self._curves["variant"]

    # Moments

    def column(self, width: int) -> int:
        """Where the moment is in a chart of so many columns."""
        return self.span.column(self.moment_s, width) or 0

    def choose(self, at_s: float) -> None:
        """Choose a moment; the stretch follows it."""
        self.moment_s = min(max(at_s, self.whole.begin_s), self.whole.end_s)
        if not self.span.begin_s <= self.moment_s <= self.span.end_s:
            self._around(self.span.length_s)

    def walk(self, columns: int, width: int) -> None:
        """Move so many columns of a chart of `width`."""
        step_s = self.span.length_s / width
        column = (self.moment_s - self.span.begin_s) / step_s
        self.choose(self.span.begin_s + (int(column) + columns + 0.5) * step_s)

    def zoom(self, direction: int) -> bool:
        """Show half (+1) or twice (-1) the time around the moment; False at the end of the scale."""
        length_s = self.span.length_s * 0.5**direction
        if (direction < 0 and self.span == self.whole) or length_s < self.whole.length_s * CLOSEST * 0.99:
            return False
        self._around(length_s)
        return True

    def zoom_out(self) -> None:
        """Show all."""
        self.span = self.whole

    def _around(self, length_s: float) -> None:
        length_s = min(length_s, self.whole.length_s)
        begin_s = min(max(self.moment_s - length_s / 2, 0.0), self.whole.length_s - length_s)
        self.span = Span(begin_s, begin_s + length_s)
