"""What recordings cost: bytes a step, time a record, opening, seeking, memory.

    python benchmarks/recordings.py [--steps 1000000] [--running 64] [--keep FILE]

A simulated engine serves the `mixed` workload in a closed loop that keeps `--running` requests in flight. Reading
is measured in a process of its own: showing a step is what a console does for it, from nothing: the keyframe before
it, all records up to it folded into a state, and the latency samples of the minute before (`seek_ms` by the wall
clock, `seek_cpu_ms` in processor time, which a busy machine changes less). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from schedtop.console.past.state import LiveState
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.handoff.request import Request
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.step.engine import Engine
from schedtop.engine.workload.source import RequestSource

SEEKS = 500
WINDOW_S = 60


class ClosedLoop:
    """Hands out another source's requests as soon as fewer than `target` are in flight."""

    def __init__(self, source: RequestSource, target: int) -> None:
        self.description = source.description
        self.engine: Engine | None = None
        self._source = source
        self._target = target

    def take(self, clock_s: float, step: int) -> list[Request]:
        assert self.engine is not None
        taken: list[Request] = []
        while self.engine.num_unfinished + len(taken) < self._target:
            for request in self._source.take(self._source.next_arrival_s() or 0.0, step):
                request.arrival_s = clock_s
                taken.append(request)
        return taken

    def next_arrival_s(self) -> float | None:
        assert self.engine is not None
        return self.engine.clock_s

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        raise NotImplementedError


def build(num_running: int) -> Engine:
    config = EngineConfig(workload=WorkloadSpec(source="mixed"), scheduler={"max_num_seqs": num_running})
    engine = build_engine(config)
    assert engine.source is not None
    loop = ClosedLoop(engine.source, num_running)
    loop.engine, engine.source = engine, loop
    return engine


def write(path: Path, num_steps: int, num_running: int) -> dict[str, float]:
    """Record a run; microseconds a record in the engine's thread, and of the recorder's processor time."""
    engine = build(num_running)
    writer = RecordingWriter(path, engine.header, engine.snapshot)
    in_write = running = 0.0
    shown_s = time.monotonic()
    for i in range(num_steps):
        record = engine.step()
        assert record is not None
        began = time.perf_counter()
        writer.write(record)
        in_write += time.perf_counter() - began
        running += record.running
        if time.monotonic() > shown_s + 10:
            shown_s = time.monotonic()
            print(f"  {i:,} of {num_steps:,} steps", file=sys.stderr, flush=True)
    recorder = time.clock_gettime(time.pthread_getcpuclockid(writer._thread.ident or 0))
    writer.close()
    return {
        "steps": num_steps,
        "running": running / num_steps,
        "bytes_per_step": path.stat().st_size / num_steps,
        "write_us": in_write / num_steps * 1e6,
        "recorder_us": recorder / num_steps * 1e6,
    }


def read(path: Path) -> dict[str, float]:
    """Open it, show random steps, read it through."""
    began = time.perf_counter()
    with Recording(path) as recording:
        open_ms = (time.perf_counter() - began) * 1e3
    rng = random.Random(0)
    seeks, busy = [], []
    for _ in range(SEEKS):
        with Recording(path, check=False) as recording:
            index = rng.randrange(recording.num_records)
            began, busy_began = time.perf_counter(), time.process_time()
            show(recording, index)
            seeks.append((time.perf_counter() - began) * 1e3)
            busy.append((time.process_time() - busy_began) * 1e3)
    with Recording(path) as recording:
        began = time.perf_counter()
        num = sum(1 for _ in recording.records())
        read_us = (time.perf_counter() - began) / num * 1e6
    return {
        "open_ms": open_ms,
        "seek_ms_p50": float(np.percentile(seeks, 50)),
        "seek_ms_p99": float(np.percentile(seeks, 99)),
        "seek_cpu_ms_p99": float(np.percentile(busy, 99)),
        "read_us": read_us,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def show(recording: Recording, index: int) -> LiveState:
    snapshot, first = recording.keyframe_before(index)
    state = LiveState()
    state.start_afresh(snapshot)
    for record in recording.records(first, index + 1):
        state.apply(record)
    second = int(state.clock_s)
    recording.seconds(second - WINDOW_S, second - 1)
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--keep", type=Path, help="leave the recording here")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder, "benchmark.schedtop")
        result: dict[str, Any] = write(path, options.steps, options.running)
        command = [sys.executable, os.path.abspath(__file__), "--read", str(path)]
        result |= json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    for name, value in result.items():
        print(f"{name:16} {value:12,.1f}")
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
