"""The engine's side: notes what the scheduler did and carries out commands, all on the engine's own thread.

Every method catches its own errors. After `MAX_ERRORS` the hook turns off, and the scheduler runs as if it had never
been there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from schedtop.engine.vllm.environment import log
from schedtop.engine.vllm.events import (
    Added,
    Drafted,
    Ended,
    Event,
    HeadSeen,
    PauseSeen,
    PreemptSeen,
    Scheduled,
    Updated,
)
from schedtop.engine.vllm.limits import ServerFacts, hold_cap, limits_of, set_pause
from schedtop.engine.vllm.pool_watch import LookUps, PoolWatch

MAX_ERRORS = 3
MAX_UNREAD = 50_000
"""Most notes kept unread: the reader is gone or far too slow."""
MAX_SKIPPED = 64
"""Most skipped requests examined when looking for the head of the queue."""

Command = Callable[["Hook"], None]


class Hook:
    """Belongs to one scheduler. `log` is read, and `commands` is filled, by the thread that serves consoles.

    Raises whatever a scheduler of an unknown shape raises.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.core: Any = None
        self.log: deque[Event] = deque()
        self.commands: deque[Command] = deque()
        self.off = ""
        self.errors: list[str] = []
        self.rescan = True
        self.server_failed = False
        self._zero_s = time.monotonic()
        self.facts = ServerFacts.of(scheduler)
        self.pool = PoolWatch(scheduler.kv_cache_manager.block_pool, self.failed)
        self.look_ups = LookUps(scheduler.kv_cache_manager)
        self._preempted: list[PreemptSeen] = []
        self._by_console: set[str] = set()
        self._running: list[str] = []
        self._throttled = False
        self.on_end: Callable[[str], None] = lambda reason: None

    def now_s(self) -> float:
        """Seconds since the hook began."""
        return time.monotonic() - self._zero_s

    def enter(self, core: Any) -> None:
        """The loop that drives this scheduler."""
        self.core = core

    def wake(self) -> None:
        """Have commands carried out now, even if the engine is idle. Called from the other thread."""
        core = self.core
        if core is None:
            return
        try:
            from vllm.v1.engine import EngineCoreRequestType

            core.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
        except Exception as error:  # without it they wait for the next step
            self.failed(error)

    def end(self, reason: str) -> None:
        """The scheduler or its loop ends; the first reason counts."""
        on_end, self.on_end = self.on_end, lambda reason: None
        try:
            on_end(reason)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Count an error of ours; the third turns the hook off."""
        self.errors.append(f"{type(error).__name__}: {error}"[:200])
        if len(self.errors) >= MAX_ERRORS and not self.off:
            self.turn_off(f"off after {MAX_ERRORS} errors, the last: {self.errors[-1]}")

    def turn_off(self, reason: str, quiet: bool = False) -> None:
        """From now on the scheduler runs alone; logged once."""
        if self.off:
            return
        self.off = reason
        self.pool.release()
        self.look_ups.release()
        self.log.clear()
        if not quiet:
            log.warning("schedtop: %s; the server runs on without a console", reason)

    def obey(self) -> None:
        """Carry out commands from consoles."""
        try:
            while self.commands:
                self.commands.popleft()(self)
        except Exception as error:
            self.failed(error)

    def before_schedule(self, throttle_prefills: object = False, *_: object, **__: object) -> float:
        """Commands take effect before the next step is planned."""
        if self.commands:
            self.obey()
        try:
            hold_cap(self.facts, self.scheduler)
            if not self.facts.reports_preemptions:
                self._running = [request.request_id for request in self.scheduler.running]
            self._throttled = bool(throttle_prefills)
        except Exception as error:
            self.failed(error)
        return self.now_s()

    def after_schedule(self, output: Any, began_s: float) -> None:
        try:
            self._note_schedule(output, began_s, self.now_s())
        except Exception as error:
            self.failed(error)

    def _note_schedule(self, output: Any, began_s: float, ended_s: float) -> None:
        scheduler = self.scheduler
        running, queues = scheduler.running, self.facts.queues
        some_idle = len(running) != len(output.num_scheduled_tokens)
        waiting = sum(map(len, queues(scheduler)))
        preempted, self._preempted = self._preempted, []
        given, self.pool.given = self.pool.given, []
        if not self.facts.reports_preemptions:
            preempted = self._gone(running)
        if len(self.log) > MAX_UNREAD:
            self.turn_off(f"off: {MAX_UNREAD} notes wait unread")
            return
        self.log.append(
            Scheduled(
                output,
                began_s,
                ended_s,
                *limits_of(scheduler, self.facts.cap),
                len(running),
                waiting,
                self.pool.num_free(),
                [request.request_id for request in running] if some_idle else None,
                self._head() if waiting else None,
                preempted,
                given,
                self.facts.is_paused(scheduler),
                self._throttled,
            )
        )

    def _gone(self, running: list[Any]) -> list[PreemptSeen]:
        """Preempted requests as inferred for an older scheduler: they ran before the step and no longer do."""
        left = {request.request_id for request in running}
        free = self.pool.num_free()
        return [PreemptSeen(name, -1, 1, free, free, 0) for name in self._running if name not in left]

    def _head(self) -> HeadSeen | None:
        """The head of the queue: the first request that was not skipped."""
        first, skipped = None, self.facts.skipped(self.scheduler)
        for queue in self.facts.queues(self.scheduler):
            if not queue:
                continue
            request = queue.peek_request()
            first = first or request
            if request not in skipped and not is_stale(request):
                return self._seen(request)
            for request, _ in zip(queue, range(MAX_SKIPPED), strict=False):
                if request not in skipped and not is_stale(request):
                    return self._seen(request)
        return None if first is None else self._seen(first)

    def _seen(self, request: Any) -> HeadSeen:
        return HeadSeen(
            request.request_id,
            request.num_tokens,
            request.status.name,
            is_stale(request),
            getattr(request, "lora_request", None) is not None,
            *self.look_ups.last_of(request),
        )

    def after_update(self, output: Any, outputs: Any, began_s: float) -> None:
        try:
            whole, self.rescan = self.rescan or self.pool.lost, False
            blocks = self.pool.everything() if whole else self.pool.drain()
            waiting = sum(map(len, self.facts.queues(self.scheduler)))
            standing = (self.pool.num_free(), len(self.scheduler.running), waiting)
            self.log.append(Updated(output, outputs, began_s, self.now_s(), blocks, whole, *standing))
        except Exception as error:
            self.failed(error)

    def is_new(self, request: Any) -> bool:
        """False for more input of a session that streams it."""
        try:
            return not self.off and request.request_id not in self.scheduler.requests
        except Exception as error:
            self.failed(error)
            return False

    def after_add(self, request: Any) -> None:
        try:
            params, at_s = getattr(request, "sampling_params", None), self.now_s()
            arrival_s = getattr(request, "arrival_time", None)
            self.log.append(
                Added(
                    at_s,
                    request.request_id,
                    request.num_prompt_tokens,
                    request.max_tokens,
                    getattr(request, "priority", 0) or 0,
                    tuple(getattr(request, "block_hashes", ())) if self.facts.keys_are_blocks else (),
                    None if arrival_s is None else max(0.0, time.time() - arrival_s),
                    bool(getattr(params, "stop", None)),
                    bool(getattr(request, "skip_reading_prefix_cache", False)),
                )
            )
        except Exception as error:
            self.failed(error)

    def before_finish(self, request_ids: Any, status: Any) -> Any:
        """Note which requests are about to end; returns `request_ids`, which may have been an iterator."""
        if self.off:
            return request_ids
        try:
            if request_ids is None:
                named = list(self.scheduler.requests)
            elif isinstance(request_ids, str):
                named = [request_ids]
            else:
                named = request_ids = list(request_ids)
            # vLLM makes a set of them, and frees their blocks in its order: the same here, as it is made alike.
            ordered = named if request_ids is None else set(named)
            live = [name for name in ordered if name in self.scheduler.requests]
            if live:
                asked = self._by_console.intersection(live)
                self._by_console -= asked
                self.log.append(Ended(self.now_s(), live, getattr(status, "name", str(status)), bool(asked)))
        except Exception as error:
            self.failed(error)
        return request_ids

    def before_preempt(self, request: Any) -> tuple[int, int, int] | None:
        """Tokens computed, expected outputs and free blocks; None when nothing is to be noted."""
        if self.off:
            return None
        try:
            expected = getattr(request, "num_output_placeholders", 0)
            return request.num_computed_tokens, expected, self.pool.num_free()
        except Exception as error:
            self.failed(error)
            return None

    def after_preempt(self, request: Any, before: tuple[int, int, int]) -> None:
        try:
            seen = PreemptSeen(request.request_id, *before, self.pool.num_free(), len(self.pool.given))
            self._preempted.append(seen)
        except Exception as error:
            self.failed(error)

    def after_drafts(self, proposed: Any) -> None:
        """Note how many drafts each request has after its grammar removed the forbidden ones."""
        if self.off:
            return
        try:
            requests, ids = self.scheduler.requests, list(proposed.req_ids)
            counts = [len(requests[name].spec_token_ids) if name in requests else 0 for name in ids]
            if any(counts):
                self.log.append(Drafted(ids, counts))
        except Exception as error:
            self.failed(error)

    def abort(self, name: str) -> None:
        """Abort one request and notify its client."""
        request = self.scheduler.requests.get(name)
        if request is None:
            return
        self._by_console.add(name)
        self.scheduler.finish_requests(name, type(request.status).FINISHED_ABORTED)
        self.core._send_abort_outputs([request])

    def pause(self, paused: bool, by: str = "") -> None:
        """Pause or resume admissions."""
        set_pause(self.facts, self.scheduler, paused)
        self.log.append(PauseSeen(self.now_s(), self.facts.is_paused(self.scheduler), by))


def is_stale(request: Any) -> bool:
    """It was preempted and waits for results under way."""
    stale = getattr(request, "num_stale_output_tokens", 0)
    return bool(stale) and not getattr(request, "drop_stale_output", False)
