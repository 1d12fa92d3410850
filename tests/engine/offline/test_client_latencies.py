"""What a client feels is the scheduler's latency and the time in front of it."""

from __future__ import annotations

from typing import Any

import pytest
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.offline.report_text import report_text
from schedtop.engine.sim.devices import FRONT_END_S


def report(device: str, duration_s: float | None = None) -> dict[str, Any]:
    workload = WorkloadSpec(source="mixed", rate=20.0, limit=60)
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
        for key in ("mean", "p50", "p90", "p95", "p99"):
            assert clients[key] == pytest.approx(ours[key] + FRONT_END_S)
    assert (document["ttft_s"]["open"] > 0) is (duration_s is not None)
    assert "client TTFT" in report_text(document)


def test_without_a_known_front_end_there_is_none() -> None:
    document = report("sim:smollm2-135m@cpu")
    assert not any(name.startswith("client_") for name in document)
