"""A vLLM engine as the channel's loop sees it, on a thread of its own. It never looks at the scheduler's objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from schedtop.engine.channel.protocol import ChannelError, encode
from schedtop.engine.channel.server import ChannelServer
from schedtop.engine.contract.commands import Abort, Drain, EndTrial, Pause, Resume, SetKnobs, StepOnce, Submit
from schedtop.engine.contract.knobs import KnobError
from schedtop.engine.contract.telemetry import Bye, Header, Refusal, Reply, Snapshot, StepRecord
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.open_latencies import OpenLatencies
from schedtop.engine.serving.flight.files import FlightFiles
from schedtop.engine.serving.flight.recorder import FlightRecorder
from schedtop.engine.serving.host import HostWatch, nvml_gpu
from schedtop.engine.serving.loop import ServiceLoop
from schedtop.engine.vllm.changes import check_change, foresee, with_consequences
from schedtop.engine.vllm.environment import log
from schedtop.engine.vllm.events import Updated
from schedtop.engine.vllm.groups import groups_of
from schedtop.engine.vllm.hook import Hook
from schedtop.engine.vllm.limits import set_limits
from schedtop.engine.vllm.records.reasons import Fixed
from schedtop.engine.vllm.records.records import Records
from schedtop.engine.vllm.records.requests import DECODING

LOOK_EVERY_S = 0.02
"""Polling interval while idle. The engine's thread does not wake this one: that would cost it a system call per
step."""
TELL_IDLE_AFTER_S = 0.1
"""How often events outside steps are reported."""
YIELD_S = 0.0001
"""After each record: the engine's thread may be waiting for the interpreter."""
END_WITHIN_S = 1.0
KEPT_BYTES = 6 << 20
"""Fewer than an outbox holds."""
NO_SUBMIT = "vLLM takes requests at its own address only"


