"""Adapter slots from the settings to what is told of them: reason, records, report, metrics page, decided again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.telemetry import Limiter, StepRecord
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.metrics.collector import MetricsCollector
from schedtop.engine.metrics.counts import Counts
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.offline.report import Report
from schedtop.engine.recording.reader import Recording

from tests.engine.harness import ask, engine_of, step

CONFIG = EngineConfig(
    workload=WorkloadSpec(source="mixed", rate=20.0, limit=60, scale=0.3, adapters=5),
    scheduler={"max_loras": 2},
)


def run(config: EngineConfig) -> Report:
    return run_headless(config, None, notice=lambda line: None)


def test_others_pass_a_request_whose_adapter_has_no_slot() -> None:
    asked = [ask("a", 4, adapter=1), ask("b", 4, adapter=2), ask("c", 4, adapter=1), ask("d", 4)]
    record = step(engine_of(*asked, max_loras=1))
    assert [admission.number for admission in record.admissions] == [0, 2, 3]
    assert record.limiter == Limiter.LORA and record.head is not None and record.head.number == 1
    assert describe_head(record.head) == "lora: other adapters have 1 of 1 slots"


def test_a_report_counts_each_adapter_and_they_add_up() -> None:
    document = run(CONFIG).as_dict()["requests"]
    found = document["by_adapter"]
    assert set(found) == {f"adapter-{place}" for place in range(1, 6)}
    assert sum(one["arrived"] for one in found.values()) == document["submitted"] == 60
    assert sum(one["ttft_s"]["n"] for one in found.values()) == document["finished"] == 60


def test_who_runs_and_who_waits_is_on_the_metrics_page() -> None:
    engine = build_engine(CONFIG)
    counts = Counts(engine.header)
    registry = CollectorRegistry()
    registry.register(MetricsCollector(engine.header, counts))
    seen = set()
    while (record := engine.step()) is not None:
        counts.write(record)
        assert isinstance(record, StepRecord)
        if record.head is not None and record.head.reason == Limiter.LORA:
            (family,) = (one for one in registry.collect() if one.name == "vllm:lora_requests_info")
            (sample,) = family.samples
            assert sample.labels["max_lora"] == "2"
            assert len(sample.labels["running_lora_adapters"].split(",")) <= 2
            seen.add(sample.labels["waiting_lora_adapters"])
            if len(seen) > 3:
                break
    assert any(seen)


def test_a_recording_with_adapters_is_decided_again_and_tells_their_names(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    run(EngineConfig(workload=CONFIG.workload, scheduler=CONFIG.scheduler, record=str(path)))
    with Recording(str(path)) as recording:
        names = {arrival.adapter_label for record in recording.records() for arrival in record.arrivals}
        assert names == {f"adapter-{place}" for place in range(1, 6)}
        assert verify_recording(recording).equal
    again = run(EngineConfig(workload=WorkloadSpec(source=str(path)), scheduler={"max_loras": 2})).as_dict()[
        "requests"
    ]["by_adapter"]
    assert set(again) == names


def test_what_cannot_be_served_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_loras=2: adapters cannot be served over 2 pipeline stages"):
        build_engine(EngineConfig(scheduler={"max_loras": 2}, pipeline_parallel_size=2))
    with pytest.raises(ConfigError, match="--max-loras: only for simulated devices"):
        build_engine(EngineConfig(device="cpu", model="smollm2", scheduler={"max_loras": 2}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scheduler": {}}, "--lora sql: there are no slots for adapters: give --max-loras"),
        ({"lora": ("sql", "sql")}, "--lora sql: the name is empty or taken"),
        ({"lora": ("llama-3.1-8b",)}, "--lora llama-3.1-8b: the name is empty or taken"),
        ({"device": "cpu", "model": "smollm2"}, "--lora sql: only for simulated devices"),
    ],
)
def test_adapters_that_clients_cannot_name_are_refused(changes: dict[str, Any], said: str) -> None:
    plain: dict[str, Any] = {
        "http": "127.0.0.1:0",
        "workload": None,
        "lora": ("sql",),
        "scheduler": {"max_loras": 1},
    }
    with pytest.raises(ConfigError, match=said):
        build_engine(EngineConfig(**{**plain, **changes}))
