"""Step costs from measured steps: non-negative least squares over what a step's time depends on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.sim.features import step_features
from schedtop.engine.sim.linear import LinearCost

Floats = npt.NDArray[np.float64]

TERMS = ("fixed cost", "tokens", "attention of chunks", "KV read", "requests")
"""The meaning of a design matrix's columns, in the order of `LinearCost`'s fields."""

MIN_STEPS = 100
MIN_WOKEN = 3
"""Steps after idleness: with fewer, the wake-up time is not fitted."""
MIN_SPREAD = 1e-4
"""Least ratio of the singular values of the scaled columns: below it, two costs cannot be separated."""
FLOORS = (0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Values of `floor_tokens` that are tried."""
GAIN = 0.02
"""The least share of the error that a higher floor has to save."""
ROUNDS = 5
MOST_LOG = 1.0
"""Natural logarithm of the ratio beyond which a step's error counts no more."""
OUTLIER = 4.0
"""Steps more than this many (robust) standard deviations off are left out: something else took their time."""


class FitError(ConfigError):
    """Steps that cannot be fitted; the text says what they lack."""


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Measured steps: `design` (n, 5), a column for each of `TERMS`; `times_s` (n,) until the next step can end.

    `woken` are those of an engine that was idle, apart: their times count from the arrival that woke it.
    """

    design: Floats
    times_s: Floats
    woken: MeasuredSteps | None = None

    def __len__(self) -> int:
        return len(self.times_s)

    def above(self, floor_tokens: int) -> MeasuredSteps:
        """The same steps, none with fewer tokens than the floor."""
        design = self.design.copy()
        design[:, 1] = np.maximum(design[:, 1], floor_tokens)
        return MeasuredSteps(design, self.times_s)

    @property
    def has_prompts(self) -> npt.NDArray[np.bool_]:
        """Steps with chunks of more than one token."""
        return self.design[:, 2] > 0


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predicted step times over `count` steps; `bias` is their signed mean."""

    count: int
    mean: float
    p50: float
    p95: float
    bias: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A device's cost, and how well it predicts the steps it was fitted to: all, decodes alone, those with prompts.

    `held_out`: errors on every other step of a cost fitted to the rest. `num_outliers` steps were left out; `num_woken`
    were of an engine that had been idle.
    """

    cost: LinearCost
    all: Errors
    decodes: Errors | None
    prompts: Errors | None
    held_out: Errors
    num_outliers: int
    num_woken: int = 0


def measure(records: Iterable[StepRecord]) -> MeasuredSteps:
    """The executed steps of a session, in order.

    A step's time counts from the end of the step before while the engine had work, as its clients feel it: a real
    engine's own work between steps is part of it.
    """
    rows, times = [], []
    woken_rows, woken_times = [], []
    before: StepRecord | None = None
    asleep, arrived_s = False, math.inf
    for record in records:
        arrived_s = min(arrived_s, *(item.arrival_s for item in record.arrivals), math.inf)
        if record.executed and record.rows:
            columns = row_columns(record)
            features = step_features(columns["tokens"], columns["computed"])
            if asleep and not record.paused and arrived_s < math.inf:
                woken_rows.append((1.0, *features))
                woken_times.append(record.end_s - arrived_s)
            elif features.tokens and (elapsed_s := _elapsed_s(before, record)) > 0:
                rows.append((1.0, *features))
                times.append(elapsed_s)
            arrived_s = math.inf
        if record.executed or record.paused:
            asleep = not (record.running + record.waiting or record.paused)
        before = record
    return MeasuredSteps(
        _matrix(rows), np.array(times, dtype=float), MeasuredSteps(_matrix(woken_rows), np.array(woken_times))
    )


def _elapsed_s(before: StepRecord | None, record: StepRecord) -> float:
    """Since the step before ended, while there was work; else since it started itself."""
    paused = before is None or before.paused or record.paused
    if before is not None and before.executed and before.running + before.waiting and not paused:
        return record.end_s - before.end_s
    return record.end_s - record.start_s


def _matrix(rows: Sequence[tuple[float, ...]]) -> Floats:
    return np.array(rows, dtype=float).reshape(-1, len(TERMS))


def join(parts: Iterable[MeasuredSteps]) -> MeasuredSteps:
    """The steps of several sessions."""
    parts = list(parts)
    woken = [part.woken for part in parts if part.woken is not None]
    return MeasuredSteps(
        np.concatenate([part.design for part in parts]),
        np.concatenate([part.times_s for part in parts]),
        join(woken) if woken else None,
    )


def fit(steps: MeasuredSteps) -> Fit:
    """The cost with the least squared relative error and no negative term. Raises `FitError`."""
    _check(steps)
    has_prompts, floor = steps.has_prompts, _choose_floor(steps)
    woken, steps = steps.woken, steps.above(floor)
    coefficients, kept = _fit_robustly(steps)
    half = MeasuredSteps(steps.design[::2], steps.times_s[::2])
    other = MeasuredSteps(steps.design[1::2], steps.times_s[1::2])
    fixed_s, per_token_s, per_pair_s, per_kv_token_s, per_request_s = map(float, coefficients)
    cost = LinearCost(fixed_s, per_token_s, per_pair_s, per_kv_token_s, per_request_s, floor)
    if woken is not None and len(woken) >= MIN_WOKEN:
        cost = msgspec.structs.replace(cost, wake_s=max(_wake_s(cost, woken), 0.0))
    return Fit(
        cost=cost,
        all=_errors(coefficients, steps),
        decodes=_errors_of(coefficients, steps, ~has_prompts),
        prompts=_errors_of(coefficients, steps, has_prompts),
        held_out=_errors(_fit_robustly(half)[0], other),
        num_outliers=len(steps) - kept,
        num_woken=0 if woken is None else len(woken),
    )


def _wake_s(cost: LinearCost, woken: MeasuredSteps) -> float:
    """The median of how much longer these steps took than predicted; short steps, less moved by noise, weigh more."""
    predicted_s = predict_s(cost, woken)
    late_s = woken.times_s - predicted_s
    order = late_s.argsort()
    share = np.cumsum(1 / predicted_s[order])
    return float(late_s[order][share.searchsorted(share[-1] / 2)])


def predict_s(cost: LinearCost, steps: MeasuredSteps) -> Floats:
    """Seconds of each step, (n,)."""
    coefficients = (cost.fixed_s, cost.per_token_s, cost.per_attention_pair_s, cost.per_kv_token_s)
    predicted: Floats = steps.above(cost.floor_tokens).design @ np.array([*coefficients, cost.per_request_s])
    return predicted


def nnls(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 that minimises |matrix x - target|, exactly; for a few columns (n, k), target (n,).

    The minimum is an unconstrained one over some set of columns, and there are only 2**k - 1 sets. Columns that
    depend on each other have many minima; one of them is returned.
    """
    k = matrix.shape[1]
    _, upper = np.linalg.qr(np.column_stack([matrix, target]))
    small, goal = upper[:, :k], upper[:, k]
    best, least = np.zeros(k), float(goal @ goal)
    for size in range(1, k + 1):
        for columns in itertools.combinations(range(k), size):
            solution = np.linalg.lstsq(small[:, columns], goal, rcond=None)[0]
            if (solution < 0).any():
                continue
            residual = goal - small[:, columns] @ solution
            if float(residual @ residual) < least:
                least, best = float(residual @ residual), np.zeros(k)
                best[list(columns)] = solution
    return best


