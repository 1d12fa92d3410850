"""When drafts by prompt look-up help and when they cost, on a CPU.

    python benchmarks/speculation.py [--model smollm2] [--drafts 4] [--max-tokens 48]

Repetitive text (a list to be gone on with, greedy) and free text (sampled at temperature 1), 1 and 16 requests at
a time, without drafts and with. Tokens per second of CPU time hardly depend on what else the machine does; waiting
threads spin, so run it under OMP_NUM_THREADS=1. Outputs with drafts must be those without. One table comes last.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from typing import Any

from cpu_load import make_prompts
from schedtop.engine.build import build_engine
from schedtop.engine.config import EngineConfig
from schedtop.engine.engine import Engine
from schedtop.engine.request import Request, SamplingParams


@dataclass(frozen=True)
class Outcome:
    """One run: outputs in order, their tokens per CPU second, steps, drafts and how many were rejected."""

    outputs: list[list[int]]
    tokens_per_cpu_s: float
    steps: int
    scheduled: int
    drafts: int
    rejected: int

    @property
    def accepted(self) -> float:
        return 1 - self.rejected / self.drafts if self.drafts else 0.0


def repetitive_prompts(count: int) -> list[str]:
    """Lists of numbered lines that a model goes on with."""
    names = ["red fox", "blue whale", "green frog", "black bear", "white owl", "grey wolf"]
    prompts = []
    for seed in range(count):
        name = random.Random(seed).choice(names)
        prompts.append("".join(f"{line}. The {name} number {line} sleeps.\n" for line in range(1, 9)))
    return prompts


def run(
    engine: Engine, prompts: list[str], concurrency: int, drafts: int, max_tokens: int, temperature: float
) -> Outcome:
    """Serve `prompts` under the knobs given."""
    tokenizer: Any = engine.worker.info.tokenizer  # type: ignore[attr-defined]
    engine.set_knobs(
        {"num_speculative_tokens": drafts, "max_num_seqs": concurrency, "enable_prefix_caching": False}
    )
    requests = [
        Request(str(i), tokenizer.encode(prompt), max_tokens, sampling=SamplingParams(temperature, seed=i))
        for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.submit(request)
    before = engine.observer.totals()
    counts = (before.steps, before.scheduled_tokens, before.draft_tokens, before.rejected_draft_tokens)
    began_s = time.process_time()
    while engine.num_unfinished:
        record = engine.step()
    spent_s = time.process_time() - began_s
    assert record is not None
    after = record.totals
    now = (after.steps, after.scheduled_tokens, after.draft_tokens, after.rejected_draft_tokens)
    steps, scheduled, drafted, rejected = (b - a for a, b in zip(counts, now, strict=True))
    outputs = [list(request.output_token_ids) for request in requests]
    return Outcome(outputs, sum(map(len, outputs)) / spent_s, steps, scheduled, drafted, rejected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    scheduler = {"max_num_batched_tokens": 512, "max_model_len": 2048, "max_num_seqs": 16}
    # float32: what a batch is made of changes roundings, which in half precision can turn a near tie
    engine = build_engine(
        EngineConfig(device="cpu", model=options.model, dtype="float32", workload=None, scheduler=scheduler)
    )
    run(engine, make_prompts(2, 5), 2, 0, 4, 0.0)
    head = ("text", "at a time", "tokens/CPU s", "with drafts", "gain", "steps", "with drafts")
    print("| " + " | ".join((*head, "accepted", "rejected of batch")) + " |")
    print("|" + "---|" * 9)
    texts = (("repetitive", repetitive_prompts(16), 0.0), ("free", make_prompts(16, 7), 1.0))
    for text, prompts, temperature in texts:
        for concurrency in (1, 16):
            chosen = prompts if concurrency > 1 else prompts[:3]
            plain = run(engine, chosen, concurrency, 0, options.max_tokens, temperature)
            drafted = run(engine, chosen, concurrency, options.drafts, options.max_tokens, temperature)
            assert drafted.outputs == plain.outputs, "drafts changed an output"
            gain = drafted.tokens_per_cpu_s / plain.tokens_per_cpu_s
            print(
                f"| {text} | {concurrency} | {plain.tokens_per_cpu_s:.1f} | {drafted.tokens_per_cpu_s:.1f}"
                f" | {gain:.2f} | {plain.steps} | {drafted.steps} | {drafted.accepted:.0%}"
                f" | {drafted.rejected / drafted.scheduled:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
