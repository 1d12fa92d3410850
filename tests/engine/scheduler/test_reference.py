"""The plain scheduler equals every recorded case, and the real one equals the plain one on random cases."""

from __future__ import annotations

from itertools import islice, zip_longest
from pathlib import Path

import pytest
from hypothesis import given, settings
from schedtop.engine.golden.case import Case, CaseRun, compare_step, read_case

from tests.engine.scheduler.cases import cases, longest_run
from tests.engine.scheduler.plain import PlainRun

NOT_YET = ("async", "asyncpipe", "asyncspec", "defer", "pipeline", "stop")
"""Families that the plain scheduler does not know."""
GOLDEN = [
    path
    for path in sorted((Path(__file__).parents[2] / "golden").glob("*.json"))
    if path.stem.split("-")[0] not in NOT_YET
]

PROFILE = settings()
"""Whichever is on: quick or thorough."""


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_plain_scheduler_decides_as_recorded(path: Path) -> None:
    case = read_case(path)
    decided = list(PlainRun(case).steps())
    assert case.steps is not None
    for recorded, step in zip(case.steps, decided, strict=False):
        assert compare_step(recorded, step) is None
    assert len(case.steps) == len(decided)


@settings(max_examples=3 * PROFILE.max_examples)
@given(cases())
def test_the_scheduler_decides_as_the_plain_one(case: Case) -> None:
    real, plain = CaseRun(case), PlainRun(case)
    ends: dict[int, str] = {}
    pairs = zip_longest((step for step, _ in real.steps()), plain.steps())
    for have, want in islice(pairs, longest_run(case)):
        assert have is not None and want is not None, "one ended before the other"
        assert compare_step(want, have) is None
        ends |= {finish.number: finish.reason for finish in real.scheduler.planned.ended}
    ends |= {finish.number: finish.reason for finish in real.finishes}
    ends |= {refusal.number: "refused" for refusal in real.refusals}
    assert len(ends) == len(case.requests), "a request neither ends nor is refused"
    # Requests get their numbers in order of arrival, which is the order of the case.
    assert {case.requests[number].id: reason for number, reason in ends.items()} == plain.ends
