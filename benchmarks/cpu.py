"""Output tokens per second on a CPU against vLLM: same weights, same prompts, same machine, turn by turn.

    python benchmarks/cpu.py [--peer-python PYTHON] [--model smollm2] [--rounds 3] [--modes eager,compiled]

32 requests of 20 to 300 words, 64 tokens out, 8 at a time, greedy, end tokens ignored, bfloat16, each engine
through its own Python API in a process of its own. Rounds alternate, so that what else runs on the machine meets
all alike; every round has new prompts. PYTHON is one that has vLLM; without it only this engine is measured.
One table of medians over the rounds comes last. Tokens per second of CPU time, all threads together, hardly
depend on what else the machine does; waiting threads spin, so compare them under OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COLUMNS = {
    "tokens_per_s": ("output tokens/s", ".1f"),
    "tokens_per_cpu_s": ("per CPU second", ".1f"),
    "ttft_ms": ("TTFT p50 ms", ".0f"),
    "itl_ms": ("ITL p50 ms", ".1f"),
    "itl_p99_ms": ("ITL p99 ms", ".1f"),
    "load_s": ("load s", ".1f"),
    "peak_mb": ("peak MB", ".0f"),
}


class Child:
    """An engine in a process of its own, loaded and warm."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.rounds: list[dict[str, float]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE
        )
        started = self._answer()
        self._load_s, self.device = started["load_s"], started.get("device", "")

    def run(self, count: int, max_tokens: int, seed: int) -> None:
        """Measure one round."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {max_tokens} {seed}\n")
        self._process.stdin.flush()
        self.rounds.append({**self._answer(), "load_s": self._load_s})

    def median(self, figure: str) -> float:
        return statistics.median(each[figure] for each in self.rounds)

    def end(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            sys.exit(f"{self.name} ended:\n{errors[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve_ours(model: str, concurrency: int, speculation: int) -> None:
    """This engine's side, in the child."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began_s = time.perf_counter()
    import numpy as np
    from cpu_load import Meter, Tokens, obey
    from schedtop.engine.build import build_engine
    from schedtop.engine.contract.config import EngineConfig
    from schedtop.engine.handoff.request import Request

    scheduler = {
        "max_num_seqs": concurrency,
        "max_num_batched_tokens": 2048,
        "max_model_len": 2048,
        "num_speculative_tokens": speculation,
    }
    engine = build_engine(
        EngineConfig(device="cpu", model=model, dtype="bfloat16", workload=None, scheduler=scheduler)
    )
    worker: Any = engine.worker
    tokenizer = worker.info.tokenizer
    live: dict[int, Request] = {}

    def submit(name: str, prompt: str, max_tokens: int) -> None:
        request = Request(name, tokenizer.encode(prompt), max_tokens, arrival_s=engine.clock_s)
        engine.submit(request)
        live[request.number] = request

    def step() -> list[Tokens]:
        record = engine.step()
        assert record is not None
        made: dict[int, int] = {}
        rows = np.frombuffer(record.rows, dtype=np.int32).reshape(9, -1)
        for number, emitted in zip(rows[0].tolist(), rows[6].tolist(), strict=True):
            made[number] = tokens[number] = tokens.get(number, 0) + emitted
        return [(live[number].id, count) for number, count in made.items()]

    tokens: dict[int, int] = {}
    obey(Meter(submit, step, concurrency), time.perf_counter() - began_s, out, worker.info.device)


def weights_folder(model: str) -> str:
    """The folder both engines load; a pulled model is expanded first."""
    import torch
    from schedtop.engine.runner.loading.convert_gguf import convert
    from schedtop.engine.runner.loading.model_files import find_model

    files = find_model(model)
    return files.source if files.gguf is None else convert(files, torch.bfloat16).source


def ratio(ours: Child, other: Child, figure: str) -> float:
    """Median over the rounds of ours over the other's."""
    return statistics.median(a[figure] / b[figure] for a, b in zip(ours.rounds, other.rounds, strict=True))


def print_table(children: list[Child]) -> None:
    head = ["engine", *(title for title, _ in COLUMNS.values())]
    if len(children) > 1:
        head += ["schedtop's tokens/s over it", "and per CPU second"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for child in children:
        cells = [child.name, *(format(child.median(name), form) for name, (_, form) in COLUMNS.items())]
        if len(children) > 1:
            cells += [
                format(ratio(children[0], child, name), ".2f") for name in ("tokens_per_s", "tokens_per_cpu_s")
            ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python with vLLM")
    parser.add_argument("--modes", default="eager,compiled", help="of the peer, to compare with")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--speculation", type=int, default=0, help="draft tokens in one more row of this engine")
    parser.add_argument("--serve-ours", nargs=2, metavar=("MODEL", "DRAFTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_ours:
        serve_ours(options.serve_ours[0], options.concurrency, int(options.serve_ours[1]))
        return
    model, concurrency = weights_folder(options.model), str(options.concurrency)
    ours = [sys.executable, str(HERE / "cpu.py"), "--concurrency", concurrency, "--serve-ours", model]
    children = [Child("schedtop", [*ours, "0"])]
    if options.speculation:
        children.append(Child(f"schedtop, {options.speculation} drafts", [*ours, str(options.speculation)]))
    for mode in options.modes.split(",") if options.peer_python else []:
        command = [options.peer_python, str(HERE / "cpu_vllm.py"), model, concurrency, mode]
        children.append(Child(f"vLLM, {mode}", command))
    for seed in range(options.rounds):
        for child in children:
            child.run(options.requests, options.max_tokens, seed)
            print(
                f"round {seed + 1}: {child.name} {child.rounds[-1]['tokens_per_s']:.1f} tokens/s", file=sys.stderr
            )
    for child in children:
        child.end()
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"\n{os.cpu_count()} cores, OMP_NUM_THREADS={threads}; schedtop on {children[0].device}\n")
    print_table(children)


if __name__ == "__main__":
    main()
