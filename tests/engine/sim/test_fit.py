"""Fitting a device: the coefficients that made the steps come back, and what cannot be fitted is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Header, StepRecord
from schedtop.engine.offline.headless import step_through
from schedtop.engine.offline.report import Report
from schedtop.engine.sim.calibrate import as_toml, calibrate, fit_text, write_device
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.fit import Errors, Fit, FitError, MeasuredSteps, fit, measure, nnls, predict_s
from schedtop.engine.sim.linear import LinearCost, read_calibration
from schedtop.engine.sim.worker import SimWorker

COST = LinearCost(0.004, 30e-6, 2e-9, 40e-9, 50e-6)
TOML = """
model = "m"
device = "d"
vocab_size = 1000
max_model_len = 8192
num_blocks = 5000
block_size = 16

[cost]
fixed_s = 0.004
per_token_s = 30e-6
per_attention_pair_s = 2e-9
per_kv_token_s = 40e-9
per_request_s = 50e-6
"""


def session(device: str, **workload: object) -> tuple[Header, list[StepRecord]]:
    spec = WorkloadSpec(**{"source": "mixed", "limit": 60, "rate": 20.0, **workload})  # type: ignore[arg-type]
    config = EngineConfig(device=device, workload=spec)
    engine = build_engine(config)
    return engine.header, list(step_through(engine, config))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Header, list[StepRecord]]:
    path = tmp_path_factory.mktemp("device") / "known.toml"
    path.write_text(TOML)
    return session(f"sim:@{path}")


def test_known_coefficients_come_back(known: tuple[Header, list[StepRecord]]) -> None:
    fitted = fit(measure(known[1]))
    for name in LinearCost.__struct_fields__:
        assert getattr(fitted.cost, name) == pytest.approx(getattr(COST, name), rel=1e-6), name
    assert fitted.all.p95 < 1e-9 and fitted.held_out.p95 < 1e-9
    assert fitted.num_outliers == 0


def test_a_floor_comes_back(tmp_path: Path) -> None:
    """Decodes of up to 8 rows cost the same, as they do where they wait for the weights."""
    path = tmp_path / "floor.toml"
    path.write_text(TOML + "floor_tokens = 8\n")
    fitted = fit(measure(session(f"sim:@{path}")[1]))
    assert fitted.cost.floor_tokens == 8
    assert fitted.cost.per_attention_pair_s == pytest.approx(COST.per_attention_pair_s, rel=1e-6)
    assert fitted.all.p95 < 1e-9


def test_what_waking_takes_comes_back(tmp_path: Path) -> None:
    """The first step of an idle engine takes longer, and no other."""
    path = tmp_path / "sleepy.toml"
    path.write_text(TOML + "wake_s = 0.005\n")
    _, records = session(f"sim:@{path}", rate=2.0, scale=0.3)
    fitted = fit(measure(records))
    assert fitted.cost.wake_s == pytest.approx(0.005, rel=1e-6)
    assert fitted.cost.fixed_s == pytest.approx(COST.fixed_s, rel=1e-6)
    awake = session(f"sim:@{_written(tmp_path / 'awake.toml')}", rate=2.0, scale=0.3)[1]
    late_s = [
        sleepy - other for (_, sleepy), (_, other) in zip(_first_tokens(records), _first_tokens(awake), strict=True)
    ]
    assert max(late_s) == pytest.approx(0.005) and sum(late > 0.004 for late in late_s) > 5


def _written(path: Path) -> Path:
    path.write_text(TOML)
    return path


def _first_tokens(records: list[StepRecord]) -> list[tuple[int, float]]:
    return sorted(pair for record in records for pair in record.ttft_s)


def test_a_device_file_gives_the_same_run_again(tmp_path: Path, known: tuple[Header, list[StepRecord]]) -> None:
    calibration, fitted = calibrate([known])
    path = tmp_path / "fitted.toml"
    write_device(path, calibration, fitted)
    assert read_calibration(path) == calibration
    again = session(f"sim:@{path}")[1]
    assert [record.rows for record in again] == [record.rows for record in known[1]]
    assert again[-1].end_s == pytest.approx(known[1][-1].end_s, rel=1e-6)


def test_noise_and_outliers_hardly_move_the_fit(known: tuple[Header, list[StepRecord]]) -> None:
    steps = measure(known[1])
    rng = np.random.default_rng(1)
    noisy = steps.times_s * np.exp(rng.normal(0, 0.03, len(steps)))
    noisy[rng.choice(len(steps), len(steps) // 50, replace=False)] *= 20
    fitted = fit(MeasuredSteps(steps.design, noisy))
    assert np.median(np.abs(predict_s(fitted.cost, steps) / steps.times_s - 1)) < 0.02
    assert 0 < fitted.num_outliers < len(steps) // 20
    assert fitted.held_out.p50 < 0.05


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_noise_makes_no_prediction_shorter(known: tuple[Header, list[StepRecord]], noise: float) -> None:
    """As many steps take longer as shorter than predicted."""
    steps = measure(known[1])
    noisy = steps.times_s * np.exp(np.random.default_rng(2).normal(0, noise, len(steps)))
    fitted = fit(MeasuredSteps(steps.design, noisy))
    assert np.median(noisy / predict_s(fitted.cost, steps)) == pytest.approx(1.0, abs=0.02)


class Noisy:
    """A device whose steps take longer or shorter at random, some far longer."""

    def __init__(self, cost: LinearCost, seed: int) -> None:
        self._cost, self._rng = cost, np.random.default_rng(seed)

    def step_s(self, features: StepFeatures) -> float:
        """As the cost says, give or take; one step in fifty takes four times as long."""
        longer = 4.0 if self._rng.random() < 0.02 else 1.0
        return self._cost.step_s(features) * float(np.exp(self._rng.normal(0.0, 0.2))) * longer


def noisy_session(cost: LinearCost, noise_seed: int, **workload: object) -> tuple[Header, list[StepRecord]]:
    spec = WorkloadSpec(**{"limit": 150, "scale": 0.4, **workload})  # type: ignore[arg-type]
    config = EngineConfig(device="sim:smollm2-135m@cpu", workload=spec)
    engine = build_engine(config)
    assert isinstance(engine.worker, SimWorker)
    engine.worker.cost, engine.worker.wake_s = Noisy(cost, noise_seed), cost.wake_s
    records = []
    while not engine.exhausted:
        if (record := engine.step()) is not None:
            records.append(record)
    return engine.header, records


def test_a_noisy_sleepy_device_predicts_another_load(tmp_path: Path) -> None:
    """Fitted to bursts and lone prompts, it tells medians of other loads within 10 %, on an engine often idle, too."""
    cost = LinearCost(0.010, 400e-6, 2e-9, 10e-9, 300e-6, floor_tokens=4, wake_s=0.008)
    loads = (("burst", 2.0, 150), ("unrelated", 0.5, 20))
    calibration, fitted = calibrate(
        [noisy_session(cost, 1, source=source, rate=rate, limit=limit) for source, rate, limit in loads]
    )
    write_device(tmp_path / "fitted.toml", calibration, fitted)
    for rate in (0.5, 4.0):
        load = {"source": "mixed", "rate": rate, "seed": 2, "scale": 0.2}
        real, reported = Report(), Report()
        for record in noisy_session(cost, 2, **load)[1]:
            real.add(record)
        for record in session(f"sim:@{tmp_path / 'fitted.toml'}", **load, limit=150)[1]:
            reported.add(record)
        ours, theirs = reported.as_dict(), real.as_dict()
        for name in ("ttft_s", "itl_s"):
            assert ours[name]["p50"] == pytest.approx(theirs[name]["p50"], rel=0.1), (rate, name)


def test_the_whole_of_a_busy_stretch_is_counted(known: tuple[Header, list[StepRecord]]) -> None:
    steps, records = measure(known[1]), [record for record in known[1] if record.executed]
    assert len(steps) == len(records)
    assert steps.times_s.sum() == pytest.approx(sum(record.end_s - record.start_s for record in records))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_nnls_meets_the_conditions_of_a_minimum(seed: int, columns: int) -> None:
    """Karush-Kuhn-Tucker: no negative term, no slope along a used column, none down an unused one."""
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(30, columns)), rng.normal(size=30)
    x = nnls(matrix, target)
    gradient = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all()
    assert gradient[x > 0] == pytest.approx(0, abs=1e-8)
    assert (gradient >= -1e-8).all()


def test_nnls_finds_a_negative_term_to_be_zero() -> None:
    matrix = np.random.default_rng(3).normal(size=(50, 3))
    x = nnls(matrix, matrix @ np.array([2.0, -1.0, 0.5]))
    assert x[1] == 0 and x[0] > 1


def test_too_few_and_degenerate_steps_are_refused(known: tuple[Header, list[StepRecord]]) -> None:
    steps = measure(known[1])
    with pytest.raises(FitError, match="99 measured steps are too few"):
        fit(MeasuredSteps(steps.design[:99], steps.times_s[:99]))
    decodes = ~steps.has_prompts
    with pytest.raises(FitError, match="prompts too"):
        fit(MeasuredSteps(steps.design[decodes], steps.times_s[decodes]))
    alone = steps.design.copy()
    alone[:, 4] = 1.0
    with pytest.raises(FitError, match="tell fixed cost and requests apart"):
        fit(MeasuredSteps(alone, steps.times_s))
    with pytest.raises(FitError, match="0 measured steps"):
        fit(measure([]))


def test_different_devices_are_not_mixed(known: tuple[Header, list[StepRecord]]) -> None:
    other = session("sim:llama-3.1-8b@h100", limit=5)
    with pytest.raises(FitError, match="different devices"):
        calibrate([known, other])


def test_a_device_of_unknown_state_size_takes_no_memory_size(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(TOML)
    config = EngineConfig(device=f"sim:@{path}", kv_cache_memory_bytes=1 << 30)
    with pytest.raises(ConfigError, match="--num-blocks"):
        build_engine(config)


def test_the_file_tells_its_errors(known: tuple[Header, list[StepRecord]]) -> None:
    text = as_toml(*calibrate([known]))
    assert "# all steps" in text and "# held out" in text


def test_costs_are_told_in_units_that_can_be_read() -> None:
    cost = LinearCost(1.25, 0.0082226, 0.0, 0.00023684, 32.58e-9)
    errors = Errors(100, 0.1, 0.1, 0.2, 0.0)
    text = fit_text(Fit(cost, errors, None, None, errors, 0))
    reported = [" ".join(line.split()[-2:]) for line in text.splitlines()[:5]]
    assert reported == ["1.25 s", "8.223 ms", "0 ns", "236.8 µs", "32.58 ns"]
