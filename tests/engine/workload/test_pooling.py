"""Requests without outputs, and prefixes that are shared only under the same salt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.workload.trace import TraceError

Replay = Callable[..., list[Request]]


def test_pooling_requests_end_with_their_prompt(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,3000,0\n1,500,7\n")
    workload = WorkloadSpec(source=str(path))
    config = EngineConfig(workload=workload, scheduler={"pooling": True, "max_num_batched_tokens": 1024})
    document = run_headless(config, None, lambda line: None).as_dict()
    assert (document["requests"]["finished"], document["tokens"]["output"], document["steps"]) == (2, 0, 4)
    assert document["e2e_s"]["n"] == 2 and document["ttft_s"]["n"] == 0
    with pytest.raises(TraceError, match="num_decode_tokens is 0"):
        build_engine(EngineConfig(workload=workload))


def test_a_generator_has_no_outputs_either() -> None:
    config = EngineConfig(workload=WorkloadSpec(source="mixed", limit=20), scheduler={"pooling": True})
    document = run_headless(config, None, lambda line: None).as_dict()
    assert document["requests"]["finished"] == 20 and document["tokens"]["output"] == 0


def test_pooling_is_refused_where_outputs_are_the_point() -> None:
    with pytest.raises(ConfigError, match="--pooling: clients of --http ask for outputs"):
        build_engine(EngineConfig(workload=None, http="127.0.0.1:0", scheduler={"pooling": True}))
    with pytest.raises(ConfigError, match="--pooling: only for simulated devices"):
        build_engine(EngineConfig(device="cpu", model="smollm2", scheduler={"pooling": True}))


def test_a_salt_keeps_prefixes_apart(tmp_path: Path) -> None:
    row = '{"timestamp": %d, "input_length": 1024, "output_length": 2, "hash_ids": [1, 2]%s}'
    salts = ("", ', "cache_salt": "red"', ', "cache_salt": "red"', ', "cache_salt": "blue"', "")
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(row % (5000 * at, salt) for at, salt in enumerate(salts)))
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=str(path))))
    cached = []
    while not engine.exhausted:
        record = engine.step()
        cached += [] if record is None else [entry.cached_tokens for entry in record.admissions]
    assert cached == [0, 0, 1008, 0, 1008]


def test_a_salt_that_is_no_text_is_a_bad_line(replay: Replay) -> None:
    with pytest.raises(TraceError, match="trace:1: cache_salt is not text"):
        replay('{"timestamp": 0, "input_length": 10, "output_length": 2, "cache_salt": [1]}')
