"""What the scheduler spends on a case: add + schedule + update per step, best of three.

    python benchmarks/scheduler.py CASE.json [--telemetry] [--rounds 3]

`--telemetry` adds building and encoding each step's record and handing it to a sink. The model's own time is left
out. The last line is JSON with `steps` and `us_per_step`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path

import msgspec
from schedtop.engine.golden import Case, CaseModel, CaseRequest, prompt_tokens, read_case
from schedtop.engine.observer import Observer, Timing
from schedtop.engine.request import Request
from schedtop.engine.scheduler.scheduler import Scheduler


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


def make_requests(asked: list[CaseRequest]) -> list[Request]:
    return [
        Request(ask.id, prompt_tokens(ask), ask.max_tokens, ask.arrival_step + ordinal * 1e-6, ask.priority)
        for ordinal, ask in enumerate(asked)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=Path)
    parser.add_argument("--telemetry", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    case = read_case(options.case)
    best = None
    for _ in range(options.rounds):
        prompts = make_requests(case.requests)
        gc.collect()
        steps, spent_s = run(case, prompts, options.telemetry)
        best = min(spent_s, best or spent_s)
    figures = {"case": case.name, "telemetry": options.telemetry, "steps": steps}
    print(json.dumps({**figures, "us_per_step": round(best / steps * 1e6, 2)}))


if __name__ == "__main__":
    main()
