"""A run again of the recording, worked out by whoever opened it, off the screen's thread. No drawing here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schedtop.console.drawing import text
from schedtop.console.past.ladder import Ladder
from schedtop.engine.contract.knobs import KnobValue
from schedtop.engine.contract.telemetry import Snapshot


class Part(Protocol):
    @property
    def field(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def variant(self) -> str: ...


class Divergence(Protocol):
    """A step that is not the same in two runs. `clock_s` is that of the runs."""

    @property
    def step(self) -> int: ...
    @property
    def clock_s(self) -> float: ...
    @property
    def parts(self) -> Sequence[Part]: ...


class Row(Protocol):
    """One figure as text, in all runs."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def recorded(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def change(self) -> str: ...
    @property
    def verdict(self) -> str: ...


class Outcome(Protocol):
    """What is recorded from `start_s` (after `step`) on, the same run again (`base`), and under `changes`.

    `exact`: the base is the recording, step for step; `drift` is where it is not. `measured`: a real device, whose
    step times were fitted. `parting_s` is the divergence on the recording's clock.
    """

    @property
    def device(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def changes(self) -> Mapping[str, tuple[Any, Any]]: ...
    @property
    def measured(self) -> bool: ...
    @property
    def exact(self) -> bool: ...
    @property
    def drift(self) -> Divergence | None: ...
    @property
    def divergence(self) -> Divergence | None: ...
    @property
    def parting_s(self) -> float | None: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def unfinished(self) -> int: ...
    @property
    def unserved(self) -> tuple[int, int]: ...
    @property
    def notes(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An outcome, and the course of all three runs from where they begin, over the recording's clock."""

    outcome: Outcome
    recorded: Ladder
    base: Ladder
    variant: Ladder


Told = tuple[str, float] | Answer
"""What is being done and a share of it, or the answer, which is the last."""


class Running(Protocol):
    """A run under way. Iterating raises an exception, whose text is the reason, where there is no outcome."""

    def __iter__(self) -> Iterator[Told]: ...

    def cancel(self) -> None:
        """Give up; may be called from another thread, and more than once."""
        ...


Begin = Callable[[Mapping[str, KnobValue], int | None, Snapshot | None], Running]
"""Begins a run with changed knobs: from the record with that index on (and the state after it), or from the start."""


class Reruns:
    """One run at a time, and the answer to the last one. `on_change` is called on the run's thread.

    `doing` is the present activity, None while nothing runs. `failed` says why the last run failed.
    """

    def __init__(self, begin: Begin | None, on_change: Callable[[], None]) -> None:
        self._begin, self._on_change = begin, on_change
        self._lock = threading.Lock()
        self._running: Running | None = None
        self.doing: tuple[str, float] | None = None
        self.answer: Answer | None = None
        self.failed = ""

    @property
    def outcome(self) -> Outcome | None:
        return None if self.answer is None else self.answer.outcome

    @property
    def possible(self) -> bool:
        return self._begin is not None

    def begin(self, changes: Mapping[str, KnobValue], index: int | None, snapshot: Snapshot | None) -> None:
        """Start a run; one that is under way is cancelled."""
        assert self._begin is not None
        self.cancel()
        running = self._begin(changes, index, snapshot)
        with self._lock:
            self._running, self.failed, self.doing = running, "", ("starting", 0.0)
        threading.Thread(target=self._follow, args=(running,), name="console-rerun", daemon=True).start()

    def cancel(self) -> bool:
        """Give up what is under way; whether anything was. The last outcome stays."""
        with self._lock:
            running, self._running, self.doing = self._running, None, None
        if running is not None:
            running.cancel()
        return running is not None

    def _follow(self, running: Running) -> None:
        try:
            for message in running:
                self._take(running, message)
        except Exception as error:  # whatever it is explains why there is no outcome
            self._take(running, error)

    def _take(self, running: Running, message: Told | Exception) -> None:
        with self._lock:
            if running is not self._running:
                return  # given up
            if isinstance(message, tuple):
                self.doing = message
            else:
                if isinstance(message, Exception):
                    self.failed = text.clean(message, 400) or type(message).__name__
                else:
                    self.answer = message
                self._running = self.doing = None  # last: whoever sees this sees the outcome
        self._on_change()
