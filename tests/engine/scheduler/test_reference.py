"""The real scheduler equals the plain one on random cases."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import Any

import msgspec
from hypothesis import given, settings
from schedtop.engine.contract.config import KVConnector, SchedulerConfig
from schedtop.engine.golden.case import Case, CaseStep, check_case
from schedtop.engine.golden.case_requests import CaseExternal, CaseRequest
from schedtop.engine.golden.replay import CaseRun

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
@given(
    deferred(cases())
    | overlapped(roomy(deferred(cases())))
    | roomy(connected(deferred(cases())))
    | overlapped(roomy(connected(deferred(cases()))))
)
def test_deferred_overlapping_and_loading_requests_are_decided_as_by_the_plain_one(case: Case) -> None:
    """Grammars and stop tokens, steps under way, and a store whose loads take steps, or fail."""
    check_case(case)
    pairs = zip_longest(CaseRun(case).steps(), plain_run(case).steps())
    for have, want in islice(pairs, 3 * longest_run(case)):
        assert have is not None and want is not None, "one ended before the other"
        reported = msgspec.json.decode(msgspec.json.encode(have))
        assert {name: reported[name] for name in want if name in reported} == {
            name: value for name, value in want.items() if name in reported
        }
        assert want.keys() - reported.keys() <= LOADS, "only an empty step has no news of loads"


def failing(config: dict[str, Any]) -> list[CaseStep]:
    """Steps of one request whose only loaded block, of two, does not come."""
    connector = KVConnector(mode="sync", on_failure=config.pop("on_failure", "recompute"))
    settings = {"num_blocks": 35, "block_size": 4, "max_num_batched_tokens": 3, **config}
    asked = CaseRequest(
        id="a",
        arrival_step=0,
        max_tokens=8,
        prompt_parts=[(103, 7)],
        external=CaseExternal(tokens=8, fail_block="all"),
    )
    return list(islice(CaseRun(Case(SchedulerConfig(kv_connector=connector, **settings), [asked])).steps(), 4))


def test_what_a_failed_load_lost_is_computed_though_the_next_step_passed_it_over() -> None:
    steps = failing({"pipeline_depth": 2})
    assert [step.scheduled for step in steps] == [[("a", 3, 0)], [], [("a", 3, 0)], [("a", 3, 0)]]
    assert steps[1].load_failed == ["a"]


def test_blocks_before_the_window_are_not_lost() -> None:
    steps = failing({"sliding_window": 1})
    assert [step.load_failed for step in steps] == [[]] * 4


def test_a_request_that_fails_keeps_its_blocks_until_its_last_step_under_way_is_applied() -> None:
    steps = failing({"on_failure": "fail", "async_scheduling": True})
    assert [(step.errors, step.free_blocks_after) for step in steps[1:]] == [(["a"], 33)]
