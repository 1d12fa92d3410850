"""Every limiter has its row: a meaning for help, and what lets go of what it holds."""

from __future__ import annotations

import pytest
from schedtop.console.widgets.queue import QueuePanel
from schedtop.engine.contract.knobs import BY_NAME
from schedtop.engine.contract.limiters import BUDGET, CAP, CHUNKS, LIMITERS, describe_head
from schedtop.engine.contract.telemetry import DEFERRED, Head, Limiter

NO_KNOB_HELPS = {Limiter.PAUSED, Limiter.DP_THROTTLE, *DEFERRED}


@pytest.mark.parametrize("limiter", [limiter for limiter in Limiter if limiter is not Limiter.NONE])
def test_a_limiter_has_help_remedy_and_label(limiter: Limiter) -> None:
    row = LIMITERS[limiter]
    words = limiter.replace("_", " ")
    assert row.meaning and f"{words} " in QueuePanel.HELP and row.meaning in QueuePanel.HELP
    assert bool(row.remedies) is (limiter not in NO_KNOB_HELPS)
    assert all(name in BY_NAME or name in (BUDGET, CAP, CHUNKS) for name, _ in row.remedies)
    assert (limiter.value if limiter in DEFERRED else words) in describe_head(Head(1, limiter, None, None))
