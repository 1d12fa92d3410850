"""Forecasts on an engine whose device is real: steps are priced by those that were seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from schedtop.console.cli.attached_forecast import AttachedForecast, SeenSteps
from schedtop.console.cli.forecast_process import ForecastError
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Header, Snapshot, StepRecord
from schedtop.engine.step.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_engine(EngineConfig(seed=3, workload=WorkloadSpec(source="mixed", rate=8.0)))


@pytest.fixture
def make_forecast() -> Iterator[tuple[AttachedForecast, SeenSteps]]:
    seen = SeenSteps()
    forecast = AttachedForecast(seen)
    yield forecast, seen
    forecast.close()


class Link:
    """Hands out the steps of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def receive(self, timeout_s: float) -> StepRecord | None:
        return self.engine.step()

    def send(self, command: Any) -> None:
        raise AssertionError("nothing was to be sent")

    def close(self) -> None:
        pass


def as_real(engine: Engine) -> tuple[Header, Snapshot]:
    header = msgspec.structs.replace(engine.header, device="cuda", simulated_clock=False, source="vllm")
    return header, engine.snapshot()


def test_a_real_device_has_a_forecast_once_enough_steps_were_seen(
    engine: Engine, make_forecast: tuple[AttachedForecast, SeenSteps]
) -> None:
    forecast, seen = make_forecast
    link = seen.through(Link(engine))
    for _ in range(100):
        link.receive(0.0)
    with pytest.raises(ForecastError, match="n/a under 200 steps, of which 100 were seen"):
        forecast(*as_real(engine), {"max_num_seqs": 2}, [])
    arrivals = []
    for _ in range(900):
        record = link.receive(0.0)
        arrivals += record.arrivals if isinstance(record, StepRecord) else ()
    header, snapshot = as_real(engine)
    found = forecast(header, snapshot, {"max_num_seqs": 2}, arrivals)
    assert found.note.startswith("steps priced by the last 1,000: off by")
    own = forecast(engine.header, snapshot, {"max_num_seqs": 2}, arrivals)
    assert own.note == ""
    # The device is simulated, so the fitted times and its own tell the same.
    for side in ("base", "staged"):
        value, expected = (getattr(each, side)["itl_p50_s"].value for each in (found, own))
        assert value == pytest.approx(expected, rel=0.25)
    assert found.change["output_tokens_per_s"].value < 0


def test_answers_are_as_long_as_they_became(make_forecast: tuple[AttachedForecast, SeenSteps]) -> None:
    engine = build_engine(EngineConfig(seed=3, workload=WorkloadSpec(source="mixed", rate=8.0)))
    _, seen = make_forecast
    finish = None
    while finish is None:
        record = engine.step()
        assert record is not None
        seen.take(record)
        finish = next(iter(record.finishes), None)
    arrival = next(iter(engine.snapshot().requests)).arrival
    allowed = msgspec.structs.replace(arrival, number=finish.number, max_tokens=100_000)
    assert seen.as_long(allowed).max_tokens == finish.output_tokens
    assert seen.as_long(arrival) == arrival


def test_steps_of_another_session_are_forgotten(
    engine: Engine, make_forecast: tuple[AttachedForecast, SeenSteps]
) -> None:
    """A server that was started again numbers its requests anew."""
    _, seen = make_forecast
    record = engine.step()
    assert record is not None
    header, _ = as_real(engine)
    seen.begin(header)
    seen.take(record)
    seen.begin(header)  # the same one, after a lost connection
    assert seen.records() == [record]
    seen.begin(msgspec.structs.replace(header, started_at=header.started_at + 1))
    assert not seen.records()
