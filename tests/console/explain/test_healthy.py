"""A healthy engine is met with silence, all along."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import ask, serve, stream
from schedtop.engine.contract.config import WorkloadSpec

from tests.thorough import pick

WORKLOADS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("mixed", 8.0, {}),
    ("mixed", 4.0, {"num_speculative_tokens": 3}),
    ("mixed", 6.0, {"policy": "priority"}),
    ("mixed", 6.0, {"watermark": 0.05}),
    ("shared-prefix", 8.0, {}),
    ("unrelated", 1.0, {}),
    ("burst", 8.0, {}),
    ("pressure", 1.0, {}),
)


@pytest.mark.parametrize(("source", "rate", "scheduler"), WORKLOADS)
@pytest.mark.parametrize("seed", pick([0], thorough=[0, 1]))
def test_workloads_that_are_served_well(source: str, rate: float, scheduler: dict[str, Any], seed: int) -> None:
    run = serve(WorkloadSpec(source=source, rate=rate, seed=seed), pick(20, thorough=30), **scheduler)
    assert len(run.records) > 100
    assert run.log().entries == {}


def test_a_single_request() -> None:
    assert serve([ask(1, 5000, 500)]).log().entries == {}


def test_an_engine_at_rest_between_requests() -> None:
    assert serve(stream(20, 2.0, 300, 30), 60).log().entries == {}
