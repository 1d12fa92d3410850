"""The console on a vLLM server: a hook around the scheduler that vLLM chose, inside the server's process.

Nothing here imports vLLM but inside functions, and nothing happens unless `SCHEDTOP_ATTACH` is set.

    plugin      the entry point: wraps what vLLM is about to use
    hook        on the engine's thread: notes what happened, carries out commands
    events      what is noted
    requests    the live requests, as the notes describe them
    records     notes become step records
    engine      the engine as the channel's loop sees it, on a thread of its own
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`--scheduler-cls schedtop.engine.vllm.Scheduler` is the second way in, without the plugin."""
    if name not in ("Scheduler", "AsyncScheduler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from schedtop.engine.vllm.plugin import named_scheduler

    return named_scheduler(name)
