"""256 concurrent streams on a simulated device for ten minutes: errors, stalls, and the memory of both processes.

python benchmarks/http_soak.py [MINUTES] [STREAMS]
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import time
from pathlib import Path

from http_client import Outcome, load, quantile

PROGRAM = Path(sys.executable).with_name("schedtop")
DEVICE = "sim:llama-3.1-8b@l4"  # steps of some 60 ms at 256 streams: clients and server share this machine


def rss_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return int(next(child for path in children for child in path.read_text().split()))


async def soak(url: str, pid: int, minutes: float, streams: int) -> tuple[Outcome, list[tuple[float, float]]]:
    bodies = ({"prompt": f"{n} " + "word " * (n % 97), "max_tokens": 100 + n % 200} for n in itertools.count())
    outcome = Outcome()
    running = asyncio.create_task(load(url, bodies, streams, for_s=minutes * 60, outcome=outcome))
    memory = []
    began_s = time.perf_counter()
    for minute in range(1, int(minutes) + 1):
        await asyncio.wait({running}, timeout=max(0.0, began_s + minute * 60 - time.perf_counter()))
        memory.append((rss_mib(pid), rss_mib(child_of(pid))))
        so_far = (
            f"{outcome.requests} requests, {len(outcome.errors)} errors, longest gap {max(outcome.gaps_s):.2f} s"
        )
        print(
            f"minute {minute}: engine {memory[-1][0]:.1f} MiB, HTTP {memory[-1][1]:.1f} MiB; {so_far}", flush=True
        )
    return await running, memory


def main(minutes: float = 10, streams: int = 256) -> None:
    command = [PROGRAM, "serve", "--http", "127.0.0.1:0", "--device", DEVICE, "--max-num-seqs", str(streams)]
    command += ["--num-blocks", "16000"]  # nobody is preempted: what stalls then is the server
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"HTTP at (\S+),", line)))
        outcome, memory = asyncio.run(soak(url, process.pid, minutes, streams))
        process.terminate()
        process.wait()
    print(f"{outcome.requests} requests, {outcome.output_tokens} tokens, {outcome.tokens_per_s:.0f} tokens/s")
    print(f"errors: {len(outcome.errors)} {outcome.errors[:3]}")
    gaps = [f"{1000 * quantile(outcome.gaps_s, share):.0f}" for share in (0.5, 0.99, 1.0)]
    print(f"gap between events: p50 {gaps[0]} ms, p99 {gaps[1]} ms, longest {gaps[2]} ms")
    if len(memory) > 2:
        growth = [100 * (last / second - 1) for second, last in zip(memory[1], memory[-1], strict=True)]
        print(f"memory, last minute over the second: engine {growth[0]:+.1f} %, HTTP {growth[1]:+.1f} %")


if __name__ == "__main__":
    main(*(float(value) for value in sys.argv[1:2]), *(int(value) for value in sys.argv[2:3]))
