"""Fits the few constants of a step's time to half of the measured servers and to public decode points.

    python benchmarks/fit_step_times.py

A server under a steady load is a fixed point: the batch is rate x outputs x time per token, and the step's time follows
from the batch. No scheduler run is needed, so the fit takes seconds. `servers.py` then serves the other half whole.
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
NAMES = ("weights_share", "kv_share", "layer_s", "prefill_layer_s", "row_s", "link_latency_s")
START = (0.87, 0.9, 40e-6, 50e-6, 8e-6, 3e-6)
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
CARE = 0.03
"""Errors beyond this count linearly: no single server pulls the constants its way."""


@dataclass(frozen=True)
class Stage:
    """A steady load on a measured server, and its time per output token."""

    shape: ModelShape
    gpu: str
    ranks: int
    rate_per_s: float
    prompt: int
    output: int
    tpot_ms: float


def read_stages() -> tuple[list[Stage], list[Stage]]:
    """The stages of every other experiment, and those of the rest."""
    rows = [row for row in csv.DictReader((FOLDER / "servers.csv").open()) if row["metric"] == "tpot_from_e2e"]
    order = list(dict.fromkeys(row["experiment"] for row in rows))
    halves: tuple[list[Stage], list[Stage]] = ([], [])
    for row in rows:
        if row["stage"] != "all":
            stage = Stage(
                read_shape(FOLDER / "models" / f"{row['model']}.json"),
                row["gpu"],
                int(row["tp"]),
                float(row["rate_per_s"]),
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                float(row["measured_ms"]),
            )
            halves[order.index(row["experiment"]) % 2].append(stage)
    return halves


def steady_tpot_ms(stage: Stage, gpu: Gpu) -> float:
    """Time per output token once arrivals and completions balance; prompts are cached but for their last block."""
    cost, step_s = Roofline(stage.shape, gpu, stage.ranks), 0.01
    new_tokens = stage.prompt - (stage.prompt - 1) // 16 * 16
    for _ in range(50):
        decodes = min(128.0, stage.rate_per_s * stage.output * step_s)
        arriving = stage.rate_per_s * step_s
        context = decodes * (stage.prompt + stage.output / 2) + arriving * stage.prompt
        tokens, rows = decodes + arriving * new_tokens, decodes + arriving
        quiet = cost.step_s(StepFeatures(tokens, 0, context, rows))
        busy = cost.step_s(StepFeatures(tokens, 1, context, rows))
        has_prompts = 1 - math.exp(-arriving)
        step_s = (step_s + float(quiet + has_prompts * (busy - quiet))) / 2
    return step_s * 1e3


def log_errors(values: Sequence[float], stages: Sequence[Stage]) -> npt.NDArray[np.float64]:
    gpu = msgspec.structs.replace(GPUS["h100"], **dict(zip(NAMES, map(float, values), strict=True)))
    errors = [math.log(steady_tpot_ms(stage, gpu) / stage.tpot_ms) for stage in stages if stage.gpu == "h100"]
    cost = Roofline(MODELS["qwen3-8b"], gpu)
    for (rows, context), measured_ms in DECODES_MS.items():
        step_s = cost.step_s(StepFeatures(rows, 0, rows * context, rows))
        errors.append(POINT_WEIGHT * math.log(step_s * 1e3 / measured_ms))
    return np.array(errors)


def fit(stages: Sequence[Stage]) -> npt.NDArray[np.float64]:
    """The constants with the least (robust) squared log error, by damped Gauss-Newton steps from START."""
    scale = np.array(START)
    x, damping = np.ones(len(NAMES)), 1e-2

    def loss(at: npt.NDArray[np.float64]) -> float:
        return float(np.sum(np.sqrt(1 + (log_errors(at * scale, stages) / CARE) ** 2) - 1))

    for _ in range(60):
        errors = log_errors(x * scale, stages)
        slopes = np.column_stack(
            [(log_errors((x + step) * scale, stages) - errors) / 1e-4 for step in np.eye(len(x)) * 1e-4]
        )
        weights = 1 / np.sqrt(1 + (errors / CARE) ** 2)
        normal = slopes.T @ (weights[:, None] * slopes)
        move = np.linalg.solve(normal + damping * np.eye(len(x)), -slopes.T @ (weights * errors))
        moved = np.clip(x + move, 0.02, 10.0)
        moved[:2] = np.minimum(moved[:2], 1.0 / scale[:2])
        if loss(moved) < loss(x):
            x, damping = moved, damping / 2
        else:
            damping *= 4
    return x * scale


def main() -> None:
    fitted, held_out = read_stages()
    values = fit(fitted)
    for name, value in zip(NAMES, values, strict=True):
        print(f"{name:<18}{value:.3g}")
    gpu = msgspec.structs.replace(GPUS["h100"], **dict(zip(NAMES, map(float, values), strict=True)))
    for words, stages in (("fitted", fitted), ("held out", held_out)):
        off = [abs(steady_tpot_ms(stage, gpu) / stage.tpot_ms - 1) for stage in stages if stage.gpu == "h100"]
        print(f"{words:<10}{len(off):>3} stages on H100: median |error| of the time per token {np.median(off):.1%}")


if __name__ == "__main__":
    main()
