"""Rules of admission that random cases meet too rarely, each on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.kv_groups import KVGroup
from schedtop.engine.golden.case import Case, CaseKnob, CaseRequest, CaseStep
from schedtop.engine.golden.replay import CaseRun

from tests.engine.scheduler.plain import plain_run, plainly

MOST_STEPS = 200


def replay(requests: list[CaseRequest], knobs: Sequence[CaseKnob] = (), **config: Any) -> list[CaseStep]:
    """Every step, equal in the real and the plain scheduler."""
    settings = {"block_size": 4, "num_blocks": 16, "max_model_len": 100, **config}
    case = Case(config=SchedulerConfig(**settings), requests=requests, knobs=[*knobs])
    steps = list(islice(CaseRun(case).steps(), MOST_STEPS))
    assert len(steps) < MOST_STEPS, f"{steps[-1].waiting} wait for ever"
    plain = list(islice(plain_run(case).steps(), MOST_STEPS))
    assert [plainly(step, want) for step, want in zip(steps, plain, strict=True)] == plain
    return steps


def admission(steps: list[CaseStep], id: str) -> tuple[int, int]:
    """Tokens and drafts of the step that admits a request."""
    (step,) = [step for step in steps if id in step.admitted]
    ((tokens, drafts),) = [(tokens, drafts) for name, tokens, drafts in step.scheduled if name == id]
    return tokens, drafts


DECODING = CaseRequest("a", 0, 20, [(1, 8)])
ONE_TOKEN = CaseRequest("b", 2, 4, [(2, 1)])


def test_a_request_with_one_token_to_compute_is_padded_beside_a_decode_batch() -> None:
    assert admission(replay([DECODING, ONE_TOKEN], num_speculative_tokens=2), "b") == (3, 2)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"num_speculative_tokens": 0}, "nothing is speculated"),
        ({"num_speculative_tokens": 2, "long_prefill_token_threshold": 2}, "the threshold is below 1 + k"),
        ({"num_speculative_tokens": 2, "max_num_batched_tokens": 5}, "the prompt is still being computed"),
    ],
)
def test_it_is_not_padded(config: dict[str, Any], why: str) -> None:
    decoding = CaseRequest("a", 0, 20, [(1, 12)]) if "max_num_batched_tokens" in config else DECODING
    assert admission(replay([decoding, ONE_TOKEN], **config), "b") == (1, 0), why


def test_nothing_running_and_nothing_cached_is_not_padded() -> None:
    assert admission(replay([ONE_TOKEN], num_speculative_tokens=2), "b") == (1, 0)


FIRST = CaseRequest("a", 0, 1, [(1, 9)])
AGAIN = CaseRequest("b", 9, 1, [(1, 9)])


def test_a_wholly_cached_prompt_is_padded_with_nothing_running() -> None:
    steps = replay([FIRST, AGAIN], num_speculative_tokens=2)
    assert steps[-1].admitted == {"b": 8}
    assert admission(steps, "b") == (3, 2)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"max_num_batched_tokens": 2, "max_num_seqs": 2}, "no step could ever take it"),
        ({"max_num_scheduled_tokens": 2}, "no step could ever take it"),
        ({"max_num_batched_tokens": 4, "draft_slots": 2, "max_num_seqs": 1}, "no step could ever take it"),
        ({"block_size": 1, "num_blocks": 9}, "no pool could ever hold it"),
        ({"max_model_len": 11}, "it would reach past the model"),
    ],
)
def test_padding_that_can_never_be_does_not_hold_a_request_back(config: dict[str, Any], why: str) -> None:
    steps = replay([FIRST, AGAIN], num_speculative_tokens=2, **config)
    assert admission(steps, "b") == (1, 0), why


def test_padding_that_must_wait_for_budget_ends_the_pass() -> None:
    late = CaseRequest("c", 2, 1, [(3, 1)])
    steps = replay([DECODING, ONE_TOKEN, late], num_speculative_tokens=2, max_num_batched_tokens=8)
    assert steps[2].admitted == {"b": 0} and steps[2].waiting == ["c"]


def test_a_draft_makes_no_request_impossible() -> None:
    """Alone in the pool, the last block it needs is its own even where drafts would need one more."""
    steps = replay([CaseRequest("a", 0, 5, [(1, 12)])], num_blocks=4, num_speculative_tokens=4)
    assert steps[-1].finished == ["a"] and not any(step.preempted for step in steps)


def test_under_a_window_a_chunk_larger_than_the_pool_is_shortened() -> None:
    """The budget that began fits the pool beside the window; what it is raised to does not."""
    raised = CaseKnob(2, {"max_num_batched_tokens": 64})
    config = {"sliding_window": 8, "num_blocks": 8, "max_num_batched_tokens": 8}
    steps = replay([CaseRequest("a", 0, 1, [(1, 90)])], [raised], **config)
    chunks = [tokens for step in steps for _, tokens, _ in step.scheduled]
    assert chunks[:2] == [8, 8] and sum(chunks) == 90
    assert 8 < max(chunks) <= 8 * 4


def test_a_state_that_no_chunk_reaches_holds_nobody_up() -> None:
    """A chunk of 8 tokens never holds a block of 16, at whose end a state is kept: it ends where it must."""
    groups = ("full", KVGroup(mamba="align"))
    limits = {"kv_groups": groups, "block_size": 16, "max_num_batched_tokens": 8, "max_num_seqs": 2}
    steps = replay([CaseRequest("a", 0, 2, [(1, 40)])], **limits)
    assert [tokens for step in steps for _, tokens, _ in step.scheduled] == [8] * 5 + [1]
    assert steps[-1].finished == ["a"]


def test_a_victim_that_got_a_block_in_the_same_step_leaves_nothing_in_the_plan() -> None:
    requests = [CaseRequest("a", 0, 9, [(1, 7)], priority=1), CaseRequest("b", 1, 9, [(2, 8)], priority=0)]
    config = SchedulerConfig(num_blocks=5, block_size=4, policy="priority", enable_prefix_caching=False)
    run = CaseRun(Case(config=config, requests=requests))
    steps = run.steps()
    for _ in range(3):
        step = next(steps)
    assert step.preempted == ["a"] and step.scheduled == [("b", 1, 0)]
    assert list(run.scheduler.planned.new_blocks) == [1]
