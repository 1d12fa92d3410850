"""What serving over HTTP costs the engine's process: CPU time per step with requests of its own and with clients'.

    python benchmarks/http_cost.py [SECONDS]

Two engines run beside each other on the same simulated device in real time, each with 256 requests that decode at
once, so that a machine that grows slower meets both alike: one replays a trace and nobody listens, the other's requests
are clients' streams. Then the metrics page by this project's writer and by Prometheus's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from http_client import load
from prometheus_client import generate_latest
from schedtop.engine.build import build_engine
from schedtop.engine.channel import ChannelClient
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Snapshot
from schedtop.engine.http.pages.metrics import metrics_registry
from schedtop.engine.http.server_state import HttpCounts
from schedtop.engine.metrics.counts import Counts
from schedtop.engine.metrics.page_text import page_text

PROGRAM = Path(sys.executable).with_name("schedtop")
STREAMS = 256
OUTPUTS = 4000
DEVICE = ["--device", "sim:llama-3.1-8b@l4", "--num-blocks", "80000", "--max-num-seqs", str(STREAMS)]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def step_of(channel: str) -> int:
    """The engine's present step."""
    with ChannelClient.connect(channel) as client:
        while not isinstance(message := client.receive(30), Snapshot):
            pass
        return message.step if len(message.running) == STREAMS else -1


@contextmanager
def engine(*arguments: str) -> Iterator[tuple[int, str, str]]:
    """An engine's process id, its channel, and its URL if it has one."""
    with subprocess.Popen([PROGRAM, "serve", *DEVICE, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        channel = next(found[1] for line in process.stderr if (found := re.search(r"listening on (\S+)", line)))
        url = ""
        if "--http" in arguments:
            url = next(found[1] for line in process.stderr if (found := re.search(r"HTTP at (\S+),", line)))
        try:
            yield process.pid, channel, url
        finally:
            process.terminate()


async def measure(own: tuple[int, str, str], served: tuple[int, str, str], seconds: float) -> None:
    bodies = ({"prompt": f"{n}", "max_tokens": OUTPUTS} for n in itertools.count())
    client = asyncio.create_task(load(served[2], bodies, STREAMS))
    while await asyncio.to_thread(step_of, own[1]) < 0 or await asyncio.to_thread(step_of, served[1]) < 0:
        await asyncio.sleep(0.2)
    sides = {"without HTTP": own, "with HTTP": served}
    before = {name: (cpu_s(pid), await asyncio.to_thread(step_of, at)) for name, (pid, at, _) in sides.items()}
    await asyncio.sleep(seconds)
    cost_ms = {}
    for name, (pid, channel, _) in sides.items():
        steps = await asyncio.to_thread(step_of, channel) - before[name][1]
        cost_ms[name] = 1000 * (cpu_s(pid) - before[name][0]) / steps
        print(f"{STREAMS} requests {name}: {cost_ms[name]:.3f} ms of CPU per step ({steps} steps)", flush=True)
    print(f"with HTTP over without: {cost_ms['with HTTP'] / cost_ms['without HTTP']:.2f}")
    client.cancel()


def measure_page() -> None:
    workload = WorkloadSpec(source="mixed", rate=60.0, limit=2000)
    simulated = build_engine(EngineConfig(workload=workload, scheduler={"max_num_seqs": 256}))
    counts = Counts(simulated.header)
    while (record := simulated.step()) is not None and record.step < 1500:
        counts.write(record)
    registry = metrics_registry(simulated.header, "m", counts, HttpCounts())
    writers = {
        "this project": lambda: page_text(registry.collect()),
        "Prometheus's client": lambda: generate_latest(registry),
    }
    times: dict[str, list[float]] = {name: [] for name in writers}
    for _ in range(50):
        for name, write in writers.items():
            began_s = time.perf_counter()
            write()
            times[name].append(1000 * (time.perf_counter() - began_s))
    for name, values in times.items():
        print(f"the metrics page, written by {name}: best {min(values):.2f} ms")


def main(seconds: float = 20.0) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trace = Path(folder, "trace.csv")
        rows = (f"2024-01-01 00:00:00.{n:06},2,{OUTPUTS}" for n in range(STREAMS))
        trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
        own = stack.enter_context(engine("--workload", str(trace)))
        served = stack.enter_context(engine("--http", "127.0.0.1:0"))
        asyncio.run(measure(own, served, seconds))
    measure_page()


if __name__ == "__main__":
    main(*(float(value) for value in sys.argv[1:2]))
