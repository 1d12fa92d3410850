"""What a client feels is the scheduler's latency and the time in front of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.offline.report import Report
from schedtop.engine.offline.report_text import report_text
from schedtop.engine.sim.devices import FRONT_END_ROW_S, FRONT_END_S, FRONT_END_TOKEN_S

MOST_TOKENS = 2000


def report(device: str, duration_s: float | None = None) -> dict[str, Any]:
    workload = WorkloadSpec(source="mixed", rate=20.0, limit=60, max_prompt_tokens=MOST_TOKENS)
    config = EngineConfig(device=device, workload=workload, duration_s=duration_s, scheduler={"max_num_seqs": 4})
    return run_headless(config, None, lambda line: None).as_dict()


@pytest.mark.parametrize("duration_s", [None, 2.0])
def test_a_simulated_front_end_comes_on_top(duration_s: float | None) -> None:
    document = report("sim:llama-3.1-8b@h100", duration_s)
    for name in ("ttft_s", "e2e_s"):
        ours, clients = document[name], document[f"client_{name}"]
        assert {key: clients[key] for key in ("n", "open", "lower_bound")} == {
            key: ours[key] for key in ("n", "open", "lower_bound")
        }
        # Four requests are in a step at most.
        most_s = FRONT_END_S + 4 * FRONT_END_ROW_S + MOST_TOKENS * FRONT_END_TOKEN_S
        for key in ("mean", "p50", "p90", "p95", "p99"):
            assert FRONT_END_S - 1e-9 <= clients[key] - ours[key] <= most_s + 1e-9
    assert (document["ttft_s"]["open"] > 0) is (duration_s is not None)
    assert "client TTFT" in report_text(document)


@pytest.mark.parametrize("prompt", [1, 100, 7000])
def test_a_longer_prompt_takes_the_front_end_longer(prompt: int) -> None:
    engine = build_engine(EngineConfig(device="sim:llama-3.1-8b@h100", workload=None))
    seen = Report.of(engine.header, None)
    engine.submit(Request("r", np.zeros(prompt, dtype=np.int32), 5))
    while engine.num_unfinished:
        if (record := engine.step()) is not None:
            seen.add(record)
    document = seen.as_dict()
    for name in ("ttft_s", "e2e_s"):
        wait_s = document[f"client_{name}"]["mean"] - document[name]["mean"]
        assert wait_s == pytest.approx(FRONT_END_S + FRONT_END_ROW_S + prompt * FRONT_END_TOKEN_S)


def test_what_a_server_tells_of_a_request_counts() -> None:
    engine, seen = build_engine(EngineConfig(device="sim:smollm2-135m@cpu", workload=None)), Report()
    engine.submit(Request("r", np.arange(20, dtype=np.int32), 5, client_wait_s=3.0))
    while engine.num_unfinished:
        record = engine.step()
        assert record is not None
        seen.add(record)
    document = seen.as_dict()
    for name in ("ttft_s", "e2e_s"):
        assert document[f"client_{name}"]["n"] == 1
        assert document[f"client_{name}"]["mean"] == pytest.approx(document[name]["mean"] + 3.0)


def test_without_a_known_front_end_there_is_none() -> None:
    document = report("sim:smollm2-135m@cpu")
    assert not any(name.startswith("client_") for name in document)