def _choose_floor(steps: MeasuredSteps) -> int:
    """The lowest floor that leaves hardly more absolute error than the best one: squares would let outliers choose."""
    errors = {}
    for floor in FLOORS:
        bent = steps.above(floor)
        if _spread_of(bent)[0] >= MIN_SPREAD:
            errors[floor] = _errors(_fit_robustly(bent)[0], bent).mean
    least = min(errors.values(), default=0.0)
    return next((floor for floor, error in errors.items() if error * (1 - GAIN) <= least), 0)


def _fit_robustly(steps: MeasuredSteps) -> tuple[Floats, int]:
    """Coefficients, and how many steps they were fitted to once outliers were left out."""
    coefficients = _fit_once(steps)
    ratios = np.log(np.maximum(steps.design @ coefficients, 1e-12) / steps.times_s)
    middle = np.median(ratios)
    spread = 1.4826 * float(np.median(np.abs(ratios - middle)))
    keep = np.abs(ratios - middle) <= OUTLIER * max(spread, 1e-3)
    if keep.all() or keep.sum() < MIN_STEPS // 2:
        return coefficients, len(steps)
    kept = MeasuredSteps(steps.design[keep], steps.times_s[keep])
    # Removing outliers must not remove a whole kind of step.
    if _spread_of(kept)[0] < MIN_SPREAD:
        return coefficients, len(steps)
    return _fit_once(kept), len(kept)