class HookedEngine:
    """What `ServiceLoop` needs. Limits count as set once they are checked: the engine sets them before its next step.

    `paused` is for loops that stop stepping; here only admissions pause.
    """

    paused = False
    sampled = np.zeros((0, 0), dtype=np.int32)

    def __init__(self, hook: Hook) -> None:
        facts = hook.facts
        self.header: Header = facts.header
        self.knobs: dict[str, Any] = dict(facts.knobs)
        self.knobs_version = 0
        self._hook = hook
        self._records = Records(
            facts.header,
            facts.knobs,
            fixed_of(facts.header),
        )
        self._idle_since_s = 0.0

    @property
    def clock_s(self) -> float:
        return self._hook.now_s()

    @property
    def num_unfinished(self) -> int:
        return len(self._records.lives.by_id)

    def next_wake_s(self) -> float:
        return self.clock_s + LOOK_EVERY_S

    def step(self) -> StepRecord | None:
        """The next record; None if nothing is to be reported yet."""
        record = self._next_record()
        if record is not None:
            self._idle_since_s = self.clock_s
            time.sleep(YIELD_S)
        return record

    tell = step

    def _next_record(self) -> StepRecord | None:
        hook, records = self._hook, self._records
        while hook.log:
            event = hook.log.popleft()
            try:
                record = records.take(event)
            except Exception as error:
                hook.failed(error)
                continue
            if isinstance(event, Updated) and records.wants_rescan:
                records.wants_rescan, hook.rescan = False, True
            if record is not None:
                return record
        if self.clock_s - self._idle_since_s < TELL_IDLE_AFTER_S:
            return None
        self._idle_since_s = self.clock_s
        return records.idle(self.clock_s)

    def take_errors(self) -> list[str]:
        """Errors from setting limits."""
        errors, self._records.errors = self._records.errors, []
        return errors

    def snapshot(self) -> Snapshot:
        return self._records.snapshot(self.clock_s)

    def unended(self) -> OpenLatencies:
        """Open waits and gaps as of now."""
        lives, now_s = self._records.lives, self.clock_s
        last_s = lives.last_s[[life.slot for life in lives.by_id.values()]] if lives.by_id else np.zeros(0)
        arrivals_s = [life.arrival.arrival_s for life in lives.by_id.values() if life.first_token_s is None]
        return OpenLatencies(now_s - np.array(arrivals_s, dtype=np.float64), now_s - last_s[~np.isnan(last_s)])

    def set_knobs(
        self, values: Mapping[str, Any], expected_version: int | None = None, by: str = "", dry_run: bool = False
    ) -> Reply:
        """Change live limits, all or none. The reply says what was refused or what the change will do."""
        if expected_version is not None and expected_version != self.knobs_version:
            text = (
                f"knobs were changed meanwhile (version {self.knobs_version}, not {expected_version}): look again"
            )
            return Reply(0, False, text, self.knobs_version)
        try:
            typed = check_change(self.header.config, self.knobs, values)
        except KnobError as error:
            return Reply(0, False, str(error), self.knobs_version)
        records = self._records
        running = [records.lives.by_id[name].slot for name in records.lives.running]
        decoding = int(records.lives.columns[DECODING, running].sum())
        warnings = foresee(typed, len(running), decoding, records.pool.num_free, self.header.num_blocks)
        if not dry_run:
            typed = with_consequences(typed)
            self.knobs.update(typed)
            self.knobs_version += 1
            self._ask(lambda hook: set_limits(hook, typed, by))
        return Reply(0, True, "checked" if dry_run else "applied", self.knobs_version, warnings)

    def _ask(self, command: Any) -> None:
        self._hook.commands.append(command)
        self._hook.wake()

    def pause(self, by: str = "") -> None:
        """Pause admissions; what runs goes on."""
        self._check_pause()
        self._ask(lambda hook: hook.pause(True, by))

    def resume(self, by: str = "") -> None:
        self._check_pause()
        self._ask(lambda hook: hook.pause(False, by))

    def _check_pause(self) -> None:
        if "admissions cannot be paused" in self.header.settings["missing"]:
            raise ValueError("this vLLM cannot pause admissions (0.32 can): lower max_num_seqs")
        if self._hook.core is None:
            raise ValueError("this vLLM's loop cannot be reached: admissions cannot be paused")

    def abort(self, number: int) -> bool:
        """Abort one request; its client is notified."""
        name = next((life.id for life in self._records.lives.by_id.values() if life.number == number), None)
        if name is None:
            return False
        if not hasattr(self._hook.core, "_send_abort_outputs"):
            raise ValueError("this vLLM could not inform the request's client: nothing was aborted")
        self._ask(lambda hook: hook.abort(name))
        return True

    def step_once(self) -> object:
        return False

    def submit(self, request: Request) -> Refusal | None:
        """Requests come to a server through its own front end."""
        raise ValueError(NO_SUBMIT)

    def skip_to(self, time_s: float) -> None:
        """It runs on the wall clock."""

    def drain(self) -> None:
        """Refuse: the server is not ours to stop."""


def fixed_of(header: Header) -> Fixed:
    """What never changes about the engine."""
    config, groups = header.config, groups_of(header)
    most_tokens = config["max_num_batched_tokens"] * (1 + config["async_scheduling"])
    return Fixed(
        config["block_size"],
        config["draft_slots"],
        config["enable_chunked_prefill"],
        "multimodal inputs" in header.settings["undecidable"],
        config["num_speculative_tokens"],
        config["async_scheduling"],
        groups,
        tuple(group.cap(most_tokens) for group in groups),
        config["num_lookahead_tokens"],
        header.max_model_len,
    )


class Kept:
    """All records since the start, for a recording; dropped for good once there are too many."""

    def __init__(self, first: Snapshot) -> None:
        self._bodies: list[bytes] = [encode(first)]
        self._num_bytes = 0

    def write(self, record: StepRecord, encoded: bytes) -> None:
        if not self._bodies:
            return
        self._num_bytes += len(encoded)
        self._bodies.append(encoded)
        if self._num_bytes > KEPT_BYTES:
            self._bodies = []

    def all(self) -> list[bytes]:
        """The first snapshot and all records; nothing if they have been dropped."""
        return self._bodies


