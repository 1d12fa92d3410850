"""Where this scheduler decides differently from vLLM on purpose (docs/scheduler.md)."""

from __future__ import annotations

from schedtop.engine.golden.case import Case
from schedtop.engine.golden.replay import CaseDifference

STANDS_STILL = (
    "deliberate: with its drafts a waiting request never fits, and vLLM schedules nothing for ever;"
    " here the drafts are dropped"
)


def deviation(case: Case, difference: CaseDifference) -> str | None:
    """Why a difference is meant to be, None for one that is not: recorded is a step with drafts in which nothing runs
    or is scheduled although requests wait."""
    recorded = next((step for step in case.steps or () if step.step == difference.step), None)
    if recorded is None or not case.config.num_speculative_tokens or difference.field != "scheduled":
        return None
    stands_still = recorded.waiting and not recorded.running and not recorded.scheduled
    return STANDS_STILL if stands_still and difference.decided else None
