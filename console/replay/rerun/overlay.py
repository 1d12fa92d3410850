"""What the re-run screen shows: which runs, which stretch of time, which moment. No drawing here."""

from __future__ import annotations

from schedtop.console.drawing import text
from schedtop.console.past.ladder import Ladder
from schedtop.console.replay.rerun.runs import Answer, Outcome


class Overlay:
    """A re-run under the operator's eyes. Times are those of the recording's clock.

    `over_recorded`: what is recorded lies over the re-run, not the recording's own re-run. `page_note` is for the
    rule of a page that shares the screen with no other.
    """

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.over_recorded = True
        self.page_note: list[tuple[str, str]] = []

    def show(self, answer: Answer) -> bool:
        """Take up an answer; whether it is a new one."""
        if answer is self.answer:
            return False
        self.answer, self.over_recorded = answer, answer.outcome.exact
        return True

    @property
    def outcome(self) -> Outcome | None:
        return None if self.answer is None else self.answer.outcome

    @property
    def parting_s(self) -> float | None:
        return None if self.outcome is None else self.outcome.parting_s

    @property
    def extent(self) -> tuple[float, float]:
        """First and last moment of all runs."""
        answer = self.answer
        assert answer is not None
        begin_s, runs = answer.outcome.start_s, (answer.recorded, answer.base, answer.variant)
        return begin_s, max(begin_s, *(run.ends_s for run in runs))

    # Names

    @property
    def base_name(self) -> str:
        """The run above."""
        assert self.outcome is not None
        if self.over_recorded:
            return "recorded"
        return "simulated as recorded" if self.outcome.measured else "re-run as recorded"

    @property
    def variant_name(self) -> str:
        """The run below: what was changed."""
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
    def base(self) -> Ladder:
        """What the changed run is compared with."""
        assert self.answer is not None
        return self.answer.recorded if self.over_recorded else self.answer.base