class HookLoop(ServiceLoop):
    """The channel's loop over a hooked engine."""

    def __init__(
        self,
        engine: HookedEngine,
        server: ChannelServer,
        hook: Hook,
        read_only: bool,
        files: FlightFiles | None = None,
    ) -> None:
        refused: dict[type, str] = {
            Drain: "this server is not the console's: stop vLLM where it was started",
            StepOnce: "vLLM takes no single steps",
            Submit: NO_SUBMIT,
        }
        if read_only:
            words = "this server lets consoles look only (SCHEDTOP_ATTACH_READONLY)"
            refused |= dict.fromkeys((SetKnobs, EndTrial, Pause, Resume, Abort), words)
        kept = Kept(engine.snapshot())
        server.kept = kept.all
        recorder = FlightRecorder(engine.snapshot, files, log.warning)
        server.recent, server.newest_s = recorder.recent, lambda: recorder.newest_s
        sinks = {"kept": kept, "flight recorder": recorder}
        host = HostWatch(nvml_gpu)
        super().__init__(engine, server, sinks, notices=_notices(hook), report=log.info, refused=refused, host=host)
        self._watch, self._files = host, files
        self._hook, self._hooked = hook, engine

    def run(self) -> str:
        """The loop as usual, while the host is being watched."""
        self._watch.start()
        failed = True
        try:
            reason = super().run()
            failed = False
            return reason
        finally:
            self._watch.close()
            if self._files is not None:
                self._files.close(keep=failed or self._hook.server_failed)

    def tick(self) -> None:
        """Between steps: report errors, and end when the hook does."""
        for error in self._hooked.take_errors():
            self.notice("error", error)
        if self._hook.off:
            self.end(f"the hook is {self._hook.off}; the server runs on", 0.0)


def _notices(hook: Hook) -> list[str]:
    missing = hook.facts.missing
    return [f"this vLLM ({hook.facts.header.engine_version}): {'; '.join(missing)}"] if missing else []


def _open_flight(hook: Hook, root: str) -> FlightFiles | None:
    """The flight recorder on disk, if requested; a folder that cannot be written only causes a warning."""
    if not root:
        return None
    try:
        return FlightFiles(Path(root), hook.facts.header)
    except OSError as error:
        log.warning("schedtop: no flight recorder on disk: %s: %s", error.strerror, error.filename)
        return None


def serve_hook(hook: Hook, address: str, read_only: bool = False, flights: str = "") -> str:
    """Serve consoles at `address` (`%r` is the rank) from a thread of its own; the address. Raises `ChannelError`.

    The last minutes are also kept below the folder `flights`.
    """
    server = ChannelServer(address.replace("%r", str(hook.facts.header.settings["rank"])))
    engine = HookedEngine(hook)
    loop = HookLoop(engine, server, hook, read_only, _open_flight(hook, flights))
    thread = threading.Thread(target=_serve, args=(loop, server, hook), name="schedtop", daemon=True)

    def end(reason: str) -> None:
        loop.end(reason, 0.0)
        thread.join(END_WITHIN_S)

    hook.on_end = end
    thread.start()
    log.info("schedtop: consoles attach with: schedtop attach %s", server.address)
    return server.address


def _serve(loop: HookLoop, server: ChannelServer, hook: Hook) -> None:
    """The body of the thread. Whatever fails in it, the server keeps running."""
    reason = "the hook has ended"
    try:
        reason = loop.run()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        hook.turn_off(f"off: {reason}")
    try:
        server.close(Bye(reason=reason, step=loop.last_step), within_s=0.2)
    except (OSError, ChannelError) as error:
        log.warning("schedtop: %s", error)
    hook.turn_off(f"off: {reason}", quiet=True)
