"""A run again without a process, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schedtop.console.past.ladder import Ladder
from schedtop.console.replay.rerun.runs import Answer
from schedtop.engine.whatif.rerun import Question, rerun


class Here:
    """A run worked out on the console's own thread for it, as its process would."""

    def __init__(self, question: Question) -> None:
        self.question = question

    def __iter__(self) -> Iterator[Any]:
        yield "running both", 0.25
        base, variant = Ladder(), Ladder()
        yield Answer(rerun(self.question, followers=(base, variant)), base, variant)

    def cancel(self) -> None:
        """It comes to its end unheard."""
