"""Changes limits from a script, on one engine or several: all or none, permanently or on trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from schedtop.console.cli.client_name import who
from schedtop.engine.channel.client import ChannelClient, ChannelClosedError
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.commands import Command, EndTrial, SetKnobs
from schedtop.engine.contract.knobs import KnobError, check_value, parse_assignments
from schedtop.engine.contract.telemetry import Bye, Header, Notice, Outgoing, Reply, Snapshot, StepRecord, Trial

ANSWER_WITHIN_S = 30.0
"""An engine that is still loading its model is slow to answer."""
CONFIRM_WITHIN_S = 30.0
"""A trial that is to be kept reverts by itself only this long after its time: the confirmation may take a while."""
CATCH_UP_WITHIN_S = 10.0
LOOK_S = 0.1
BY = "schedtop knobs"
SURVIVED = "confirmed"
"""In what an engine says at the end of a trial that broke nothing: confirmed, or not confirmed in time."""

Kind = TypeVar("Kind", bound=Outgoing)


class RunningEngine:
    """One engine whose limits are read and set. Raises `ChannelError` with the engine's reason if it hangs up.

    `knobs` are those of its newest record: a server's engine may have others for its next step.
    """

    def __init__(self, link: ChannelClient) -> None:
        self.link = link
        self.knobs: dict[str, Any] = {}
        self.knobs_version = 0
        self.header = self._await(Header)
        self._await(Snapshot)
        self.trial: Trial | None = None
        self.trial_end = ""
        self._command = 0

    @property
    def address(self) -> str:
        return self.link.address

    def ask(self, make: Callable[[int], Command]) -> Reply:
        """The answer to the command that `make` makes of an id."""
        self._command += 1
        number = self._command
        self.link.send(make(number))
        return self._await(Reply, lambda reply: reply.command == number)

    def set(self, values: Mapping[str, Any], version: int | None, by: str = BY, **how: Any) -> Reply:
        return self.ask(lambda number: SetKnobs(number, dict(values), version, f"{by} {who()}", **how))

    def look(self, timeout_s: float) -> Outgoing | None:
        """The next message; changes of knobs, and a trial's beginning and end, are noted."""
        try:
            message = self.link.receive(timeout_s)
        except ChannelClosedError as error:
            raise ChannelError(f"{self.address}: {error}") from None
        if isinstance(message, Bye):
            raise ChannelError(f"{self.address}: {message.reason}")
        if isinstance(message, Snapshot):  # also where records were left out
            self.knobs, self.knobs_version = dict(message.knobs), message.knobs_version
        if isinstance(message, StepRecord):
            self.knobs.update({change.name: change.new for change in message.knobs})
            self.knobs_version = max(self.knobs_version, message.knobs_version)
        if isinstance(message, Notice) and message.trial is not None:
            if message.trial.left_s > 0:
                self.trial = self.trial or message.trial
            elif self.trial is not None and message.trial.number == self.trial.number:
                self.trial_end = message.text
        return message

    def catch_up(self, version: int) -> None:
        """Wait a few steps for its records to show this version of the knobs."""
        until_s = time.monotonic() + CATCH_UP_WITHIN_S
        while self.knobs_version < version and (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)

    def _await(self, kind: type[Kind], wanted: Callable[[Any], bool] = lambda message: True) -> Kind:
        until_s = time.monotonic() + ANSWER_WITHIN_S
        while (left_s := until_s - time.monotonic()) > 0:
            message = self.look(left_s)
            if isinstance(message, kind) and wanted(message):
                return message
        raise ChannelError(f"no answer from {self.address} within {ANSWER_WITHIN_S:g} s")


def parse_changes(assignments: Sequence[str]) -> dict[str, Any]:
    """Checked values by knob of `NAME=VALUE` words. Raises `KnobError`."""
    texts = parse_assignments(assignments)
    return {name: check_value(name, None if text in ("", "none") else text) for name, text in texts.items()}


def open_engines(
    links: ExitStack, addresses: Sequence[str], token_file: str | None, read_only: bool
) -> list[RunningEngine]:
    """Connections to all of them, open as long as `links` is. Raises `ChannelError`."""

    def connect(address: str) -> ChannelClient:
        return ChannelClient.connect(address, token_file=token_file, read_only=read_only)

    return [RunningEngine(links.enter_context(connect(address))) for address in addresses]


def set_everywhere(addresses: Sequence[str], words: str, token_file: str | None = None) -> tuple[str, str]:
    """Set limits typed as `NAME=VALUE …` on all engines or none; returns what was done, or why it was refused."""
    try:
        changes = parse_changes(words.split())
        with ExitStack() as links:
            engines = open_engines(links, addresses, token_file, read_only=False)
            warnings, refused = set_all(engines, changes, by="fleet console")
    except (KnobError, ChannelError) as error:
        return "", str(error)
    done = "; ".join([f"set on {len(addresses)} engine{'' if len(addresses) == 1 else 's'}: {words}", *warnings])
    return ("", refused) if refused else (done, "")


def set_all(engines: Sequence[RunningEngine], values: Mapping[str, Any], **how: Any) -> tuple[list[str], str]:
    """Set the same limits everywhere: the engines' warnings, and why one refused (then nothing is changed)."""
    for engine in engines:  # checked first, so that a change needs undoing only if something came between
        known = engine.knobs_version
        reply = engine.set(values, known, dry_run=True)
        if not reply.ok and reply.knobs_version > known:
            engine.catch_up(reply.knobs_version)
            reply = engine.set(values, engine.knobs_version, dry_run=True)
        if not reply.ok:
            return [], _of(engine, engines, reply.text)
    warnings: list[str] = []
    before = [{name: engine.knobs[name] for name in values} for engine in engines]
    for place, engine in enumerate(engines):
        reply = engine.set(values, engine.knobs_version, **how)
        if not reply.ok:
            for changed, old in zip(engines[:place], before, strict=False):
                changed.set(old, None, how.get("by", BY))
            return [], _of(engine, engines, reply.text)
        warnings += [_of(engine, engines, warning) for warning in reply.warnings]
    return warnings, ""


def _of(engine: RunningEngine, engines: Sequence[RunningEngine], words: str) -> str:
    return words if len(engines) == 1 else f"{engine.address}: {words}"


def follow_trials(engines: Sequence[RunningEngine], seconds: float, keep: bool) -> tuple[list[str], bool]:
    """Wait for trials that have started: how each ended, and whether none broke an SLO.

    Where one ends early, the others are taken back. With `keep` all are confirmed once their time has passed.
    """
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and not any(engine.trial_end for engine in engines):
        for engine in engines:
            engine.look(LOOK_S / len(engines))
    early = any(engine.trial_end for engine in engines)
    for engine in engines:
        if not engine.trial_end and engine.trial is not None and (early or keep):
            number, keeps = engine.trial.number, keep and not early
            engine.ask(lambda id, number=number, keeps=keeps: EndTrial(id, number, keeps, f"{BY} {who()}"))  # type: ignore[misc]
    until_s = time.monotonic() + ANSWER_WITHIN_S
    for engine in engines:
        while not engine.trial_end and engine.trial is not None:
            if time.monotonic() > until_s:
                raise ChannelError(f"{engine.address}: the engine did not report the end of the trial")
            engine.look(LOOK_S)
    ends = [_of(engine, engines, engine.trial_end) for engine in engines if engine.trial_end]
    return ends, all(SURVIVED in end for end in ends)
