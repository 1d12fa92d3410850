"""A run again without a process, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from schedtop.console.past.ladder import Ladder
from schedtop.console.replay.rerun.runs import Answer
from schedtop.engine.whatif.rerun import RerunQuestion, rerun

ANSWERS: dict[bytes, Answer] = {}
"""A question has one answer (`rerun` is pure, its answer frozen), and many tests put the same one."""


class Here:
    """A run worked out on the console's own thread for it, as its process would."""

    def __init__(self, question: RerunQuestion) -> None:
        self.question = question

    def __iter__(self) -> Iterator[Any]:
        yield "running both", 0.25
        key = msgspec.msgpack.encode(self.question)
        if key not in ANSWERS:
            runs = Ladder(), Ladder(), Ladder()
            ANSWERS[key] = Answer(rerun(self.question, followers=runs), *runs)
        yield ANSWERS[key]

    def cancel(self) -> None:
        """It comes to its end unheard."""
