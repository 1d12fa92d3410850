"""Recordings as scenarios: the recorded run again, its device and knobs the base of a change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Header, StepRecord
from schedtop.engine.decide_again.recorded_scenario import recorded_scenario
from schedtop.engine.recording.arrivals import looks_like_recording
from schedtop.engine.recording.reader import Recording
from schedtop.engine.recording.writer import RecordingWriter
from schedtop.engine.step.engine import Engine
from schedtop.engine.whatif.compare import compare

A100 = "sim:llama-3.1-8b@a100"


def record(
    path: Path,
    source: str = "shared-prefix",
    limit: int = 60,
    change: Mapping[str, Any] | None = None,
    header: Mapping[str, Any] | None = None,
) -> list[StepRecord]:
    """Record a run; `change` is applied after 40 steps; `header` replaces fields of the header."""
    workload = WorkloadSpec(source=source, limit=limit, rate=30.0, seed=4)
    engine = build_engine(EngineConfig(device=A100, workload=workload, scheduler={"max_num_seqs": 24}, seed=9))
    described = msgspec.structs.replace(engine.header, **(header or {}))
    records = []
    with RecordingWriter(str(path), described, engine.snapshot) as writer:
        while not engine.exhausted:
            step(engine, writer, records)
            if change and engine.observer.step == 40 and not any(record.knobs for record in records):
                assert engine.set_knobs(change).ok
    return records


def step(engine: Engine, writer: RecordingWriter, records: list[StepRecord]) -> None:
    one = engine.step()
    if one is not None:
        writer.write(one, msgspec.msgpack.encode(one))
        records.append(one)


def again(path: Path, **fields: Any) -> list[StepRecord]:
    given = set(fields)
    scenario = recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(path)), **fields), given)
    return list(scenario.records(scenario.build()))


def reported(records: list[StepRecord]) -> list[tuple[Any, ...]]:
    return [(one.rows, one.end_s, one.limiter, one.admissions, one.blocks) for one in records]


def test_a_recording_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    record(path, limit=3)
    assert looks_like_recording(path)
    path.write_text("timestamp")
    assert not looks_like_recording(path)
    assert not looks_like_recording(tmp_path)


@pytest.mark.parametrize("change", [None, {"max_num_seqs": 4}])
def test_the_base_is_the_recorded_run(tmp_path: Path, change: dict[str, Any] | None) -> None:
    path = tmp_path / "a.rec"
    recorded = record(path, change=change)
    assert reported(again(path)) == reported(recorded)


def test_the_recorded_knobs_are_the_base_of_a_change(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    record(path)
    scenario = recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(path))), set())
    comparison = compare(scenario, {"max_num_seqs": 48})
    assert comparison.device == A100
    assert comparison.changes == {"max_num_seqs": (24, 48)}
    assert comparison.changed
    unchanged = compare(scenario, {"max_num_seqs": 24})
    assert not unchanged.changed


def test_what_changed_in_the_recording_before_a_later_step_changes_in_both_runs(tmp_path: Path) -> None:
    """The cap was lowered at step 41; from step 80 on it is asked about."""
    path = tmp_path / "a.rec"
    record(path, change={"max_num_seqs": 4})
    scenario = recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(path))), set())
    comparison = compare(scenario, {"max_num_seqs": 12}, from_step=80)
    assert comparison.divergence is not None and comparison.divergence.step > 80
    assert comparison.changes == {"max_num_seqs": (4, 12)}
    assert compare(scenario, {"max_num_seqs": 12}).changes == {"max_num_seqs": ([24, 4], 12)}
    assert not compare(scenario, {"max_num_seqs": 4}, from_step=80).changed


def test_a_device_may_be_given_instead(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    recorded = record(path)
    faster = again(path, device="sim:llama-3.1-8b@h100")
    assert faster[-1].totals.finished == recorded[-1].totals.finished
    assert faster[-1].end_s != recorded[-1].end_s


def test_a_real_device_is_simulated_by_its_own_steps_and_this_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    real = {"device": "cpu, 2 threads", "simulated_clock": False}
    recorded = record(path, "mixed", header=real)
    scenario = recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(path))), set())
    (note,) = scenario.notes
    assert "cpu, 2 threads" in note and "fitted to the recording" in note
    records = list(scenario.records(scenario.build()))
    assert records[-1].end_s == pytest.approx(recorded[-1].end_s, rel=0.05)
    given = recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(path)), device=A100), {"device"})
    assert "simulated on sim:llama-3.1-8b@a100" in given.notes[0]


def test_a_real_device_with_too_few_steps_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    record(path, "mixed", limit=1, header={"device": "cpu", "simulated_clock": False})
    config = EngineConfig(workload=WorkloadSpec(source=str(path)))
    with pytest.raises(ConfigError, match="--device"):
        recorded_scenario(msgspec.structs.replace(config), set())


def test_a_header_of_another_engine_has_no_settings(tmp_path: Path) -> None:
    """Fields of a later or an older engine are passed over."""
    path = tmp_path / "a.rec"
    header: dict[str, Any] = {"settings": {}, "config": {"max_num_seqs": 24, "num_blocks": 9000, "colour": "red"}}
    record(path, header=header)
    assert again(path)[-1].totals.finished == 60


def test_headers_say_what_a_run_needs() -> None:
    header: Header = build_engine(EngineConfig(device=A100, seed=9, tensor_parallel_size=2)).header
    assert header.settings["seed"] == 9
    assert header.settings["tensor_parallel_size"] == 2
    assert header.settings["vocab_size"] > 1000


def test_what_of_a_server_is_not_simulated_is_said(tmp_path: Path) -> None:
    config = {
        "num_lookahead_tokens": 3,
        "drop_last_cached_block": True,
        "kv_groups": [{"full": True}, {"window": 32}],
    }
    record(tmp_path / "plain.rec", header={"device": "cpu", "simulated_clock": False})
    record(
        tmp_path / "server.rec",
        header={
            "device": "cpu",
            "simulated_clock": False,
            "config": {**header_of(tmp_path / "plain.rec"), **config},
        },
    )
    plain, server = (
        recorded_scenario(EngineConfig(workload=WorkloadSpec(source=str(tmp_path / name))), set()).notes
        for name in ("plain.rec", "server.rec")
    )
    assert not any("not simulated" in note or "KV groups" in note for note in plain)
    assert any("its drafter's own cache is not simulated" in note for note in server)
    assert any("its KV groups are simulated as one" in note for note in server)


def header_of(path: Path) -> dict[str, Any]:
    with Recording(path) as recording:
        return recording.header.config
