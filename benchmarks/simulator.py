"""How long simulated hours take, and that time grows linearly with the work.

    python benchmarks/simulator.py [--trace AzureLLMInferenceTrace_code.csv] [--requests 19000]

CPU seconds of this process, on one core: a public trace if there is one, then the first eighth, quarter and half of
an hour of conversation (19,000 requests, means 1,150 in and 210 out) and all of it. The last line is JSON with every
figure.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.offline.headless import run_headless

DEVICE = "sim:llama-3.1-8b@h100"
HOUR_S = 3600.0
MEAN_IN, MEAN_OUT = 1150, 210


def conversation(path: Path, requests: int) -> None:
    """Write a trace of `requests` over an hour of 19,000: Poisson arrivals, log-normal lengths."""
    rng = np.random.default_rng(7)
    times = np.cumsum(rng.exponential(HOUR_S / 19_000, requests))
    lengths = [_log_normal(rng, mean, sigma, requests) for mean, sigma in ((MEAN_IN, 0.9), (MEAN_OUT, 0.7))]
    with path.open("w") as file:
        file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        for time_s, prompt, output in zip(times, *lengths, strict=True):
            file.write(f"{time_s:.6f},{prompt},{output}\n")


def _log_normal(rng: np.random.Generator, mean: float, sigma: float, count: int) -> list[int]:
    drawn = np.exp(rng.normal(0.0, sigma, count))
    return np.clip(drawn * mean / drawn.mean(), 8, 16_000).astype(int).tolist()  # type: ignore[no-any-return]


def measure(name: str, source: Path, limit: int | None) -> dict[str, Any]:
    """Serve a trace to its end on simulated time."""
    config = EngineConfig(device=DEVICE, workload=WorkloadSpec(source=str(source), limit=limit))
    gc.collect()
    began_s = time.process_time()
    report = run_headless(config, None, notice=lambda line: None)
    cpu_s, totals = time.process_time() - began_s, report.totals
    row = {"name": name, "requests": totals.finished + totals.refused, "steps": totals.steps, "cpu_s": cpu_s}
    row["clock_s"] = report.clock_s
    row |= {"scheduled_tokens": totals.scheduled_tokens, "us_per_step": cpu_s / totals.steps * 1e6}
    print(
        f"{name:<20}{row['requests']:>7,} requests{totals.steps:>9,} steps{report.clock_s:>7,.0f} s simulated in"
        f"{cpu_s:>7.2f} s{row['us_per_step']:>8.1f} µs/step",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parents[2] / "shared/traces/AzureLLMInferenceTrace_code.csv"
    parser.add_argument("--trace", type=Path, default=default)
    parser.add_argument("--requests", type=int, default=19_000)
    options = parser.parse_args()
    rows = []
    if options.trace.exists():
        rows.append(measure(options.trace.stem.removeprefix("AzureLLMInference"), options.trace, None))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversation.csv"
        conversation(path, options.requests)
        parts = [measure(f"conversation 1/{part}", path, options.requests // part) for part in (8, 4, 2, 1)]
    growth = [
        (after["cpu_s"] / before["cpu_s"]) / (after["steps"] / before["steps"])
        for before, after in itertools.pairwise(parts)
    ]
    print(
        "CPU time per doubling of the work, over that of its steps:", ", ".join(f"{ratio:.2f}" for ratio in growth)
    )
    print(json.dumps({"runs": rows + parts, "growth": growth}))


if __name__ == "__main__":
    main()
