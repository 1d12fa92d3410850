"""Children of one request: their label from trace, golden case and vLLM's names to records, report and metrics page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Arrival
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.metrics.collector import MetricsCollector
from schedtop.engine.metrics.counts import Counts
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.recording.reader import Recording
from schedtop.engine.workload.trace import TraceError

from tests.engine.vllm.drive import Run

ROOT = Path(__file__).parents[2]

TRACE = """\
arrived_at,num_prefill_tokens,num_decode_tokens,parent
0,500,40,p
0,500,60,p
0,500,80,p
0.1,300,40,
0.2,600,40,q
0.2,600,44,q
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def parents(recording: Recording) -> list[str]:
    return [arrival.parent for record in recording.records() for arrival in record.arrivals]


def test_they_share_a_prompt_and_a_label_which_a_recording_keeps(trace: str, tmp_path: Path) -> None:
    first, again = str(tmp_path / "first.rec"), str(tmp_path / "again.rec")
    for source, record in ((trace, first), (first, again)):
        config = EngineConfig(workload=WorkloadSpec(source=source), record=record)
        document = run_headless(config, None, notice=lambda line: None).as_dict()
        # 31 blocks of 500 tokens twice, 37 of 600 once.
        assert document["tokens"]["cached"] == 16 * (2 * 31 + 37)
        families = document["requests"]["parents"]
        assert (families["ended"], families["open"], families["children"]) == (2, 0, 5)
        assert families["e2e_s"]["n"] == 2 and families["e2e_s"]["p99"] > document["e2e_s"]["p50"]
        with Recording(record) as recording:
            assert parents(recording) == ["p", "p", "p", "", "q", "q"]
            assert verify_recording(recording).equal


def test_who_still_runs_keeps_its_family_open(trace: str) -> None:
    config = EngineConfig(workload=WorkloadSpec(source=trace), duration_s=0.55)
    families = run_headless(config, None, notice=lambda line: None).as_dict()["requests"]["parents"]
    assert (families["ended"], families["open"], families["children"]) == (1, 1, 5)
    assert families["e2e_s"]["open"] == 1


def test_the_metrics_page_counts_a_parent_once_as_vllm_does(trace: str) -> None:
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=trace)))
    counts, registry = Counts(engine.header), CollectorRegistry()
    registry.register(MetricsCollector(engine.header, counts))
    while (record := engine.step()) is not None:
        counts.write(record)
    page = generate_latest(registry).decode().splitlines()
    found = {line.split("{")[0]: float(line.split()[-1]) for line in page if "_sum{" in line or "_count{" in line}
    assert (found["vllm:request_params_n_count"], found["vllm:request_params_n_sum"]) == (3, 6)
    longest = "vllm:request_max_num_generation_tokens"
    assert (found[f"{longest}_count"], found[f"{longest}_sum"]) == (3, 80 + 40 + 44)
    assert found["vllm:request_generation_tokens_count"] == 6


def test_a_golden_case_may_name_them(tmp_path: Path) -> None:
    case = json.loads((ROOT / "field" / "n4-children.json").read_text())
    for request in case["requests"]:
        request["parent"] = "p"
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case))
    config = EngineConfig(workload=WorkloadSpec(source=str(path)))
    document = run_headless(config, None, notice=lambda line: None).as_dict()
    assert document["requests"]["parents"]["children"] == 4
    assert (document["tokens"]["prompt"], document["tokens"]["cached"]) == (256, 144)


def test_a_parent_that_is_no_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 10, "output_length": 2, "parent": [1]}\n')
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: parent is not a name"):
        build_engine(EngineConfig(workload=WorkloadSpec(source=str(path))))


def test_vllm_names_children_by_their_place() -> None:
    run = Run("0.32", num_blocks=60)
    for name in ("0_cmpl-a-0-12ab", "1_cmpl-a-0-12ab", "cmpl-b-0-34cd"):
        run.add(name, 20, 3)
    run.run_out()
    arrivals: list[Arrival] = [arrival for record in run.records for arrival in record.arrivals]
    assert [arrival.parent for arrival in arrivals] == ["cmpl-a-0-12ab", "cmpl-a-0-12ab", ""]
