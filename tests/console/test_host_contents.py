"""What the host's memory holds is known at every step, though records tell it only in part."""

from __future__ import annotations

from typing import Any

from schedtop.console.past.state import LiveState
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.prefixes.paths import PATH_KEY_BYTES, path_keys
from schedtop.engine.contract.telemetry import HostTier
from schedtop.engine.step.engine import Engine


def engine_with(memory: Any) -> Engine:
    scheduler = {"num_blocks": 900, "kv_host_memory_bytes": memory}
    workload = WorkloadSpec(source="shared-prefix", rate=6.0, limit=20)
    return build_engine(EngineConfig(workload=workload, scheduler=scheduler))


def keys_of(tier: HostTier | None) -> set[bytes]:
    assert tier is not None
    return {tier.keys[at : at + PATH_KEY_BYTES] for at in range(0, len(tier.keys), PATH_KEY_BYTES)}


def test_prompts_that_ended_are_there() -> None:
    engine, state, prompts = engine_with("16GiB"), LiveState(), set[bytes]()
    state.start_afresh(engine.snapshot())
    while engine.observer.counts["finished"] < 10:
        if (record := engine.step()) is not None:
            prompts |= {key for arrival in record.arrivals for key in path_keys(arrival.prefix_keys)}
            state.apply(record)
    for followed in (state, state.copy()):
        assert keys_of(followed.snapshot().host) == keys_of(engine.snapshot().host) & prompts != set()


def test_no_more_than_there_is_room_for() -> None:
    engine, state = engine_with(200 << 21), LiveState()
    state.start_afresh(engine.snapshot())
    while not engine.exhausted:
        if (record := engine.step()) is not None:
            state.apply(record)
            assert len(keys_of(state.snapshot().host)) <= 200
    assert len(keys_of(state.snapshot().host)) == 200
