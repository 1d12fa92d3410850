"""Links for tests: a console's other end that plays back what it is given and notes what it is asked."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache

import msgspec
from schedtop.engine.contract.commands import EndTrial, Incoming, Pause, Resume, SetKnobs, StepOnce
from schedtop.engine.contract.telemetry import KnobChange, Notice, Outgoing, Reply, Trial
from synthetic import SyntheticEngine


class LinkBroken(Exception):  # noqa: N818
    """The link broke; the text is why."""


class PlayedLink:
    """Gives `messages`, then waits; `push` adds more, `break_off` ends it with an exception.

    `taken` says that all of them have been dealt with: the reader came back for more and there was nothing.
    """

    def __init__(self, messages: Iterable[Outgoing]) -> None:
        self.messages = deque(messages)
        self.sent: list[Incoming] = []
        self.closed = False
        self.taken = False
        self._cause: str | None = None
        self._arrived = threading.Condition()

    def receive(self, timeout_s: float) -> Outgoing | None:
        with self._arrived:
            self.taken = not self.messages and self._cause is None
            if not self.messages and self._cause is None and not self.closed:
                self._arrived.wait(timeout_s)
            if self.messages:
                return self.messages.popleft()
            if self._cause is not None:
                raise LinkBroken(self._cause)
            return None

    def push(self, *messages: Outgoing) -> None:
        with self._arrived:
            self.taken = False
            self.messages.extend(messages)
            self._arrived.notify()

    def break_off(self, cause: str) -> None:
        with self._arrived:
            self._cause, self.taken = cause, False
            self._arrived.notify()

    def send(self, command: Incoming) -> None:
        self.sent.append(command)
        self.answer(command)

    def answer(self, command: Incoming) -> None:
        """What a plain link says to a command: nothing."""

    def close(self) -> None:
        with self._arrived:
            self.closed = True
            self._arrived.notify()


@cache
def _run(kind: type[SyntheticEngine], state: bytes, steps: int) -> bytes:
    """An engine's state after so many steps and what it told, packed: most tests begin with the same engine."""
    engine = object.__new__(kind)
    vars(engine).update(pickle.loads(state))
    reported = [engine.header(), engine.snapshot(), *engine.records(steps)]
    return pickle.dumps((vars(engine), reported))


class EngineLink(PlayedLink):
    """A synthetic engine behind a link: it obeys commands, and steps when it is told to."""

    def __init__(
        self, engine: SyntheticEngine, steps: int = 0, refuse: Callable[[SetKnobs], str] = lambda c: ""
    ) -> None:
        state, reported = pickle.loads(_run(type(engine), pickle.dumps(vars(engine)), steps))
        vars(engine).update(state)
        super().__init__(reported)
        self.engine = engine
        self.refuse = refuse
        self.warnings: list[str] = []
        self.trial: Trial | None = None

    def run_steps(self, num: int) -> None:
        self.push(*self.engine.records(num))

    def end_trial(self, keep: bool, why: str) -> None:
        """As the engine ends one: the values go back, and everybody is told."""
        assert self.trial is not None
        if not keep:
            self.push(self.engine.run_step(self.trial.before))
        level = "info" if keep else "warning"
        self.push(Notice(level, why, msgspec.structs.replace(self.trial, left_s=0.0)))
        self.trial = None

    def answer(self, command: Incoming) -> None:
        engine = self.engine
        if isinstance(command, EndTrial):
            self.end_trial(command.keep, "confirmed" if command.keep else "ended by hand")
        if isinstance(command, SetKnobs):
            refusal = self.refuse(command)
            if not refusal and not command.dry_run:
                if command.trial_s is not None:
                    before = {name: engine.knobs[name] for name in command.values}
                    self.trial = Trial(1, command.values, before, command.trial_s, command.slo_s)
                    self.push(Notice("info", "on trial", self.trial))
                self.push(engine.run_step(command.values))
            words = refusal or ("checked" if command.dry_run else "applied")
            self.push(Reply(command.id, not refusal, words, engine.version, list(self.warnings)))
            return
        if isinstance(command, Pause | Resume):
            engine.paused = isinstance(command, Pause)
            self.push(engine.run_step())
        if isinstance(command, StepOnce):
            self.push(engine.run_step())
        self.push(Reply(command.id, True, "", engine.version))


def change(name: str, old: object, new: object) -> KnobChange:
    return KnobChange(name, old, new, "key")
