"""A device fitted to some workloads on a real CPU engine predicts another.

    python benchmarks/calibration.py [--model smollm2] [--seconds 60] [--save DEVICE.toml] [--cpu-time]
    python benchmarks/calibration.py --seconds 30 --vllm PYTHON MODEL_FOLDER

Two identical real runs of the predicted workload come between the runs of the fitted ones, so that a machine that slows
down or speeds up meanwhile affects both alike. Each run has its own process. The predicted one is then simulated. A
prediction is good if it is within 10 %, or within 1.5 times what the two real runs differ by. The last line is JSON
with every figure.

With `--vllm` a vLLM server follows, recorded by schedtop's hook (`calibration_vllm.py`): give its PYTHON and a model
that it can serve on the CPU. Both take six minutes at 30 seconds a workload.

With `--cpu-time` the engine's clock is the CPU time of this process, which jumps over idle time: for a machine that
others use too. It needs OMP_NUM_THREADS=1, as it counts what all threads use.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Header, StepRecord
from schedtop.engine.decide_again.recorded_scenario import config_of
from schedtop.engine.decide_again.scenario import Scenario
from schedtop.engine.offline.headless import step_through
from schedtop.engine.offline.report import Report
from schedtop.engine.sim.calibrate import calibrate, fit_text, write_device
from schedtop.engine.sim.spec import CalibratedDevice
from schedtop.engine.step.engine import Engine
from schedtop.engine.whatif.compare import run

FITTED = WorkloadSpec(source="burst", seed=1, rate=1.0, scale=0.4)
LONE = WorkloadSpec(source="unrelated", seed=4, rate=0.5, scale=0.03)
"""Short prompts that meet an idle engine: they show what waking it costs."""
PREDICTED = WorkloadSpec(source="mixed", seed=2, rate=1.0, scale=0.1)
WARM_UP = WorkloadSpec(source="mixed", seed=3, rate=5.0, scale=0.05, limit=6)
FIGURES = (("ttft_s", "p50"), ("ttft_s", "p95"), ("itl_s", "p50"), ("itl_s", "p95"))
WITHIN, OF_SPREAD = 0.10, 1.5


class CpuClock:
    """CPU seconds of this process, and the idle time that was jumped over."""

    simulated = False

    def __init__(self) -> None:
        self._zero_s = time.process_time()

    def now_s(self) -> float:
        return time.process_time() - self._zero_s

    def advance(self, elapsed_s: float | None) -> float:
        return self.now_s()

    def skip_to(self, time_s: float) -> bool:
        self._zero_s -= max(time_s - self.now_s(), 0.0)
        return True


Session = tuple[Header, list[StepRecord], dict[str, Any]]


def serve_apart(model: str, workload: WorkloadSpec, cpu_time: bool) -> Session:
    """A real run in a new process: an engine's speed depends on what memory those before it left."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(serve, model, WARM_UP, cpu_time).result()
        return pool.submit(serve, model, workload, cpu_time).result()


def serve(model: str, workload: WorkloadSpec, cpu_time: bool) -> Session:
    """A real run to its end."""
    config = EngineConfig(device="cpu", model=model, workload=workload)
    engine, report, records = build_engine(config), Report(), []
    if cpu_time:
        engine.clock = CpuClock()
    for record in run_jumping(engine) if cpu_time else step_through(engine, config):
        records.append(record)
        report.add(record)
    return engine.header, records, report.as_dict()


def run_jumping(engine: Engine) -> Iterator[StepRecord]:
    """Every record to the end of the workload, without waiting for it."""
    while not engine.exhausted:
        record = engine.step()
        if record is not None:
            yield record


def for_seconds(workload: WorkloadSpec, seconds: float) -> WorkloadSpec:
    """As many requests as arrive in that time, on average."""
    assert workload.rate is not None
    return msgspec.structs.replace(workload, limit=max(round(workload.rate * seconds), 1))


def judge(real: list[dict[str, Any]], simulated: dict[str, Any]) -> list[dict[str, Any]]:
    """Each figure of both real runs and the simulated one, and whether that is close enough."""
    rows = []
    for path, share in FIGURES:
        one, other, found = (document[path][share] for document in (*real, simulated))
        mean = (one + other) / 2
        error, spread = abs(found - mean) / mean, abs(one - other) / mean
        allowed = max(WITHIN, OF_SPREAD * spread)
        name = f"{path.removesuffix('_s')} {share}"
        rows.append(
            {"figure": name, "real": [one, other], "simulated": found, "error": error, "spread": spread}
            | {"allowed": allowed, "good": error <= allowed}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--save", type=Path, help="keep the device file")
    parser.add_argument("--vllm", nargs=2, metavar=("PYTHON", "MODEL_FOLDER"), help="then a vLLM server's")
    options = parser.parse_args()
    fitted_to, lone, predicted = (for_seconds(load, options.seconds) for load in (FITTED, LONE, PREDICTED))
    before, one, alone, other, after = (
        serve_apart(options.model, workload, options.cpu_time)
        for workload in (fitted_to, predicted, lone, predicted, fitted_to)
    )
    found = predict([before, alone, after], [one, other], predicted, options.save)
    if options.vllm:
        from calibration_vllm import PREDICTED as LOAD
        from calibration_vllm import sessions

        python, model = options.vllm
        with tempfile.TemporaryDirectory() as folder:
            fit, real, trace = sessions(python, model, options.seconds, Path(folder))
            print(f"\nvLLM, {LOAD.name}")
            found |= {"vllm": predict(fit, real, WorkloadSpec(source=str(trace)), None)}
    print(json.dumps(found))


def predict(fit: list[Session], real: list[Session], predicted: WorkloadSpec, save: Path | None) -> dict[str, Any]:
    """Fit to some sessions, simulate the load of two real ones, and print how far that is off."""
    header = fit[0][0]
    calibration, fitted = calibrate([session[:2] for session in fit])
    print(f"{header.model} on {header.device}\n\n{fit_text(fitted)}\n")
    if save:
        write_device(save, calibration, fitted)
    device = CalibratedDevice(save or Path("fitted"), calibration)
    config = config_of(header, EngineConfig(workload=predicted), set())
    rows = judge([document for _, _, document in real], run(Scenario(config, device)))
    print(f"{'':<20}{'real':>12}{'real again':>12}{'simulated':>12}{'error':>9}{'spread':>9}{'allowed':>9}")
    for row in rows:
        times = "".join(f"{value * 1e3:>9.1f} ms" for value in (*row["real"], row["simulated"]))
        shares = "".join(f"{row[name]:>9.1%}" for name in ("error", "spread", "allowed"))
        print(f"{row['figure']:<20}{times}{shares}{'' if row['good'] else '  too far'}", flush=True)
    return {"fit": msgspec.to_builtins(fitted), "figures": rows}


if __name__ == "__main__":
    main()
