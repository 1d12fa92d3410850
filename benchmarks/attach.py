"""What the hook in vLLM costs its scheduler: schedule + update, with and without it, in alternating blocks.

    python benchmarks/attach.py MODEL [--running 64 256] [--pairs 20]

Run it where vLLM is installed; MODEL is a model folder, of which only the config is read. Two schedulers of vLLM's own
class serve the same requests in one process, one of them hooked with a console joined (a process of its own).
Between schedule and update the engine waits, as it does for a device. Printed: microseconds per step, the median of
the blocks, and the median of the paired differences with its quartiles, by the clock and by the thread's CPU time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from vllm_scheduler import Requests, answer, build

STEPS_PER_BLOCK = 40
WARM_UP_BLOCKS = 3
CONSOLE = """
import sys
from schedtop.engine.channel.client import ChannelClient
link = ChannelClient.connect(sys.argv[1])
while True:
    link.receive(1.0)
"""


class Side:
    """One scheduler with so many requests that never end."""

    def __init__(self, model: str, running: int, base: type | None = None) -> None:
        limits = {"max_num_seqs": running, "max_num_batched_tokens": 2048, "num_blocks": 40_000}
        self.scheduler = build(model, base, **limits)
        requests = Requests(self.scheduler)
        for place in range(running):
            prompt = [(place * 7919 + i) % 30_000 for i in range(24)]
            self.scheduler.add_request(requests.make(f"r{place}", prompt, 8000))
        while len(self.scheduler.running) < running:
            self.block(1, 0.0)

    def block(self, steps: int, device_s: float) -> tuple[float, float]:
        """Seconds per step in schedule + update: by the clock, and of this thread's CPU."""
        wall_s = cpu_s = 0.0
        for _ in range(steps):
            began, began_cpu = time.perf_counter(), time.thread_time()
            output = self.scheduler.schedule()
            wall_s += time.perf_counter() - began
            cpu_s += time.thread_time() - began_cpu
            result = answer(self.scheduler, output)
            time.sleep(device_s)
            began, began_cpu = time.perf_counter(), time.thread_time()
            self.scheduler.update_from_output(output, result)
            wall_s += time.perf_counter() - began
            cpu_s += time.thread_time() - began_cpu
        return wall_s / steps, cpu_s / steps


def measure(model: str, running: int, pairs: int, device_s: float) -> None:
    from schedtop.engine.vllm.plugin import hooked
    from vllm.v1.core.sched.scheduler import Scheduler

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCHEDTOP_ATTACH"] = f"unix:{folder}/%r.sock"
        off, on = Side(model, running), Side(model, running, hooked(Scheduler))
        console = subprocess.Popen([sys.executable, "-c", CONSOLE, f"unix:{folder}/0.sock"])
        try:
            time.sleep(1.0)
            report(running, device_s, run_pairs(off, on, pairs, device_s))
        finally:
            console.kill()
            console.wait()
        assert not on.scheduler.schedtop_hook.errors, on.scheduler.schedtop_hook.errors
        on.scheduler.schedtop_hook.end("done")


def run_pairs(off: Side, on: Side, pairs: int, device_s: float) -> list[tuple[Any, Any]]:
    found = []
    for place in range(pairs + WARM_UP_BLOCKS):
        sides = [off, on]
        if random.Random(place).random() < 0.5:
            sides.reverse()
        times = {id(side): side.block(STEPS_PER_BLOCK, device_s) for side in sides}
        if place >= WARM_UP_BLOCKS:
            found.append((times[id(off)], times[id(on)]))
    return found


def report(running: int, device_s: float, pairs: list[tuple[Any, Any]]) -> None:
    for place, name in enumerate(("wall", "CPU ")):
        off, on = ([pair[side][place] * 1e6 for pair in pairs] for side in (0, 1))
        differences = sorted(b - a for a, b in zip(off, on, strict=True))
        low, middle, high = statistics.quantiles(differences, n=4)
        base = statistics.median(off)
        print(
            f"{running:4d} running, {name}: off {base:7.0f} us, on {statistics.median(on):7.0f} us;"
            f" paired {middle:+6.0f} ({low:+.0f} to {high:+.0f}) us, {middle / base:+.1%} of schedule + update,"
            f" {middle / (base + device_s * 1e6):+.2%} of a step with {device_s * 1000:g} ms of device"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument(
        "--device-ms", type=float, default=8.0, help="what the engine waits between schedule and update"
    )
    flags = parser.parse_args()
    for running in flags.running:
        measure(flags.model, running, flags.pairs, flags.device_ms / 1000)


if __name__ == "__main__":
    main()
