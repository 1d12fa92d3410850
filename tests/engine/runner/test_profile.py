"""The profile accounts for whole steps, and leaves the worker as it was."""

from __future__ import annotations

from typing import Any

import pytest
from schedtop.engine.runner.profile import REST, STEP, profiled
from schedtop.engine.runner.worker import ModelWorker


def test_all_that_a_draft_model_does_is_drafts(lab: Any) -> None:
    served = lab.serve("llama", draft="llama", num_speculative_tokens=2, draft_slots=1)
    served.add([5, 6, 7, 8], 6)
    with profiled() as profile:
        served.run()
    shares = profile.shares()
    assert served.accepted and shares["drafts"][0] > 0
    assert sum(ms for name, (ms, _) in shares.items() if name != STEP) == pytest.approx(shares[STEP][0])
    assert shares[REST][0] > 0


@pytest.mark.parametrize("route", ["lean", "native", "general"])
def test_parts_add_up_to_the_step(lab: Any, route: str) -> None:
    before = ModelWorker.execute
    served = lab.serve("llama", route)
    served.add([5, 6, 7, 8], 6)
    with profiled() as profile:
        served.run()
    assert ModelWorker.execute is before
    assert profile.steps == 6
    shares = profile.shares()
    assert sum(ms for name, (ms, _) in shares.items() if name != STEP) == pytest.approx(shares[STEP][0])
    for part in ("linears", "attention", "sampling", REST):
        assert shares[part][0] > 0, part
    assert all(name in profile.as_text() for name in shares)
