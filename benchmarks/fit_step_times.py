"""Fits the few constants of a step's time, and of the front end, to half of the measured servers and to public points.

    python benchmarks/fit_step_times.py

A server under a steady load is a fixed point: the batch is rate x outputs x time per token, and the step's time follows
from the batch. A request that arrives while a step runs waits for its end and for the step planned behind it; the next
one is its own. No scheduler run is needed, so the fit takes seconds. `servers.py` then serves the other half whole.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.sim.devices import GPUS, Gpu
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.model_config import read_shape
from schedtop.engine.sim.models import MODELS, ModelShape
from schedtop.engine.sim.roofline import Roofline

FOLDER = Path(__file__).parent / "measured_servers"
START = {
    "kv_share": 0.9,
    "layer_s": 50e-6,
    "expert_layer_s": 25e-6,
    "prefill_layer_s": 50e-6,
    "logit_s": 60e-12,
    "link_latency_s": 3e-6,
    "front_end_s": 4e-3,
    "front_end_row_s": 40e-6,
}
"""What is fitted, on an H100. `weights_share` is not: it cannot be told from a cost per layer; nor `front_end_token_s`:
the prompts are too alike."""
DECODES_MS = {  # qwen3-8b, one H100, vLLM 0.30 (benchmarks/device_points.toml): (rows, mean context)
    (1, 640): 6.86,
    (32, 640): 8.11,
    (64, 640): 9.49,
    (128, 640): 12.00,
    (16, 3072): 9.46,
    (32, 3072): 11.87,
}
POINT_WEIGHT = 4
"""A point of a newer engine, measured with nothing else going on, counts as much as so many loads."""
NUM_PROMPTS = 100
"""Different prompts of a load; the first time each comes, it is computed."""
CARE = 0.03
"""Errors beyond this count linearly: no single server pulls the constants its way."""
PRIOR = 0.03
"""Weight of the log of each constant over its start: what the servers cannot tell stays there."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """A steady load on a measured server: its time per output token and its mean TTFT, None where kernels were still
    being compiled (a mixture's first stage). `new_share` of the prompts are not in the cache."""

    shape: ModelShape
    gpu: str
    ranks: int
    rate_per_s: float
    prompt: int
    system: int
    output: int
    new_share: float
    tpot_ms: float
    ttft_ms: float | None


def read_stages() -> tuple[list[Stage], list[Stage]]:
    """The stages of every other experiment, and those of the rest."""
    rows = [row for row in csv.DictReader((FOLDER / "servers.csv").open()) if row["stage"] != "all"]
    order = list(dict.fromkeys(row["experiment"] for row in rows))
    measured = {(row["experiment"], row["stage"], row["metric"]): float(row["measured_ms"]) for row in rows}
    halves: tuple[list[Stage], list[Stage]] = ([], [])
    for row in rows:
        if row["metric"] == "tpot_from_e2e":
            name, place = row["experiment"], row["stage"]
            shape, first = read_shape(FOLDER / "models" / f"{row['model']}.json"), place == "0"
            num_sent = float(row["rate_per_s"]) * float(row["seconds"])
            stage = Stage(
                shape,
                row["gpu"],
                int(row["tp"]),
                float(row["rate_per_s"]),
                int(row["prompt_tokens"]),
                int(row["system_tokens"]),
                int(row["output_tokens"]),
                NUM_PROMPTS / num_sent if first else 0.0,
                float(row["measured_ms"]),
                None if first and shape.experts else measured[name, place, "ttft_mean"],
            )
            halves[order.index(name) % 2].append(stage)
    return halves


def steady_ms(stage: Stage, gpu: Gpu) -> tuple[float, float]:
    """Time per output token and a client's TTFT once arrivals and completions balance."""
    cost, step_s = Roofline(stage.shape, gpu, stage.ranks), 0.01
    new_tokens = stage.prompt - (stage.prompt - 1) // 16 * 16  # of a prompt that is cached but for its last block
    for _ in range(60):
        decodes = min(128.0, stage.rate_per_s * stage.output * step_s)
        arriving = stage.rate_per_s * step_s
        context = decodes * (stage.prompt + stage.output / 2) + arriving * stage.prompt
        rows = decodes + arriving
        quiet = float(cost.step_s(StepFeatures(decodes, 0, context, rows)))
        busy = float(cost.step_s(StepFeatures(decodes + new_tokens, 1, context, rows + 1)))
        has_prompts = 1 - math.exp(-arriving)
        step_s = (step_s + quiet + has_prompts * (busy - quiet)) / 2
    whole = stage.prompt - stage.system
    pairs = whole * (stage.system + stage.prompt) / 2
    first = float(cost.step_s(StepFeatures(decodes + whole, pairs, context + stage.prompt, rows + 1)))
    rest_s = ((1 - has_prompts) * quiet**2 + has_prompts * busy**2) / (2 * step_s)  # of the step it arrives in
    ttft_s = rest_s + step_s + busy + stage.new_share * (first - busy)
    front_end_s = gpu.front_end_s + decodes * gpu.front_end_row_s + stage.prompt * gpu.front_end_token_s
    return step_s * 1e3, (ttft_s + front_end_s) * 1e3


def server_errors(gpu: Gpu, stages: Sequence[Stage]) -> tuple[list[float], list[float]]:
    """Log errors of the times per token, and of the TTFTs, of stages on H100s."""
    tpot, ttft = [], []
    for stage in stages:
        if stage.gpu == "h100":
            tpot_ms, ttft_ms = steady_ms(stage, gpu)
            tpot.append(math.log(tpot_ms / stage.tpot_ms))
            ttft += [math.log(ttft_ms / stage.ttft_ms)] if stage.ttft_ms else []
    return tpot, ttft


def log_errors(gpu: Gpu, stages: Sequence[Stage]) -> list[float]:
    tpot, ttft = server_errors(gpu, stages)
    cost = Roofline(MODELS["qwen3-8b"], gpu)
    points = []
    for (rows, context), measured_ms in DECODES_MS.items():
        step_s = cost.step_s(StepFeatures(rows, 0, rows * context, rows))
        points.append(POINT_WEIGHT * math.log(step_s * 1e3 / measured_ms))
    return [*tpot, *ttft, *points]


def fit(stages: Sequence[Stage]) -> Gpu:
    """The constants with the least (robust) squared log error, by damped Gauss-Newton steps from START."""
    scale, num = np.array(list(START.values())), len(START)
    x, damping = np.ones(num), 1e-2

    def gpu_of(at: Floats) -> Gpu:
        return msgspec.structs.replace(GPUS["h100"], **dict(zip(START, (at * scale).tolist(), strict=True)))

    def errors_of(at: Floats) -> Floats:
        return np.array([*log_errors(gpu_of(at), stages), *(PRIOR * np.log(at))])

    def loss(at: Floats) -> float:
        return float(np.sum(np.sqrt(1 + (errors_of(at) / CARE) ** 2) - 1))

    for _ in range(40):
        errors = errors_of(x)
        slopes = np.column_stack([(errors_of(x + step) - errors) / 1e-4 for step in np.eye(num) * 1e-4])
        weights = 1 / np.sqrt(1 + (errors / CARE) ** 2)
        normal = slopes.T @ (weights[:, None] * slopes)
        move = np.linalg.solve(normal + damping * np.eye(num), -slopes.T @ (weights * errors))
        moved = np.clip(x + move, 0.02, 10.0)
        moved[0] = min(moved[0], 1 / scale[0])  # a share
        if loss(moved) < loss(x):
            x, damping = moved, damping / 2
        else:
            damping *= 4
    return gpu_of(x)


def main() -> None:
    fitted, held_out = read_stages()
    gpu = fit(fitted)
    for name in START:
        print(f"{name:<18}{getattr(gpu, name):.3g}")
    for words, stages in (("fitted", fitted), ("held out", held_out)):
        for figure, errors in zip(("time per token", "TTFT"), server_errors(gpu, stages), strict=True):
            print(f"{words:<10}{len(errors):>3} stages on H100: median |error| of the {figure} ", end="")
            print(f"{math.expm1(float(np.median(np.abs(errors)))):.1%}")


if __name__ == "__main__":
    main()
