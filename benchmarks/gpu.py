# mypy: allow-untyped-calls
"""Correctness and speed of the kernels on the GPU at hand, in one go of nine minutes at most.

    python benchmarks/gpu.py [--json FILE]   measure; the verdicts come last
    python benchmarks/gpu.py --interpret     tiny sizes through Triton's interpreter: proves this script, times nothing

Needs torch, Triton, NumPy and transformers, and runs from a checkout that is not installed. The worker's whole steps
come first. Every speed stands beside a yardstick measured in the same run: a device-to-device copy for what moves
bytes, a matrix product for what multiplies, `scaled_dot_product_attention` for prefill. Times are medians over replays
of a CUDA graph that holds one call per input set, so that launches cost no host time and caches stay cold. Exits 0
where every aim is met and every result right, else 1; 2 where there is nothing to measure on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import torch
except ImportError:
    print("torch is not installed: nothing to measure.")
    sys.exit(2)

try:
    from schedtop import kernels
except ImportError:
    # Not installed: map the import root onto the checkout, as the packaging does.
    package = types.ModuleType("schedtop")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["schedtop"] = package
    from schedtop import kernels

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_parts.bench import FULL, TIME_LIMIT_S, TINY, Bench, Row
from gpu_parts.correctness import check_attention, check_elementwise, check_sampling
from gpu_parts.llama import measure_model
from gpu_parts.speed import (
    measure_copy,
    measure_decode,
    measure_elementwise,
    measure_matmul,
    measure_prefill,
    measure_sampling,
)
from gpu_parts.stand_in import stand_in_for_msgspec
from gpu_parts.worker import measure_worker

PARTS: tuple[Callable[[Bench], None], ...] = (
    measure_copy,
    measure_matmul,
    measure_worker,
    measure_decode,
    measure_prefill,
    check_attention,
    check_elementwise,
    check_sampling,
    measure_elementwise,
    measure_sampling,
    measure_model,
)


def run_parts(bench: Bench) -> None:
    for part in PARTS:
        if time.monotonic() - bench.started > 0.9 * TIME_LIMIT_S:
            bench.add(Row(part.__name__, note="left out: no time left"))
            continue
        try:
            part(bench)
        except Exception as problem:
            bench.failures += 1
            bench.add(Row(part.__name__, note=f"FAILED {type(problem).__name__}: {str(problem)[:160]}"))
        if not bench.interpreted:
            torch.cuda.empty_cache()


def print_table(bench: Bench) -> None:
    cells = [("what", "ms", "rate", "share", "note")]
    cells += [
        (row.what, "" if row.ms is None else f"{row.ms:.3f}", row.rate, row.share, row.note) for row in bench.rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    print()
    for what, ms, rate, share, note in cells:
        line = f"{what:<{widths[0]}}  {ms:>{widths[1]}}  {rate:>{widths[2]}}  {share:<{widths[3]}}  {note}"
        print(line.rstrip())


def write_json(bench: Bench, title: str, file: Path) -> None:
    """Everything that the run found, for a machine."""
    found = {
        "title": title,
        "interpreted": bench.interpreted,
        "seconds": round(time.monotonic() - bench.started, 1),
        "failures": bench.failures,
        "rows": [asdict(row) for row in bench.rows],
        "aims": [{**asdict(aim), "verdict": aim.verdict} for aim in bench.aims],
    }
    file.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--interpret", action="store_true", help="tiny sizes on the CPU; proves the script only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and verdicts there as well")
    options = parser.parse_args()
    device = torch.device("cpu" if options.interpret else "cuda")
    reason = kernels.unavailable_reason(device)
    if reason is not None:
        print(f"{reason}: nothing to measure.")
        return 2
    import triton

    stand_in_for_msgspec()
    bench = Bench(device, TINY if options.interpret else FULL, options.interpret)
    name = "Triton's interpreter, times mean nothing" if options.interpret else torch.cuda.get_device_name()
    title = f"{name}; torch {torch.__version__}, triton {triton.__version__}"
    print(title, flush=True)
    with torch.inference_mode():
        run_parts(bench)
    bench.reach("results", 1 - bench.failures / max(bench.checks, 1))
    print_table(bench)
    print(f"\n{title}; {time.monotonic() - bench.started:.0f} s; {bench.failures} failed\n")
    if options.json is not None:
        write_json(bench, title, options.json)
    print("\n".join(aim.as_line() for aim in bench.aims))
    met = options.interpret or all(aim.verdict == "MET" for aim in bench.aims)
    return 0 if met and not bench.failures else 1


if __name__ == "__main__":
    sys.exit(main())
