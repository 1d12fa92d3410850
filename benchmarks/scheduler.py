"""What the scheduler spends on a case: add + schedule + update per step, best of three.

    python benchmarks/scheduler.py CASE.json [--telemetry] [--rounds 3] [--peer COMMAND]

Requests come with the keys of their prompts' blocks, as vLLM's do: there, hashing a prompt is the front end's work
and not in the peer's time either; `--hash-in-add` counts it. `--telemetry` adds building and encoding each step's
record and handing it to a sink. The model's own time is left out. `--peer` is a command that times another
scheduler on the same case and prints such a line itself; it runs in turn with ours, and the ratio of best rounds
is printed. The last line is JSON with `steps` and `us_per_step`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import time
from pathlib import Path

import msgspec
from schedtop.engine.golden.case import Case, CaseRequest, prompt_tokens, read_case
from schedtop.engine.golden.replay import CaseModel
from schedtop.engine.handoff.request import Request
from schedtop.engine.kv.prefix_cache import extend_keys
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.step.garbage import calm_collector
from schedtop.engine.step.observer import Observer, Timing


def run(case: Case, prompts: list[Request], telemetry: bool) -> tuple[int, float]:
    """Steps, and seconds spent in the scheduler (and its telemetry)."""
    scheduler, model = Scheduler(case.config), CaseModel(case.config.num_speculative_tokens)
    observer, encoder, handed_over = Observer(scheduler), msgspec.msgpack.Encoder(), 0
    arrivals: dict[int, list[tuple[int, Request]]] = {}
    for ordinal, (asked, request) in enumerate(zip(case.requests, prompts, strict=True)):
        arrivals.setdefault(asked.arrival_step, []).append((ordinal, request))
    last, step, steps, spent_s = max(arrivals), 0, 0, 0.0
    clock = time.perf_counter
    while step <= last or scheduler.num_unfinished:
        now_s = float(step)
        for ordinal, request in arrivals.get(step, ()):
            began = clock()
            refusal = scheduler.add(request)
            if telemetry:
                observer.note_arrival(request, refusal)
            spent_s += clock() - began
            model.add(request.number, ordinal)
        step += 1
        if not scheduler.num_unfinished:
            continue
        steps += 1
        began = clock()
        plan = scheduler.schedule(now_s)
        spent_s += clock() - began
        result = model.execute(plan)
        began = clock()
        settled = scheduler.update(plan, result, now_s)
        if telemetry:
            record = observer.record(plan, settled, Timing(now_s, now_s, 0.0, 0.0, 0.0), 0, False)
            handed_over += len(encoder.encode(record))
        else:
            scheduler.state.kv.pool.discard_changes()
        spent_s += clock() - began
    return steps, spent_s


def make_requests(asked: list[CaseRequest], block_size: int | None = None) -> list[Request]:
    """Fresh requests; with `block_size`, their prompts are hashed already."""
    requests = [
        Request(ask.id, prompt_tokens(ask), ask.max_tokens, ask.arrival_step + ordinal * 1e-6, ask.priority)
        for ordinal, ask in enumerate(asked)
    ]
    if block_size is not None:
        for request in requests:
            extend_keys(request, request.num_prompt_tokens // block_size, block_size)
    return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=Path)
    parser.add_argument("--telemetry", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", metavar="COMMAND")
    parser.add_argument("--hash-in-add", action="store_true")
    options = parser.parse_args()
    case = read_case(options.case)
    best, peers = float("inf"), []
    for _ in range(options.rounds):
        hashed = case.config.enable_prefix_caching and not options.hash_in_add
        prompts = make_requests(case.requests, case.config.block_size if hashed else None)
        calm_collector()
        steps, spent_s = run(case, prompts, options.telemetry)
        best = min(best, spent_s / steps * 1e6)
        if options.peer:
            peers.append(run_peer(options.peer))
    figures = {"case": case.name, "telemetry": options.telemetry, "steps": steps, "us_per_step": round(best, 2)}
    if peers:
        figures |= {"peer_us_per_step": min(peers), "times_faster": round(min(peers) / best, 2)}
    print(json.dumps(figures))


def run_peer(command: str) -> float:
    """Microseconds per step, from the last line that the peer prints."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["us_per_step"])


if __name__ == "__main__":
    main()
