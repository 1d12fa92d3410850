"""Forecasts: a restored engine goes on as the live one does, and a change is foretold with its error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import Arrival, Header, Snapshot, StepRecord
from schedtop.engine.decide_again.restore import restore
from schedtop.engine.step.engine import Engine
from schedtop.engine.whatif.forecast import device_cost, expected_rate, forecast


def live(steps: int, source: str = "mixed", limit: int | None = None, rate: float = 60.0, **knobs: Any) -> Engine:
    workload = WorkloadSpec(source=source, rate=rate, limit=limit)
    engine = build_engine(EngineConfig(workload=workload, scheduler=knobs))
    while engine.observer.step < steps:
        engine.step()
    return engine


def decisions(record: StepRecord) -> tuple[Any, ...]:
    rows = row_columns(record)
    kept = tuple(rows[name].tolist() for name in ("request", "tokens", "computed", "needed", "blocks", "flags"))
    ends = [(finish.number, finish.output_tokens, finish.ttft_s) for finish in record.finishes]
    return (kept, record.limiter, record.end_s, record.itl_s, record.ttft_s, ends, record.blocks.held)


@pytest.mark.parametrize(
    ("source", "knobs"),
    [
        ("mixed", {"max_num_seqs": 12}),
        ("shared-prefix", {"max_num_seqs": 12}),
        ("unrelated", {"policy": "priority"}),
    ],
)
def test_a_restored_engine_goes_on_as_the_live_one(source: str, knobs: dict[str, Any]) -> None:
    engine = live(60, source, limit=30, **knobs)
    while engine.source is not None and engine.source.next_arrival_s() is not None:
        engine.step()
    snapshot = engine.snapshot()
    assert snapshot.running
    assert source == "unrelated" or snapshot.waiting
    again = restore(engine.header, snapshot, device_cost(engine.header))
    again.scheduler.audit()
    assert again.scheduler.state.kv.pool.num_shared == engine.scheduler.state.kv.pool.num_shared
    while engine.num_unfinished:
        one, other = engine.step(), again.step()
        assert one is not None and other is not None
        assert decisions(one) == decisions(other)
    assert not again.num_unfinished


def test_a_snapshot_from_a_channel_will_do() -> None:
    """Structs as they come out of msgpack, with plain JSON values inside."""
    engine = live(80)
    header = msgspec.msgpack.decode(msgspec.msgpack.encode(engine.header), type=Header)
    snapshot = msgspec.msgpack.decode(msgspec.msgpack.encode(engine.snapshot()), type=Snapshot)
    one = forecast(header, snapshot, {"max_num_seqs": 4}, horizon_s=1.0, replicas=2)
    assert one == forecast(engine.header, engine.snapshot(), {"max_num_seqs": 4}, horizon_s=1.0, replicas=2)


def test_a_change_is_foretold_and_its_direction_is_sure() -> None:
    engine = live(150)
    found = forecast(engine.header, engine.snapshot(), {"max_num_batched_tokens": 256}, horizon_s=3.0)
    assert found.rate == 60.0
    change, base = found.change["itl_p95_s"], found.base["itl_p95_s"]
    assert base.value is not None and change.value is not None and change.error is not None
    assert change.value < -change.error, "a smaller budget makes steps shorter"
    assert change.value == pytest.approx((found.staged["itl_p95_s"].value or 0) - base.value)


def test_no_change_is_foretold_as_exactly_none() -> None:
    engine = live(100, rate=20.0)
    found = forecast(engine.header, engine.snapshot(), {"max_num_seqs": 1000}, horizon_s=2.0, replicas=2)
    assert {estimate.value for estimate in found.change.values()} == {0.0}


def test_the_forecast_of_now_is_close_to_what_happens() -> None:
    engine, arrivals = live(0, rate=20.0), []
    while engine.clock_s < 8.0:
        record = engine.step()
        arrivals += record.arrivals if record else []
    snapshot = engine.snapshot()
    found = forecast(engine.header, snapshot, {"max_num_seqs": 64}, recent=arrivals, horizon_s=5.0)
    before = snapshot.totals.output_tokens
    while engine.clock_s < snapshot.clock_s + 5.0:
        engine.step()
    actual = (engine.snapshot().totals.output_tokens - before) / 5.0
    assert found.base["output_tokens_per_s"].value == pytest.approx(actual, rel=0.25)


def test_pressure_foretells_preemptions() -> None:
    engine = live(300, "pressure", rate=8.0, num_blocks=1200, max_num_seqs=3)
    found = forecast(engine.header, engine.snapshot(), {"max_num_seqs": 60}, horizon_s=4.0, replicas=2)
    preemptions = found.change["preemptions"].value
    assert preemptions is not None and preemptions > 0


def test_warnings_and_refusals_are_the_engines_own() -> None:
    engine = live(150)
    found = forecast(engine.header, engine.snapshot(), {"max_num_seqs": 1}, horizon_s=0.5, replicas=1)
    assert any("must finish first" in line for line in found.warnings)
    assert found.base["itl_p50_s"].error is None, "one replica tells no error"
    with pytest.raises(ConfigError, match="start-up only"):
        forecast(engine.header, engine.snapshot(), {"block_size": 32})
    with pytest.raises(ConfigError, match="ceiling"):
        forecast(engine.header, engine.snapshot(), {"max_num_seqs": 5000})


def test_without_a_rate_that_of_the_known_arrivals_is_expected() -> None:
    snapshot = live(5, limit=3).snapshot()
    snapshot = msgspec.structs.replace(snapshot, clock_s=10.0, knobs={**snapshot.knobs, "rate": None})
    steady = [Arrival(number, f"r-{number}", number * 0.5, 100, 10) for number in range(20)]
    assert expected_rate(snapshot, steady) == pytest.approx(1.9)
    assert expected_rate(snapshot, steady[:1]) is None and expected_rate(snapshot, []) is None
    at_once = [msgspec.structs.replace(arrival, arrival_s=9.999) for arrival in steady]
    assert expected_rate(snapshot, at_once) == pytest.approx(19.0), "a burst is not a rate that goes on"


def test_a_real_device_needs_step_times() -> None:
    engine = live(20)
    header = msgspec.structs.replace(engine.header, device="cpu, 2 threads", simulated_clock=False)
    with pytest.raises(ConfigError, match="real device"):
        forecast(header, engine.snapshot(), {"max_num_seqs": 4})
    cost = device_cost(engine.header)
    found = forecast(header, engine.snapshot(), {"max_num_seqs": 4}, horizon_s=0.5, replicas=1, cost=cost)
    assert found.base["itl_p50_s"].value is not None
