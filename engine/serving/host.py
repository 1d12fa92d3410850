"""What the host gives the engine's process, sampled once a second: CPU time, run-queue waits, the GPU."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from schedtop.engine.contract.telemetry import Host

EVERY_S = 1.0
SCHEDSTAT = Path("/proc/self/schedstat")
"""Of the process's first thread, which steps: nanoseconds it ran, and nanoseconds it was ready and waited."""

Gpu = Callable[[], tuple[float, int, int]]
"""Busy share, clock and highest clock in MHz. Raises if it does not answer."""


class HostWatch:
    """Samples once a second on its own thread: a driver may be slow to answer, and no step may wait for it."""

    def __init__(self, find_gpu: Callable[[], Gpu | None] = lambda: None) -> None:
        self._find_gpu = find_gpu
        self._gpu: Gpu | None = None
        self._found: Host | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self) -> tuple[Host, ...]:
        """Samples since the last call; usually none."""
        if self._found is None:
            return ()
        found, self._found = self._found, None
        return (found,)

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        self._gpu = self._find_gpu()
        at_s, ran_s, delayed_s = time.monotonic(), _cpu_s(), _delayed_s()
        while not self._closing.wait(EVERY_S):
            now_s, now_ran_s, now_delayed_s = time.monotonic(), _cpu_s(), _delayed_s()
            span_s = now_s - at_s
            delay = None if now_delayed_s is None or delayed_s is None else (now_delayed_s - delayed_s) / span_s
            self._found = Host(span_s, (now_ran_s - ran_s) / span_s, delay, *self._ask_gpu())
            at_s, ran_s, delayed_s = now_s, now_ran_s, now_delayed_s

    def _ask_gpu(self) -> tuple[float | None, int | None, int | None]:
        if self._gpu is not None:
            try:
                return self._gpu()
            except Exception:  # whatever a driver raises, it is not queried again
                self._gpu = None
        return None, None, None


def nvml_gpu() -> Gpu | None:
    """The first GPU that this process may use; None without NVML's bindings (nvidia-ml-py), driver or GPU."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        name = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or "0"
        handle: Any = (
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(name)
        )

        def ask() -> tuple[float, int, int]:
            return (
                pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
            )

        ask()
        return ask
    return None


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _delayed_s() -> float | None:
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
