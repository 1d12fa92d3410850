"""The real scheduler equals the plain one on random cases."""

from __future__ import annotations

from itertools import islice, zip_longest

import msgspec
from hypothesis import given, settings
from schedtop.engine.golden.case import Case, CaseRun, check_case

from tests.engine.scheduler.cases import cases, connected, deferred, interrupted, longest_run, overlapped, roomy
from tests.engine.scheduler.plain import plain_run, plainly

PROFILE = settings()
"""Whichever is on: quick or thorough."""

LOADS = {"load_done", "load_failed", "send_done", "errors"}


@settings(max_examples=3 * PROFILE.max_examples)
@given(cases() | interrupted(cases()) | overlapped(roomy(cases())) | interrupted(overlapped(roomy(cases()))))
def test_the_scheduler_decides_as_the_plain_one(case: Case) -> None:
    real, plain = CaseRun(case), plain_run(case)
    ends: dict[int, str] = {}
    pairs = zip_longest(real.steps(), plain.steps())
    for have, want in islice(pairs, longest_run(case)):
        assert have is not None and want is not None, "one ended before the other"
        assert plainly(have, want) == want
        ends |= {finish.number: finish.reason for finish in real.scheduler.planned.ended}
    ends |= {finish.number: finish.reason for finish in real.finishes}
    ends |= {refusal.number: "refused" for refusal in real.refusals}
    assert len(ends) == len(case.requests), "a request neither ends nor is refused"
    # Requests get their numbers in order of arrival, which is the order of the case.
    assert {case.requests[number].id: reason for number, reason in ends.items()} == plain.ends


@settings(max_examples=PROFILE.max_examples)
@given(deferred(cases()) | overlapped(roomy(deferred(cases()))) | roomy(connected(deferred(cases()))))
def test_deferred_overlapping_and_loading_requests_are_decided_as_by_the_plain_one(case: Case) -> None:
    """Grammars and stop tokens, steps under way, and a store whose loads take steps, or fail."""
    check_case(case)
    pairs = zip_longest(CaseRun(case).steps(), plain_run(case).steps())
    for have, want in islice(pairs, 3 * longest_run(case)):
        assert have is not None and want is not None, "one ended before the other"
        told = msgspec.json.decode(msgspec.json.encode(have))
        assert {name: told[name] for name in want if name in told} == {
            name: value for name, value in want.items() if name in told
        }
        assert want.keys() - told.keys() <= LOADS, "only an empty step has no news of loads"
