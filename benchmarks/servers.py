"""Simulated servers beside measured ones: whole loads through the command line.

    python benchmarks/servers.py [--every N] [--held-out] [--seconds S] [--step-cost both] [EXPERIMENT…]

`measured_servers/servers.csv` holds loads on real vLLM 0.15.1 servers, published by the inference-sim project. Each is
written as a trace and served by `schedtop run --device sim:…`; printed are the errors of E2E and TTFT (mean, p90, p99)
and of the time per output token, by load, and their medians by GPU and kind of model.

The constants of `engine/sim/devices.py` come from `fit_step_times.py`, which sees every other load of the table; the
rest are held out and reported apart. `--step-cost both` adds operator tables, on the loads that these know.
Times are the client's, so the simulated ones include the front end.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "measured_servers"
METRICS = ("e2e_mean", "e2e_p90", "e2e_p99", "ttft_mean", "ttft_p90", "ttft_p99")
PEERS = """Median |error| in % of published simulators on 38 loads of the same project, E2E and TTFT means: BLIS 6.8
and 18, LLMServingSim 18.8 and 73, aiconfigurator 21.5 and 662, llm-optimizer 51.7 and 662, Vidur 619 and 29,783."""


@dataclass(frozen=True)
class Load:
    """One measured experiment: how it was served, its stages (requests/s, seconds) and its metrics in ms."""

    name: str
    row: dict[str, str]
    measured_ms: dict[str, float]

    @property
    def stages(self) -> list[tuple[float, float]]:
        rates, seconds = (self.row[key].split("/") for key in ("rate_per_s", "seconds"))
        return [(float(rate), float(length)) for rate, length in zip(rates, seconds, strict=True)]

    @property
    def is_mixture(self) -> bool:
        return "experts" in (FOLDER / "models" / f"{self.row['model']}.json").read_text()

    @property
    def fitted(self) -> bool:
        """Every other load of the table, in its order."""
        return LOADS.index(self.name) % 2 == 0


def read_loads() -> dict[str, Load]:
    found: dict[str, Load] = {}
    for row in csv.DictReader((FOLDER / "servers.csv").open()):
        if row["stage"] == "all":
            load = found.setdefault(row["experiment"], Load(row["experiment"], row, {}))
            load.measured_ms[row["metric"]] = float(row["measured_ms"])
    return found


LOADS = list(read_loads())


def requests(load: Load, most_s: float, seed: int = 1) -> Iterator[dict[str, object]]:
    """The load as rows of a trace: 100 fixed prompts (10 system prompts, 10 questions each) round robin.

    Of a shorter first stage fewer prompts, so that the same share of them is new.
    """
    prompt, output, system = (int(load.row[f"{name}_tokens"]) for name in ("prompt", "output", "system"))
    rng = random.Random(seed)
    blocks = -(-prompt // 16)
    ids = [
        [
            group * 1000 + i if (i + 1) * 16 <= system else 100_000 + (group * 10 + ask) * 1000 + i
            for i in range(blocks)
        ]
        for group in range(10)
        for ask in range(10)
    ]
    rng.shuffle(ids)
    ids = ids[: math.ceil(len(ids) * min(1.0, most_s / load.stages[0][1]))]
    start_s, sent = 0.0, 0
    for rate, seconds in load.stages:
        length_s = min(seconds, most_s)
        gaps = [rng.expovariate(rate) for _ in range(int(rate * length_s))]
        now_s, scale = start_s, length_s / sum(gaps)
        for gap in gaps:
            now_s += gap * scale
            yield {
                "timestamp": round(now_s * 1000, 3),
                "input_length": prompt,
                "output_length": output,
                "hash_ids": ids[sent % len(ids)],
            }
            sent += 1
        start_s += length_s + 0.5


def simulate(load: Load, most_s: float, step_cost: str) -> dict[str, float] | None:
    """The simulated server's figures in ms, as its client sees them; None where it cannot be priced so."""
    row = load.row
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "load.jsonl"
        trace.write_text("".join(json.dumps(line) + "\n" for line in requests(load, most_s)))
        command = [
            sys.executable,
            "-P",
            "-c",
            "from schedtop.console.cli.main import main; main()",
            "run",
            "--json",
            "--async-scheduling",
            "--step-cost",
            step_cost,
        ]
        command += ["--device", f"sim:{FOLDER / 'models' / row['model']}.json@{row['gpu']}", "-tp", row["tp"]]
        command += ["--workload", str(trace), "--prefix-block-tokens", "16", "--max-model-len", "4096"]
        command += [
            "--max-num-batched-tokens",
            row["max_num_batched_tokens"],
            "--max-num-seqs",
            row["max_num_seqs"],
        ]
        command += ["--gpu-memory-utilization", row["gpu_memory_utilization"]]
        command += ["--num-blocks", row["kv_blocks"]] if row["kv_blocks"] else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr) if done.returncode != 2 else print(done.stderr, end="", flush=True)
            return None
        report = json.loads(done.stdout)
    figures = {}
    for name in ("ttft", "e2e"):
        latency = report.get(f"client_{name}_s") or report[f"{name}_s"]
        figures |= {f"{name}_{kind}": latency[kind] * 1e3 for kind in ("mean", "p90", "p99")}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="most of each stage that is served")
    parser.add_argument("--every", type=int, default=1, help="serve every N-th load only")
    parser.add_argument("--held-out", action="store_true", help="serve the loads that were not fitted only")
    parser.add_argument("--step-cost", default="roofline", choices=["roofline", "operators", "both"])
    parser.add_argument("experiments", nargs="*", help="these loads instead of all")
    options = parser.parse_args()
    loads = read_loads()
    names = options.experiments or LOADS[:: options.every]
    names = [name for name in names if not (options.held_out and loads[name].fitted)]
    costs = ["operators", "roofline"] if options.step_cost == "both" else [options.step_cost]
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    print(f"{'load':<18}{'model':<20}{'gpu':<6}{'tp':>3}  {'':<9}" + "".join(f"{name:>11}" for name in METRICS))
    for name in names:
        load = loads[name]
        for cost in costs:
            figures = simulate(load, options.seconds, cost)
            if figures is None:
                break  # operator tables come first: what they do not know is not compared
            off = {metric: figures[metric] / load.measured_ms[metric] - 1 for metric in METRICS}
            kind = "fitted" if load.fitted else "held out"
            row = load.row
            print(
                f"{name:<18}{row['model']:<20}{row['gpu']:<6}{row['tp']:>3}  {kind:<9}"
                + "".join(f"{off[metric]:>+11.1%}" for metric in METRICS)
                + (f"  {cost}" if len(costs) > 1 else ""),
                flush=True,
            )
            for group in ("all", kind, row["gpu"], "mixture" if load.is_mixture else "dense"):
                for metric in METRICS:
                    errors[f"{group} {cost}" if len(costs) > 1 else group][metric].append(abs(off[metric]))
    print("\nmedian |error|")
    for group, by_metric in errors.items():
        cells = "".join(f"{statistics.median(by_metric[metric]):>11.1%}" for metric in METRICS)
        print(f"{group:<20}{len(by_metric['e2e_mean']):>3} loads{'':<28}{cells}")
    print("\n" + PEERS)


if __name__ == "__main__":
    main()
