"""Memory over hours of load: two simulated hours with a console joined, the clock run fast.

    python benchmarks/soak.py [--hours 2] [--json FILE]

The engine runs in a process of its own, the console in another, drawing without a terminal. The claim: at the end
each holds at most 2 % more than after 30 simulated minutes. Exit code 1 if one holds more. The engine is paused every
half second until the console has all that it sent: the console sees every step, and nothing is in transit when memory
is read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

AIM = 0.02
SETTLED_S = 1800.0
LOOK_EVERY_S = 600.0
TURN_S, QUIET_S = 0.5, 0.2
"""On the wall's clock: how long the engine runs at a time, and after how long without a record the console has all."""
REST_S = 12.0
"""Quiet time before memory is read: freed memory is given back within ten seconds."""
LOAD = {"device": "sim:llama-3.1-8b@l4", "rate": 6.0, "scale": 0.1}


def rss_mib(process: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(process)


def show(hours: float) -> None:
    """The console's side, which owns the engine: a line of JSON for each look at both."""
    from schedtop.console.app import ConsoleApp
    from schedtop.console.options import ConsoleOptions
    from schedtop.engine.channel.spawn import start_engine
    from schedtop.engine.contract.commands import Pause, Resume
    from schedtop.engine.contract.config import EngineConfig, WorkloadSpec

    workload = WorkloadSpec(source="mixed", rate=float(LOAD["rate"]), scale=float(LOAD["scale"]))
    config = EngineConfig(
        device=str(LOAD["device"]), workload=workload, duration_s=hours * 3600 + LOOK_EVERY_S, join_within_s=60.0
    )
    with start_engine(config) as engine:
        app = ConsoleApp(engine.connect(60.0), ConsoleOptions(ttft_slo_s=1.0, itl_slo_s=0.1))

        def tell(command: type[Pause | Resume]) -> None:
            app.call_from_thread(app.command, command, lambda reply: None)

        def look() -> None:
            live, due_s = app.view.history.live, LOOK_EVERY_S
            while not app.is_running:
                time.sleep(QUIET_S)
            while due_s <= hours * 3600 and engine.process.poll() is None:
                tell(Resume)
                time.sleep(TURN_S)
                tell(Pause)
                seen = None
                while seen != live.seq or not live.paused:
                    seen = live.seq
                    time.sleep(QUIET_S)
                if live.clock_s >= due_s:
                    time.sleep(REST_S)
                    found = {
                        "clock_s": live.clock_s,
                        "engine": rss_mib(engine.process.pid),
                        "console": rss_mib(os.getpid()),
                        "records": app.view.history.num_applied / (live.seq + 1),
                    }
                    print(json.dumps(found), flush=True)
                    due_s += LOOK_EVERY_S
            app.call_from_thread(app.exit)

        threading.Thread(target=look, daemon=True).start()
        app.run(headless=True, size=(160, 48))


def main() -> int:
    """Print a line for each look, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--show", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.show:
        show(asked.hours)
        return 0
    me = [sys.executable, str(Path(__file__).resolve()), "--show", "--hours", str(asked.hours)]
    looks = []
    with subprocess.Popen(me, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            looks.append(json.loads(line))
            words = "{clock_s:8.0f} s  engine {engine:6.1f} MiB  console {console:6.1f} MiB  {records:.0%} recorded"
            print(words.format(**looks[-1]), flush=True)
    settled = next((look for look in looks if look["clock_s"] >= SETTLED_S), None)
    if settled is None or settled is looks[-1]:
        print("no verdict: run for longer than half an hour")
        return 1
    grown = {name: looks[-1][name] / settled[name] - 1 for name in ("engine", "console")}
    met = all(share <= AIM for share in grown.values())
    if asked.json:
        Path(asked.json).write_text(json.dumps({"looks": looks, "grown": grown, "met": met}))
    words = ", ".join(f"{name} {share:+.1%}" for name, share in grown.items())
    print(
        f"memory after {SETTLED_S / 60:.0f} min to the end: {words}, aim {AIM:.0%}: {'MET' if met else 'NOT MET'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
