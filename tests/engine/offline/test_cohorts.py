"""A report speaks for all requests, those still waiting included, and its books balance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.cohort import cohort
from schedtop.engine.contract.latencies.slo import parse_slo
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.golden.case import prompt_tokens, read_case
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.offline.report import Report
from schedtop.engine.step.engine import Engine

from tests.engine.golden.test_golden import FIELD
from tests.engine.harness import ask, engine_of, step

SLO = parse_slo("ttft=1s,itl=50ms")
BOOKS = ("finished", "kv_capacity", "refused", "aborted", "failed", "running", "waiting")


def overloaded(seconds: float) -> tuple[Engine, Report]:
    """Ten seconds as it should be; then a budget of eight tokens a step."""
    config = EngineConfig(device="sim:llama-3.1-8b@h100", workload=WorkloadSpec(source="mixed", rate=12.0))
    engine, report = build_engine(config), Report(SLO)
    turned = False
    while engine.clock_s < seconds:
        if engine.clock_s >= 10 and not turned:
            turned = engine.set_knobs({"max_num_batched_tokens": 8}).ok
        record = engine.step()
        if record is not None:
            report.add(record)
    return engine, report


def test_an_overloaded_engine_is_not_praised() -> None:
    engine, report = overloaded(36.0)
    document = report.as_dict()
    ttft, requests = document["ttft_s"], document["requests"]
    assert requests["waiting"] > 250
    assert ttft["open"] >= requests["waiting"]
    assert ttft["p95"] > 20.0 and "p95" in ttft["lower_bound"] and "p50" in ttft["lower_bound"]
    good = document["goodput"]
    assert good["share"] < 0.4 and good["past_open"] > 250
    assert requests["submitted"] == sum(requests[name] for name in BOOKS)
    oldest_s = requests["by_class"]["0"]["oldest_wait_s"]
    assert 20 < oldest_s <= max(engine.unended().ttft)
    assert f">{ttft['p95']:.2f} s" in report.as_text()


@given(st.integers(1, 60), st.sampled_from([1, 3, 8]), st.integers(0, 6))
def test_open_latencies_are_those_of_the_engine(num_steps: int, budget: int, aborted: int) -> None:
    """What a report knows from records alone is what the engine knows of its requests."""
    asks = [ask(f"r{place}", 5 + place, outputs=2 + 3 * place) for place in range(6)]
    engine, report = engine_of(*asks, max_num_batched_tokens=budget, num_blocks=12, block_size=4), Report(SLO)
    for place in range(num_steps):
        if place == 2:
            engine.abort(aborted)
        record = engine.step()
        if record is None:
            break
        report.add(record)
    document, unended = report.as_dict(), engine.unended()
    assert document["ttft_s"]["open"] == len(unended.ttft)
    assert document["itl_s"]["open"] == int((unended.itl > 0).sum())
    requests = document["requests"]
    assert requests["submitted"] == sum(requests[name] for name in BOOKS)
    assert requests["running"] + requests["waiting"] == engine.num_unfinished == document["e2e_s"]["open"]


def test_a_run_that_ended_has_nothing_open() -> None:
    config = EngineConfig(
        device="sim:llama-3.1-8b@h100", workload=WorkloadSpec(source="mixed", rate=12.0, limit=40)
    )
    document = run_headless(config, SLO, notice=lambda line: None).as_dict()
    assert document["requests"]["finished"] == 40
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert document[name]["open"] == 0 and document[name]["lower_bound"] == []


def test_classes_that_nobody_serves_are_seen() -> None:
    config = EngineConfig(
        device="sim:llama-3.1-8b@h100",
        workload=WorkloadSpec(source="mixed", rate=30.0),
        scheduler={"policy": "priority", "max_num_seqs": 16},
        duration_s=30.0,
    )
    report = run_headless(config, None, notice=lambda line: None)
    document = report.as_dict()
    classes = document["requests"]["by_class"]
    worst = classes["1"]
    assert len(classes) == 3 and worst["admitted"] == 1 < worst["arrived"] / 100
    assert "p50" in worst["ttft_s"]["lower_bound"] and worst["oldest_wait_s"] > 10
    assert sum(found["arrived"] for found in classes.values()) == document["requests"]["submitted"]
    assert sum(found["waiting"] for found in classes.values()) == document["requests"]["waiting"]
    assert "priority" in report.as_text() and "waiting (oldest" in report.as_text()


def test_prefill_of_the_aborted_is_named() -> None:
    engine, report = engine_of(ask("a", 40, outputs=4), max_num_batched_tokens=8, num_blocks=64), Report()
    for _ in range(3):
        report.add(step(engine))
    assert engine.abort(0)
    record = engine.tell()
    assert record is not None
    report.add(record)
    assert report.as_dict()["tokens"]["aborted_prefill"] == 24
    assert "aborted while in prefill: 24 tokens computed for nothing" in report.as_text()


def test_an_answer_cut_off_by_the_pool_is_no_finished_one() -> None:
    engine, report = engine_of(ask("a", 8, outputs=40), num_blocks=4, block_size=4), Report()
    while not engine.exhausted:
        report.add(step(engine))
    requests = report.as_dict()["requests"]
    assert (requests["finished"], requests["kv_capacity"]) == (0, 1)
    assert "kv_capacity: 1 answer cut off" in report.as_text()


def test_figures_by_client_are_those_of_who_asked() -> None:
    asks = [ask(f"r{place}", 8, client=client) for place, client in enumerate(["anna", "bob", "anna", ""])]
    engine, report = engine_of(*asks), Report()
    while not engine.exhausted:
        report.add(step(engine))
    by_client = report.as_dict()["requests"]["by_client"]
    assert {name: found["arrived"] for name, found in by_client.items()} == {"anna": 2, "bob": 1}
    assert by_client["anna"]["ttft_s"]["n"] == 2
    assert "client anna" in report.as_text()


def test_without_a_cache_there_are_no_look_ups() -> None:
    engine, report = engine_of(ask("a", 8), enable_prefix_caching=False), Report()
    while not engine.exhausted:
        report.add(step(engine))
    assert report.totals.cache_queries == 0 and report.as_dict()["hit_rate"] is None


def test_the_hit_rate_counts_from_the_first_step_on() -> None:
    case = read_case(FIELD / "hits-D3.json")
    config = {name: getattr(case.config, name) for name in ("block_size", "num_blocks", "max_num_batched_tokens")}
    asks = [ask(request.id, prompt_tokens(request).tolist(), outputs=2) for request in case.requests]
    engine, report = engine_of(asks[0], **config, enable_prefix_caching=True), Report(block_size=16)
    report.add(step(engine))
    report.add(step(engine))
    engine.submit(asks[1])
    while not engine.exhausted:
        report.add(step(engine))
    document = report.as_dict()
    assert document["hit_rate"] == 0.375
    assert document["lost_hits"] == {"tokens": 0, "share": 0.0, "unbounded_hit_rate": 0.375}


def records_of_a_small_pool(num_blocks: int) -> list[StepRecord]:
    """Three prompts that share nothing, over and over: they fit a pool together, or push each other out."""
    engine = engine_of(num_blocks=num_blocks, block_size=4, max_num_batched_tokens=64, enable_prefix_caching=True)
    records = []
    for turn in range(9):
        engine.submit(ask(f"r{turn}", [100 * (turn % 3) + place for place in range(32)], outputs=2))
        while not engine.exhausted:
            records.append(step(engine))
    return records


@pytest.mark.parametrize(("num_blocks", "lost"), [(16, True), (64, False)])
def test_lost_hits_say_that_a_pool_is_too_small_for_its_prefixes(num_blocks: int, lost: bool) -> None:
    report = Report(block_size=4)
    for record in records_of_a_small_pool(num_blocks):
        report.add(record)
    document: dict[str, Any] = report.as_dict()
    found = document["lost_hits"]
    assert found["unbounded_hit_rate"] == pytest.approx(6 * 28 / (9 * 32))
    assert (found["tokens"] > 0) == lost
    assert found["unbounded_hit_rate"] == pytest.approx(document["hit_rate"] + found["share"])


def test_one_function_gives_every_latency() -> None:
    """The report's document is that of the cohort, to the last digit."""
    engine, report = overloaded(14.0)
    unended = engine.unended()
    known = report.as_dict()["ttft_s"]
    config = EngineConfig(device="sim:llama-3.1-8b@h100", workload=WorkloadSpec(source="mixed", rate=12.0))
    again, values = build_engine(config), []
    turned = False
    while again.clock_s < 14.0:
        if again.clock_s >= 10 and not turned:
            turned = again.set_knobs({"max_num_batched_tokens": 8}).ok
        record = again.step()
        values += [] if record is None else [ttft_s for _, ttft_s in record.ttft_s]
    assert known == cohort(np.array(values), unended.ttft).document()
