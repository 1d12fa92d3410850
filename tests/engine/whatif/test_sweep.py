"""Sweeps: every combination, kept as it is done, and the best one named."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.slo import Slo
from schedtop.engine.decide_again.scenario import KnobEvent, Scenario
from schedtop.engine.whatif.compare import compare
from schedtop.engine.whatif.ranking import pareto_set, ranked
from schedtop.engine.whatif.sweep import combinations, parse_vary, run_key, sweep

SCENARIO = Scenario(EngineConfig(workload=WorkloadSpec(source="mixed", limit=25, rate=40.0)))
VARY = {"max_num_seqs": [2, 128], "max_num_batched_tokens": [256, 4096]}
CALIBRATED = """
model = "m"
device = "two cores"
vocab_size = 1000
max_model_len = 8192
num_blocks = 1000
block_size = 16

[cost]
fixed_s = 0.01
"""
SLO = Slo(ttft_s=0.5, itl_s=0.05)


@pytest.fixture(scope="module")
def unbroken() -> dict[str, Any]:
    return sweep(SCENARIO, VARY, SLO).as_dict()


def test_every_combination_and_the_settings_as_they_are(unbroken: dict[str, Any]) -> None:
    settings = [run["settings"] for run in unbroken["runs"]]
    expected = [{"max_num_seqs": s, "max_num_batched_tokens": b} for s in (2, 128) for b in (256, 4096)]
    assert settings == [{"max_num_seqs": 128, "max_num_batched_tokens": 2048}, *expected]
    assert [run["base"] for run in unbroken["runs"]] == [True, False, False, False, False]


def test_settings_as_they_are_are_not_run_twice() -> None:
    outcome = sweep(SCENARIO, {"max_num_seqs": [2, 128]}, None)
    assert [run["base"] for run in outcome.as_dict()["runs"]] == [False, True]


def test_a_base_that_was_turned_on_the_way_is_no_combination() -> None:
    """What-if and sweep have the same base."""
    turned = replace(SCENARIO, events=(KnobEvent(0.1, {"max_num_seqs": 2}),))
    comparison, outcome = (
        compare(turned, {"max_num_seqs": 128}, SLO),
        sweep(turned, {"max_num_seqs": [2, 128]}, SLO),
    )
    base, *others = outcome.as_dict()["runs"]
    assert base["base"] and base["settings"] == {"max_num_seqs": [128, 2]} and base["report"] == comparison.base
    assert [run["settings"]["max_num_seqs"] for run in others] == [2, 128]
    assert others[1]["report"] == comparison.variant != comparison.base
    assert comparison.changes == {"max_num_seqs": ([128, 2], 128)}
    assert "128, then 2" in comparison.as_text() and "128, then 2" in outcome.as_text()


def test_a_killed_sweep_goes_on_and_ends_the_same(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    path = tmp_path / "runs.jsonl"
    whole = sweep(SCENARIO, VARY, SLO, results=path).as_dict()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    counts: list[tuple[int, int]] = []
    resumed = sweep(SCENARIO, VARY, SLO, results=path, on_done=lambda done, total: counts.append((done, total)))
    assert counts == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert resumed.as_dict() == whole == unbroken
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)


def test_processes_change_nothing(unbroken: dict[str, Any]) -> None:
    assert sweep(SCENARIO, VARY, SLO, jobs=2).as_dict() == unbroken


def test_results_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    other = Scenario(EngineConfig(workload=WorkloadSpec(source="mixed", limit=26, rate=40.0)))
    assert run_key(SCENARIO, SLO) != run_key(other, SLO)
    assert run_key(SCENARIO, SLO) != run_key(SCENARIO, Slo(ttft_s=0.6))
    assert run_key(SCENARIO, SLO) != run_key(SCENARIO.changed({"max_num_seqs": 2}), SLO)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n")
    scenario = Scenario(EngineConfig(workload=WorkloadSpec(source=str(trace))))
    before = run_key(scenario, None)
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,6\n")
    assert run_key(scenario, None) != before


def test_results_of_a_device_whose_files_have_changed_are_not_taken(tmp_path: Path) -> None:
    model, gpu = tmp_path / "config.json", tmp_path / "own.toml"
    shape = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    shape |= {"vocab_size": 1000, "max_position_embeddings": 4096}
    model.write_text(json.dumps(shape))
    gpu.write_text("tflops = 200\nmemory_gb = 48\nbandwidth_gb_s = 1000\n")
    scenario = Scenario(EngineConfig(device=f"sim:{model}@{gpu}", workload=SCENARIO.config.workload))
    first = run_key(scenario, None)
    assert run_key(scenario, None) == first
    gpu.write_text(gpu.read_text().replace("1000", "2000"))
    second = run_key(scenario, None)
    model.write_text(json.dumps(shape | {"num_hidden_layers": 8}))
    assert len({first, second, run_key(scenario, None)}) == 3
    fitted = tmp_path / "fitted.toml"
    fitted.write_text(CALIBRATED)
    scenario = Scenario(EngineConfig(device=f"sim:@{fitted}", workload=SCENARIO.config.workload))
    first = run_key(scenario, None)
    fitted.write_text(CALIBRATED.replace("0.01", "0.02"))
    assert run_key(scenario, None) != first


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for content in (b"remember the milk", b"remember\nthe milk\n"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="another file"):
            sweep(SCENARIO, VARY, SLO, results=path)
        assert path.read_bytes() == content


def test_a_combination_that_cannot_run_is_told_and_the_others_run() -> None:
    outcome = sweep(SCENARIO, {"max_model_len": [4096, 10**7]}, None)
    errors = [run["error"] for run in outcome.as_dict()["runs"]]
    assert errors[:2] == [None, None] and "max_model_len=10000000" in errors[2]
    assert "not run: max_model_len" in outcome.as_text()
    assert outcome.winner != 2


def test_csv_has_a_line_for_each_run() -> None:
    outcome = sweep(SCENARIO, {"max_num_seqs": [2, 128]}, SLO)
    rows = list(csv.DictReader(io.StringIO(outcome.as_csv())))
    assert [row["max_num_seqs"] for row in rows] == ["2", "128"]
    assert sum(int(row["winner"]) for row in rows) == 1
    assert float(rows[1]["goodput"]) == outcome.as_dict()["runs"][1]["report"]["goodput"]["share"]


def test_the_verdict_names_the_winner_and_its_lead(unbroken: dict[str, Any]) -> None:
    (best,) = [run for run in unbroken["runs"] if run["winner"]]
    shares = sorted((run["report"]["goodput"]["share"] for run in unbroken["runs"]), reverse=True)
    assert best["report"]["goodput"]["share"] == shares[0]
    assert unbroken["verdict"].startswith(f"winner max_num_seqs={best['settings']['max_num_seqs']} ")
    assert "\n" not in unbroken["verdict"]


def test_equal_runs_have_no_winner() -> None:
    outcome = sweep(SCENARIO, {"max_num_seqs": [300, 400]}, None)
    assert outcome.verdict().startswith("no difference")


@pytest.mark.parametrize("slo", [None, SLO])
def test_refusing_requests_wins_nothing(slo: Slo | None) -> None:
    """In 12 blocks only the shortest requests fit, one after another: the few that are served are served well."""
    scenario = Scenario(EngineConfig(workload=WorkloadSpec(source="mixed", limit=12, rate=0.2)))
    outcome = sweep(scenario, {"num_blocks": [1, 12, 3000]}, slo)
    runs = {run["settings"]["num_blocks"]: run for run in outcome.as_dict()["runs"]}
    assert runs[1]["report"]["requests"]["refused"] == 12
    assert runs[12]["report"]["requests"]["kv_capacity"] > 0 < runs[12]["report"]["requests"]["refused"]
    assert runs[12]["report"]["e2e_s"]["p95"] < runs[3000]["report"]["e2e_s"]["p95"]
    assert runs[3000]["report"]["requests"]["refused"] == 0
    assert not runs[1]["winner"] and not runs[12]["winner"]
    assert "refused" in outcome.as_text().splitlines()[2]
    alone = sweep(scenario, {"num_blocks": [3000, 4000]}, slo)
    assert "refused" not in alone.as_text()
    small = structs.replace(scenario.config, scheduler={"num_blocks": 12})
    starved = sweep(Scenario(small), {"num_blocks": [1, 2]}, slo)
    assert "refused 4, −8 (−66.7%) against the next" in starved.verdict()


def document(goodput: float, ttft: float, itl: float) -> dict[str, Any]:
    return {"goodput": {"share": goodput}, "ttft_s": {"p95": ttft}, "itl_s": {"p95": itl}, "clock_s": 1.0}


def test_pareto_set_and_ranking() -> None:
    documents = [
        document(0.9, 1.0, 0.05),
        document(0.9, 2.0, 0.04),
        document(0.8, 3.0, 0.06),  # beaten by the first
        document(0.7, 0.5, 0.06),
        None,
    ]
    assert pareto_set(documents, with_slo=True) == [0, 1, 3]
    assert ranked(documents, with_slo=True) == [0, 1, 2, 3]
    assert pareto_set([documents[0], documents[0]], with_slo=True) == [0, 1]


def test_vary_is_read_strictly() -> None:
    assert parse_vary(["max_num_seqs=1, 2,1", "watermark=0,0.1"]) == {
        "max_num_seqs": [1, 2],
        "watermark": [0.0, 0.1],
    }
    assert parse_vary(["max_num_active_seqs=none,4"]) == {"max_num_active_seqs": [None, 4]}
    for bad in ("max_num_seqs", "max_num_seqs=", "max_num_seqs=a", "sequences=1", "watermark=0.9"):
        with pytest.raises(ConfigError):
            parse_vary([bad])
    with pytest.raises(ConfigError, match="twice"):
        parse_vary(["watermark=0", "watermark=0.1"])
    with pytest.raises(ConfigError, match="vary less"):
        combinations({name: range(200) for name in "abc"})
