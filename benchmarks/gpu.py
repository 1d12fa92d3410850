# mypy: allow-untyped-calls
"""Correctness and speed of the kernels on the GPU at hand, in one go of under four minutes.

    python benchmarks/gpu.py              measure, print one table last
    python benchmarks/gpu.py --interpret  tiny sizes through Triton's interpreter: proves this script, times nothing

Every speed stands beside a yardstick measured in the same run: a device-to-device copy for what moves bytes, a
matrix product for what multiplies, `scaled_dot_product_attention` for prefill. Times are medians over replays of
a CUDA graph that holds one call per input set, so that launches cost no host time and caches stay cold. Exits 1
when a result is wrong or a part failed, 0 otherwise, also without a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import torch
except ImportError:
    print("torch is not installed: nothing to measure.")
    sys.exit(0)

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
from gpu_parts.worker import measure_worker

PARTS: tuple[Callable[[Bench], None], ...] = (
    measure_copy,
    measure_matmul,
    check_elementwise,
    check_sampling,
    check_attention,
    measure_decode,
    measure_prefill,
    measure_elementwise,
    measure_sampling,
    measure_model,
    measure_worker,
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


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--interpret", action="store_true", help="tiny sizes on the CPU; proves the script only")
    interpret = parser.parse_args().interpret
    device = torch.device("cpu" if interpret else "cuda")
    reason = kernels.unavailable_reason(device)
    if reason is not None:
        print(f"{reason}: nothing to measure.")
        return 0
    import triton

    bench = Bench(device, TINY if interpret else FULL, interpret)
    name = "Triton's interpreter, times mean nothing" if interpret else torch.cuda.get_device_name()
    title = f"{name}; torch {torch.__version__}, triton {triton.__version__}"
    print(title, flush=True)
    with torch.inference_mode():
        run_parts(bench)
    print_table(bench)
    print(f"\n{title}; {time.monotonic() - bench.started:.0f} s; {bench.failures} failed")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
