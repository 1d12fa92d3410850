"""The engine's loop: commands in, one step, its record out, all at the set pace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from schedtop.engine.channel.peer import Peer
from schedtop.engine.channel.protocol import Sink, encode
from schedtop.engine.channel.server import ChannelServer
from schedtop.engine.contract.commands import (
    Abort,
    Drain,
    EndTrial,
    Incoming,
    Pause,
    Resume,
    SetKnobs,
    StepOnce,
    Submit,
)
from schedtop.engine.contract.spare_memory import SpareMemory
from schedtop.engine.contract.telemetry import WORKLOAD_ENDED, Notice, Reply, Snapshot, StepRecord, TextDelta
from schedtop.engine.serving.clients import Clients
from schedtop.engine.serving.engine_protocol import KnobOutcome, Steppable
from schedtop.engine.serving.host import HostWatch
from schedtop.engine.serving.trial import Trials

POLL_GAP_S = 0.001
"""The channel is polled no more often than this while steps run back to back."""
IDLE_WAIT_S = 1.0
DRAIN_WITHIN_S = 3.0
"""Wall time that in-flight requests get to finish once the engine stops."""
REBASE_S = 1.0
"""A simulated clock this far behind the wall clock does not catch up: paced time continues from where it is."""


@runtime_checkable
class TextSink(Protocol):
    """A sink that also takes output text."""

    def text(self, delta: TextDelta) -> None: ...


class Pace:
    """Keeps a simulated clock level with the wall clock."""

    def __init__(self, clock_s: float) -> None:
        self.rebase(clock_s)

    def rebase(self, clock_s: float) -> None:
        """Let paced time continue from `clock_s` now."""
        self._zero_s = time.monotonic() - clock_s

    def now_s(self) -> float:
        """Where a clock in pace would be."""
        return time.monotonic() - self._zero_s

    def ahead_s(self, clock_s: float) -> float:
        """Seconds until the wall clock reaches `clock_s`."""
        ahead_s = clock_s - self.now_s()
        if ahead_s < -REBASE_S:
            self.rebase(clock_s)
        return max(0.0, ahead_s)


class ServiceLoop:
    """Serves one engine until it stops. `sinks` get every record after the consoles, by name.

    A sink that raises `OSError` is reported and removed from `sinks`. `real_time` paces a simulated clock;
    `duration_s` ends the run at that engine time, the end of the workload does unless `stay`. `notices` are told
    once it serves. The first step waits up to `join_within_s` of wall time for a console. `for_clients`: requests
    come from clients, too, so that the end of the workload is no end of work. `on_drain` is called once no new request
    is taken. `refused` commands, by type, get that answer. What `host` finds goes into the records.
    """

    def __init__(
        self,
        engine: Steppable,
        server: ChannelServer,
        sinks: dict[str, Sink],
        *,
        real_time: bool = False,
        duration_s: float | None = None,
        stay: bool = True,
        notices: Sequence[str] = (),
        join_within_s: float = 0.0,
        for_clients: bool = False,
        on_drain: Callable[[], object] = lambda: None,
        report: Callable[[str], None] = lambda line: None,
        refused: Mapping[type, str] = {},
        host: HostWatch | None = None,
    ) -> None:
        self._engine = engine
        self._server = server
        self._sinks = sinks
        self._duration_s = duration_s
        self._stay = stay
        self._notices = notices
        self._join_within_s = join_within_s
        self._for_clients = for_clients
        self._on_drain = on_drain
        self._report = report
        self._refused = refused
        self._host = host
        self._simulated = engine.header.simulated_clock
        self._pace = Pace(engine.clock_s) if real_time and self._simulated else None
        # A model's own memory is used again in every step: returning it would cost more than it frees.
        self._spare = SpareMemory(time.monotonic()) if self._simulated else None
        self._next_poll_s = 0.0
        self._asked: tuple[str, float | None] | None = None
        self._ending: str | None = None
        self._end_by_s: float | None = None
        self._reported_end_of_work = False
        self._knobs_version = engine.snapshot().knobs_version
        self._trials = Trials(engine, self._tell)
        self._clients = Clients(engine, server, self._arrival_s)
        self.last_step = 0

    def run(self) -> str:
        """Step until the end; returns the reason. The engine's exceptions propagate."""
        self._server.ready(self._engine.header, self._snapshot)
        for text in self._notices:
            self.notice("info", text)
        self._await_console()
        while (reason := self._end_reason()) is None:
            self.tick()
            self._trials.check()
            record = self._engine.tell() if self._too_early() else self._engine.step()
            if record is not None:
                self._hand_out(record)
                self._hand_out_texts()
                if not self._pace:
                    self._clients.hand_out(record)
                self._keep_pace()
                if self._pace:  # a client gets its tokens when the device would have them
                    self._clients.hand_out(record)
            if record is None or not record.executed:
                self._idle()
        return reason

    def tick(self) -> None:
        """Called before each step, for a subclass's other duties."""

    def end(self, reason: str, within_s: float | None = DRAIN_WITHIN_S) -> None:
        """Take no new requests and end when none is in flight, at the latest `within_s` (None: no limit) from now.

        A second request ends it at once. Only sets a flag for the loop, so a signal handler may call it.
        """
        self._asked = (reason, 0.0 if self._asked else within_s)
        self._clients.draining = True

    def notice(self, level: str, text: str) -> None:
        """One line for the consoles and the log."""
        self._tell(Notice(level=level, text=text))

    def _tell(self, notice: Notice) -> None:
        self._report(notice.text)
        self._server.notice(notice)

    def _snapshot(self) -> Snapshot:
        snapshot = self._engine.snapshot()
        trial = self._trials.pending
        return snapshot if trial is None else msgspec.structs.replace(snapshot, trial=trial)

    def _await_console(self) -> None:
        """A console that sees every step knows every latency; one that never comes must not block the engine."""
        until_s = time.monotonic() + self._join_within_s
        while not self._server.num_joined and self._asked is None and time.monotonic() < until_s:
            self._take_commands(until_s - time.monotonic())
        if self._pace:
            self._pace.rebase(self._engine.clock_s)

    def _end_reason(self) -> str | None:
        if self._duration_s is not None and self._next_s() >= self._duration_s:
            return f"the {self._duration_s:g} s of this run are over"
        if self._asked is None:
            return None
        reason, within_s = self._asked
        if self._ending is None:
            self._ending = reason
            self._on_drain()
            self._engine.drain()
        if within_s is not None and self._end_by_s is None:
            self._end_by_s, self._pace = time.monotonic() + within_s, None
        over = self._engine.num_unfinished == 0 or self._engine.paused or within_s == 0.0
        late = self._end_by_s is not None and time.monotonic() >= self._end_by_s
        return self._ending if over or late else None

    def _next_s(self) -> float:
        """Engine time of the next event: a simulated clock jumps over idle time, a paced one waits it out."""
        engine = self._engine
        if not self._simulated or engine.num_unfinished or engine.paused:
            return engine.clock_s
        if self._pace:
            return max(engine.clock_s, self._pace.now_s())
        wake_s = engine.next_wake_s()
        return engine.clock_s if wake_s is None or math.isinf(wake_s) else max(engine.clock_s, wake_s)

    def _arrival_s(self) -> float:
        """Now, on the engine's clock: never later than the step that may admit new arrivals."""
        engine = self._engine
        if not self._pace:
            return engine.clock_s
        now_s = self._pace.now_s()
        if not engine.num_unfinished and not engine.paused:
            engine.skip_to(now_s)
        return min(now_s, engine.clock_s)

    def _too_early(self) -> bool:
        """A step would make an idle simulated clock jump to an arrival that paced time has not reached."""
        if not self._pace or self._engine.num_unfinished or self._engine.paused:
            return False
        wake_s = self._engine.next_wake_s()
        return wake_s is not None and wake_s > self._pace.now_s()

    def _hand_out(self, record: StepRecord) -> None:
        if self._host is not None and (found := self._host.take()):
            record = msgspec.structs.replace(record, host=found)
        self.last_step, self._knobs_version = record.step, record.knobs_version
        self._trials.watch(record)
        encoded = encode(record)
        self._server.write(record, encoded)
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(record, encoded)
            except OSError as error:
                del self._sinks[name]
                self.notice("error", f"{name} stopped: {error.strerror or error}; serving goes on")

    def _hand_out_texts(self) -> None:
        """Output text goes to consoles, and to a recording that asked for it."""
        texts = getattr(self._engine, "texts", None)
        if not texts:
            return
        for number, text in texts.items():
            delta = TextDelta(number=number, text=text)
            self._server.text(delta)
            for sink in self._sinks.values():
                if isinstance(sink, TextSink):
                    sink.text(delta)
        texts.clear()

    def _keep_pace(self) -> None:
        """Serve the channel after a step, for as long as the pace allows."""
        ahead_s = self._pace.ahead_s(self._engine.clock_s) if self._pace else 0.0
        now_s = time.monotonic()
        if ahead_s > 0 or now_s >= self._next_poll_s:
            self._serve_until(now_s + ahead_s)

    def _idle(self) -> None:
        """Wait until the next arrival or a command."""
        paused = self._engine.paused
        wait_s = self._idle_wait_s()
        if self._end_by_s is not None:
            wait_s = min(wait_s, self._end_by_s - time.monotonic())
        self._serve_until(time.monotonic() + min(wait_s, self._trials.left_s()), or_command=True)
        if paused and self._pace:
            self._pace.rebase(self._engine.clock_s)

    def _idle_wait_s(self) -> float:
        wake_s = self._engine.next_wake_s()
        if self._engine.paused:
            return IDLE_WAIT_S
        if wake_s is None:
            self._tell_end_of_work()
            return IDLE_WAIT_S
        if self._pace:
            return min(IDLE_WAIT_S, self._pace.ahead_s(wake_s))
        if self._simulated:
            return IDLE_WAIT_S if math.isinf(wake_s) else 0.0
        return max(0.0, min(IDLE_WAIT_S, wake_s - self._engine.clock_s))

    def _tell_end_of_work(self) -> None:
        """Reports once that nothing is in flight and nothing will arrive: a rate of 0 can be raised again."""
        if (
            self._for_clients
            or self._engine.num_unfinished
            or self._ending is not None
            or self._reported_end_of_work
        ):
            return
        if self._engine.snapshot().knobs.get("rate") == 0:
            return
        self._reported_end_of_work = True
        self.notice("info", f"{WORKLOAD_ENDED}: no more requests will come")
        if not self._stay or (self._duration_s is not None and not self._pace):
            self.end(WORKLOAD_ENDED)

    def _serve_until(self, deadline_s: float, or_command: bool = False) -> None:
        while True:
            any_came = self._take_commands(deadline_s - time.monotonic())
            now_s = time.monotonic()
            if now_s >= deadline_s or (or_command and any_came) or self._asked is not None:
                break
        if self._spare is not None:
            self._spare.look(now_s)
        self._next_poll_s = now_s + POLL_GAP_S

    def _take_commands(self, timeout_s: float) -> bool:
        commands = self._server.poll(timeout_s)
        for peer, command in commands:
            self._server.reply(peer, self._obey(peer, command))
        return bool(commands)

    def _obey(self, peer: Peer, command: Incoming) -> Reply:
        try:
            if (why_not := self._refused.get(type(command))) is not None:
                raise ValueError(why_not)
            if isinstance(command, Submit):
                return self._clients.submit(peer, command, self._knobs_version)
            outcome = self._apply(command)
        except (ValueError, TypeError) as error:
            return Reply(command.id, ok=False, text=str(error), knobs_version=self._knobs_version)
        if isinstance(outcome, str):
            return Reply(command.id, ok=True, text=outcome, knobs_version=self._knobs_version)
        self._knobs_version = outcome.knobs_version
        return Reply(command.id, outcome.ok, outcome.text, outcome.knobs_version, list(outcome.warnings))

    def _apply(self, command: Incoming) -> KnobOutcome | str:
        engine = self._engine
        match command:
            case SetKnobs():
                return self._trials.set_knobs(command)
            case EndTrial():
                return self._trials.end(command)
            case Pause():
                engine.pause(command.by)
                return "paused"
            case Resume():
                engine.resume(command.by)
                return "running"
            case StepOnce():
                if not engine.paused:
                    raise ValueError("the engine is not paused: pause it before stepping")
                engine.step_once()
                return "one step"
            case Abort():
                if not engine.abort(command.number):
                    raise ValueError(f"request {command.number} is not in flight")
                return f"request {command.number} aborted"
            case Drain():
                self.end("drained" if not command.now else "ended on command", 0.0 if command.now else None)
                left = engine.num_unfinished
                return "ending" if command.now else f"draining {left} request{'' if left == 1 else 's'}"
        raise ValueError("unexpected command")