def _fit_once(steps: MeasuredSteps) -> Floats:
    """The least squares of the logarithm of measured over predicted times, by a few Gauss-Newton steps.

    A short step's ITL counts as much as a long one's, and medians come out right: relative errors would make noisy
    steps too short, absolute ones too long.
    """
    coefficients = _weighted(steps.design, steps.times_s, steps.times_s)
    for _ in range(ROUNDS):
        predicted_s = np.maximum(steps.design @ coefficients, 1e-12)
        ratios = np.clip(np.log(steps.times_s / predicted_s), -MOST_LOG, MOST_LOG)
        coefficients = _weighted(steps.design, predicted_s * (1 + ratios), predicted_s)
    return coefficients


def _weighted(design: Floats, times_s: Floats, over_s: Floats) -> Floats:
    """The coefficients with the least squares of errors over `over_s`, none negative."""
    weighted = design / over_s[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    scale[scale == 0] = 1.0
    coefficients: Floats = nnls(weighted / scale, times_s / over_s) / scale
    return coefficients


def _spread_of(steps: MeasuredSteps) -> tuple[float, Floats]:
    """Least over greatest singular value of the scaled columns, and the combination of columns that is least."""
    weighted = steps.design / steps.times_s[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    if not scale.all():
        return 0.0, (scale == 0).astype(float)
    _, values, vectors = np.linalg.svd(weighted / scale, full_matrices=False)
    return float(values[-1] / values[0]), vectors[-1]


def _check(steps: MeasuredSteps) -> None:
    if len(steps) < MIN_STEPS:
        raise FitError(f"{len(steps)} measured steps are too few to fit a device to: record at least {MIN_STEPS}")
    if not steps.has_prompts.any():
        raise FitError("no step computes more than one token of a prompt: record some prompts too")
    if steps.has_prompts.all():
        raise FitError("every step computes prompts: record longer outputs too")
    ratio, direction = _spread_of(steps)
    if ratio < MIN_SPREAD:
        names = [name for name, weight in zip(TERMS, direction, strict=True) if abs(weight) > 0.1]
        raise FitError(
            f"the steps are too alike to tell {' and '.join(names)} apart:"
            " record a workload whose prompts, outputs and number of requests vary"
        )


def _errors(coefficients: Floats, steps: MeasuredSteps) -> Errors:
    relative = (steps.design @ coefficients - steps.times_s) / steps.times_s
    sizes = np.abs(relative)
    p50, p95 = (float(np.quantile(sizes, share)) for share in (0.5, 0.95))
    return Errors(len(steps), float(sizes.mean()), p50, p95, float(relative.mean()))


def _errors_of(coefficients: Floats, steps: MeasuredSteps, some: npt.NDArray[np.bool_]) -> Errors | None:
    return _errors(coefficients, MeasuredSteps(steps.design[some], steps.times_s[some])) if some.any() else None
