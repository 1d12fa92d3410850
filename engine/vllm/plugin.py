"""vLLM's entry point, and the classes it wraps."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from schedtop.engine.vllm.environment import ADDRESS, FLIGHTS, READ_ONLY, log

MARK = "schedtop_hooked"
"""Marks what is already wrapped: plugin and flag together must wrap only once."""


def register() -> None:
    """Called by vLLM in every process of an installation that has this package: does nothing unless requested."""
    if not os.environ.get(ADDRESS):
        return
    try:
        from vllm.config import SchedulerConfig
        from vllm.v1.engine.core import EngineCoreProc

        if not hasattr(SchedulerConfig, "get_scheduler_cls"):
            log.warning("schedtop: this vLLM has no get_scheduler_cls (0.11 has): no console can attach")
            return
        wrap_choice(SchedulerConfig)
        wrap_core(EngineCoreProc)
    except Exception as error:  # whatever vLLM has become, it must start
        log.warning("schedtop: no console can attach: %s: %s", type(error).__name__, error)


def named_scheduler(name: str) -> type:
    """vLLM's scheduler of that name, hooked; without an address, vLLM's own."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base: type = AsyncScheduler if name == "AsyncScheduler" else Scheduler
    if not os.environ.get(ADDRESS):
        return base
    from vllm.v1.engine.core import EngineCoreProc

    wrap_core(EngineCoreProc)
    return hooked(base)


def wrap_choice(config: type) -> None:
    """Let `get_scheduler_cls` return a hooked subclass of what it picks."""
    original: Callable[[Any], type] = config.get_scheduler_cls  # type: ignore[attr-defined]
    if hasattr(original, MARK):
        return

    @wraps(original)
    def get_scheduler_cls(self: Any) -> type:
        return hooked(original(self))

    setattr(get_scheduler_cls, MARK, True)
    config.get_scheduler_cls = get_scheduler_cls  # type: ignore[attr-defined]


def wrap_core(core: type) -> None:
    """Give a hook the loop it runs in, so that commands reach an idle engine, and how that loop ended."""
    run, handle = getattr(core, "run_busy_loop", None), getattr(core, "_handle_client_request", None)
    if run is None or handle is None or hasattr(run, MARK):
        return

    @wraps(run)
    def run_busy_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = getattr(self.scheduler, "schedtop_hook", None)
        if hook is None:
            return run(self, *args, **kwargs)
        hook.enter(self)
        try:
            return run(self, *args, **kwargs)
        except Exception as error:
            hook.server_failed = True
            hook.end(f"vLLM's engine failed: {type(error).__name__}: {error}"[:200])
            raise
        finally:  # consoles are notified here: the front end kills an engine that is slow to clean up
            hook.end("vLLM is shutting down")

    @wraps(handle)
    def handle_client_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = handle(self, *args, **kwargs)
        hook = getattr(self.scheduler, "schedtop_hook", None)
        if hook is not None and hook.commands:
            hook.obey()
        return answer

    setattr(run_busy_loop, MARK, True)
    core.run_busy_loop = run_busy_loop  # type: ignore[attr-defined]
    core._handle_client_request = handle_client_request  # type: ignore[attr-defined]


def hooked(base: type) -> type:
    """A subclass of a scheduler that notes what its base decides and changes none of it."""
    if hasattr(base, MARK) or not (hasattr(base, "schedule") and hasattr(base, "update_from_output")):
        if not hasattr(base, MARK):
            log.warning("schedtop: %s has no schedule and update_from_output: no console can attach", base)
        return base

    class Hooked(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.schedtop_hook = _begin(self)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            hook = self.schedtop_hook
            if hook is None or hook.off:
                return super().schedule(*args, **kwargs)
            began_s = hook.before_schedule(*args, **kwargs)
            output = super().schedule(*args, **kwargs)
            hook.after_schedule(output, began_s)
            return output

        def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            hook = self.schedtop_hook
            if hook is None or hook.off:
                return super().update_from_output(scheduler_output, *args, **kwargs)
            began_s = hook.now_s()
            outputs = super().update_from_output(scheduler_output, *args, **kwargs)
            hook.after_update(scheduler_output, outputs, began_s)
            return outputs

        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            hook = self.schedtop_hook
            fresh = hook is not None and hook.is_new(request)
            answer = super().add_request(request, *args, **kwargs)
            if fresh:
                hook.after_add(request)
            return answer

        def finish_requests(self, request_ids: Any, finished_status: Any, *args: Any, **kwargs: Any) -> Any:
            hook = self.schedtop_hook
            if hook is not None:
                request_ids = hook.before_finish(request_ids, finished_status)
            return super().finish_requests(request_ids, finished_status, *args, **kwargs)

        def shutdown(self, *args: Any, **kwargs: Any) -> Any:
            if self.schedtop_hook is not None:
                self.schedtop_hook.end("vLLM is shutting down")
            return super().shutdown(*args, **kwargs)

    _hook_optional(Hooked, base)
    Hooked.__name__ = Hooked.__qualname__ = f"Schedtop{base.__name__}"
    setattr(Hooked, MARK, True)
    return Hooked


def _hook_optional(hooked: Any, base: Any) -> None:
    """Hook the methods that only some versions have."""
    if hasattr(base, "_preempt_request"):

        def _preempt_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            hook = self.schedtop_hook
            before = None if hook is None else hook.before_preempt(request)
            answer = base._preempt_request(self, request, *args, **kwargs)
            if before is not None:
                hook.after_preempt(request, before)
            return answer

        hooked._preempt_request = _preempt_request
    if hasattr(base, "update_draft_token_ids"):

        def update_draft_token_ids(self: Any, draft_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
            answer = base.update_draft_token_ids(self, draft_token_ids, *args, **kwargs)
            if self.schedtop_hook is not None:
                self.schedtop_hook.after_drafts(draft_token_ids)
            return answer

        hooked.update_draft_token_ids = update_draft_token_ids


def _begin(scheduler: Any) -> Any:
    """The serving hook of a newly built scheduler; None if it cannot serve."""
    try:
        from schedtop.engine.vllm.engine import serve_hook
        from schedtop.engine.vllm.hook import Hook

        hook = Hook(scheduler)
        serve_hook(
            hook,
            os.environ[ADDRESS],
            read_only=os.environ.get(READ_ONLY, "") not in ("", "0"),
            flights=os.environ.get(FLIGHTS, ""),
        )
    except Exception as error:
        log.warning("schedtop: no console can attach: %s", error)
        return None
    return hook
