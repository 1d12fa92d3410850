"""Predicted beside measured: simulated devices against the published points in `device_points.toml`.

    python benchmarks/devices.py

prints one line per point, the points left out and why, and the median error of each source. Exit code 1 if the
median over the points of vLLM 0.20 and later is above 12 %.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.features import StepCost, StepFeatures
from schedtop.engine.sim.memory import PoolSettings
from schedtop.engine.sim.spec import SimDevice, parse_device

POINTS = Path(__file__).with_name("device_points.toml")
SINCE = (0, 20)
BOUND = 0.12
CHUNK_TOKENS = 8192  # vLLM's default token budget of a server on such GPUs
POOL_SHARE = 0.95  # TensorRT-LLM's saturated runs gave 0.90 to 0.95 of memory to the cache


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published value; `device_points.toml` describes the fields."""

    source: str
    device: str
    kind: str
    measured: float
    prompt: int = 0
    output: int = 0
    context: float | None = None
    batch: int | None = None
    rate: float | None = None
    tensor_parallel_size: int = 1
    vllm: str | None = None
    client: bool = False
    kv_cache_dtype: str = "auto"
    note: str = ""
    skip: str = ""

    @property
    def mean_context(self) -> float:
        return self.prompt + self.output / 2 if self.context is None else self.context

    @property
    def counts(self) -> bool:
        """Whether the bound on the median applies to it."""
        return self.vllm is not None and tuple(map(int, self.vllm.split(".")))[:2] >= SINCE

    @property
    def load(self) -> str:
        parts = [self.kind]
        parts += [f"B{self.batch}"] if self.batch else []
        parts += [f"{self.rate:g}/s"] if self.rate else []
        parts += [f"ctx {self.context:g}"] if self.context else [f"{self.prompt}/{self.output}"]
        parts += [f"TP{self.tensor_parallel_size}"] if self.tensor_parallel_size > 1 else []
        return " ".join(parts)


class Points(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    points: list[Point]


def read_points() -> Points:
    return msgspec.toml.decode(POINTS.read_bytes(), type=Points)


def decode_s(cost: StepCost, batch: float, context: float) -> float:
    """Seconds of a step in which `batch` requests decode at mean context `context`."""
    return cost.step_s(StepFeatures(batch, 0, batch * context, batch))


def prompt_s(cost: StepCost, prompt: int) -> float:
    """Seconds of a prompt alone, in chunks."""
    total = 0.0
    for done in range(0, prompt, CHUNK_TOKENS):
        n = min(CHUNK_TOKENS, prompt - done)
        total += cost.step_s(StepFeatures(n, n * done + n * (n + 1) / 2, done + n, 1))
    return total


def mixed_s(cost: StepCost, batch: float, point: Point) -> float:
    """Seconds of a step in which a whole prompt runs beside `batch` decodes."""
    n = point.prompt
    return cost.step_s(
        StepFeatures(batch + n, n * (n + 1) / 2, batch * point.mean_context + n, batch + 1),
    )


def mean_step_s(cost: StepCost, batch: float, point: Point) -> float:
    """Mean step with `batch` in flight: each step, batch / output requests end and as many prompts come."""
    alone = decode_s(cost, batch, point.mean_context)
    return alone + batch / point.output * (mixed_s(cost, batch, point) - alone)


def steady_batch(cost: StepCost, device: SimDevice, point: Point) -> float:
    """Requests in flight: as given; by Little's law from the rate; or as many as the pool reserves room for."""
    if point.batch is not None:
        return point.batch
    if point.rate is None:
        pool = PoolSettings(gpu_memory_utilization=POOL_SHARE, tensor_parallel_size=point.tensor_parallel_size)
        blocks = device.num_blocks(pool)
        return blocks * 16 // (point.prompt + point.output)
    batch = 1.0
    for _ in range(100):
        batch = point.rate * point.output * mean_step_s(cost, batch, point)
    return batch


def predict(point: Point, step_cost: str = "roofline") -> float:
    """The point's value by the simulated device, in the unit of its kind."""
    device = parse_device(point.device, point.kv_cache_dtype, step_cost)
    cost = device.step_cost(point.tensor_parallel_size)
    front_end_s = 0.0
    if point.client and device.front_end is not None:
        front_end_s = device.front_end.wait_s(0, point.prompt)
    if point.kind == "ttft_ms":
        return (prompt_s(cost, point.prompt) + front_end_s) * 1e3
    batch = steady_batch(cost, device, point)
    match point.kind:
        case "decode_ms":
            return decode_s(cost, batch, point.mean_context) * 1e3
        case "decode_tok_s":
            return batch / decode_s(cost, batch, point.mean_context)
        case "mean_itl_ms":
            return mean_step_s(cost, batch, point) * 1e3
        case "mean_ttft_ms":  # it arrives in the middle of a step, and its prompt is the next one's
            return (mean_step_s(cost, batch, point) / 2 + mixed_s(cost, batch, point) + front_end_s) * 1e3
        case "output_tok_s":
            return batch / mean_step_s(cost, batch, point)
    raise ValueError(f"{point.kind}: no such kind")


def errors(points: Iterable[Point]) -> dict[Point, float]:
    """Signed relative error of each point that is not left out."""
    return {point: predict(point) / point.measured - 1 for point in points if not point.skip}


def operator_errors(points: Iterable[Point]) -> dict[Point, float]:
    """The same by operator tables, for what they know; none without the package."""
    found = {}
    for point in points:
        try:
            found[point] = predict(point, "operators") / point.measured - 1
        except ConfigError:
            continue
    return found


def summary(errors: dict[Point, float]) -> dict[str, list[float]]:
    """Absolute errors by source, of all, and of the points the bound is for."""
    groups: dict[str, list[float]] = defaultdict(list)
    for point, error in errors.items():
        groups[f"source {point.source}"].append(abs(error))
        groups["all"].append(abs(error))
        if point.counts:
            groups["vLLM 0.20 and later"].append(abs(error))
    return groups


def figure(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def main() -> int:
    data = read_points()
    found = errors(data.points)
    by_operators = operator_errors(found)
    print(
        f"{'':2}{'engine':<14}{'device':<30}{'load':<34}{'measured':>10}{'predicted':>11}{'error':>9}{'operators':>11}"
    )
    for point, error in found.items():
        engine = f"vLLM {point.vllm}" if point.vllm else point.note.split(",")[0]
        device = point.device.removeprefix("sim:")
        predicted = point.measured * (1 + error)
        print(
            f"{point.source:2}{engine:<14}{device:<30}{point.load:<34}"
            f"{figure(point.measured):>10}{figure(predicted):>11}{error:>+9.1%}"
            + (f"{by_operators[point]:>+11.1%}" if point in by_operators else "")
        )
    print("\nleft out:")
    for point in data.points:
        if point.skip:
            print(f"{point.source:2}{point.device.removeprefix('sim:')} {point.load}: {point.skip}")
    print("\nmedian absolute error:")
    groups, tables = summary(found), summary(by_operators)
    for name, values in groups.items():
        source = data.sources.get(name.removeprefix("source "), "")
        print(f"  {name:<20}{median(values):>7.1%}  {len(values):>2} points  {source}")
        if name in tables:
            print(f"  {'by operators':<20}{median(tables[name]):>7.1%}  {len(tables[name]):>2} points")
    return int(median(groups["vLLM 0.20 and later"]) > BOUND)


if __name__ == "__main__":
    sys.exit(main())
