"""When drafts help and when they cost, on a CPU.

    python benchmarks/speculation.py [--model smollm2] [--drafts 4] [--max-tokens 48]
    python benchmarks/speculation.py --draft-model FOLDER
    python benchmarks/speculation.py --draft-layers 24 [--more-layers 90]

Drafts come from prompt look-up, or from a draft model: one of your own, or the model without its middle layers. With
`--more-layers` the model served is the same with so many layers more that add nothing: it stands for a large model,
says what the small one says, and takes the time of all its layers.

Repetitive text (a list to be gone on with, greedy) and free text (sampled at temperature 1), 1 and 16 requests at
a time, without drafts and with. Tokens per second of CPU time hardly depend on what else the machine does; waiting
threads spin, so run it under OMP_NUM_THREADS=1. Greedy outputs in float32 must be those without drafts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_load import make_prompts
from schedtop.engine.build import build_engine
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.handoff.request import Request
from schedtop.engine.step.engine import Engine


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


def write_variant(source: str, folder: Path, layers: int | None, more: int) -> str:
    """A model with `layers` layers, those in the middle left out, and `more` that add nothing, as a model folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    stack = list(model.model.layers)
    if layers is not None:
        stack = stack[: layers - layers // 2] + stack[len(stack) - layers // 2 :]
    for _ in range(more):
        layer = deepcopy(stack[0])
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.zeros_(linear.weight)
        stack.append(layer)
    for index, layer in enumerate(stack):
        layer.self_attn.layer_idx = index
    model.model.layers = torch.nn.ModuleList(stack)
    model.config.num_hidden_layers = len(stack)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return str(folder)


def model_folder(name: str) -> str:
    """Where a model lies as a folder; a pulled one is converted, as it is for serving."""
    import torch
    from schedtop.engine.runner.loading.convert_gguf import convert
    from schedtop.engine.runner.loading.model_files import find_model

    files = find_model(name)
    return files.source if files.gguf is None else convert(files, torch.float32).source


def choose_models(options: argparse.Namespace, work: Path) -> tuple[str, str | None]:
    """The model to serve and the one that drafts for it, as the options say; variants are written into `work`."""
    model, draft = options.model, options.draft_model
    if options.draft_layers is not None:
        draft = write_variant(model_folder(options.model), work / "draft", options.draft_layers, 0)
    if options.more_layers:
        model = write_variant(model_folder(options.model), work / "model", None, options.more_layers)
    return model, draft


def measure(model: str, draft: str | None, options: argparse.Namespace) -> None:
    """Print the table."""
    scheduler = {"max_num_batched_tokens": 512, "max_model_len": 2048, "max_num_seqs": 16}
    engine = build_engine(
        EngineConfig(
            device="cpu", model=model, draft_model=draft, dtype=options.dtype, workload=None, scheduler=scheduler
        )
    )
    run(engine, make_prompts(2, 5), 2, 0, 4, 0.0)
    head = ("text", "at a time", "tokens/CPU s", "with drafts", "gain", "steps", "with drafts")
    print(f"drafts by {engine.header.settings['drafts']}")
    print("| " + " | ".join((*head, "accepted", "rejected of batch")) + " |")
    print("|" + "---|" * 9)
    texts = (("repetitive", repetitive_prompts(16), 0.0), ("free", make_prompts(16, 7), 1.0))
    for text, prompts, temperature in texts:
        for concurrency in options.at_a_time if text in options.texts else ():
            chosen = prompts if concurrency > 1 else prompts[:3]
            plain = run(engine, chosen, concurrency, 0, options.max_tokens, temperature)
            drafted = run(engine, chosen, concurrency, options.drafts, options.max_tokens, temperature)
            compare(plain, drafted, exact=temperature == 0 and options.dtype == "float32")
            gain = drafted.tokens_per_cpu_s / plain.tokens_per_cpu_s
            print(
                f"| {text} | {concurrency} | {plain.tokens_per_cpu_s:.1f} | {drafted.tokens_per_cpu_s:.1f}"
                f" | {gain:.2f} | {plain.steps} | {drafted.steps} | {drafted.accepted:.0%}"
                f" | {drafted.rejected / drafted.scheduled:.0%} |",
                flush=True,
            )


def compare(plain: Outcome, drafted: Outcome, exact: bool) -> None:
    """Drafts change no output; but what a batch is made of changes roundings, which can turn a near tie."""
    parted = sum(ours != theirs for ours, theirs in zip(drafted.outputs, plain.outputs, strict=True))
    assert not (exact and parted), "drafts changed an output"
    if parted:
        print(f"{parted} of {len(plain.outputs)} outputs parted where rounding decided", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft-model", help="drafts come from this model")
    parser.add_argument("--draft-layers", type=int, help="drafts come from the model, cut to so many layers")
    parser.add_argument(
        "--more-layers", type=int, default=0, help="layers that the model served has beside its own"
    )
    parser.add_argument("--dtype", default="float32", help="in half precision near ties are no rarity")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--texts", nargs="+", default=["repetitive", "free"], choices=["repetitive", "free"])
    parser.add_argument("--at-a-time", nargs="+", type=int, default=[1, 16], help="requests served at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        measure(*choose_models(options, Path(work)), options)


if __name__ == "__main__":
    main()
