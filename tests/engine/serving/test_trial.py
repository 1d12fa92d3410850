"""What a trial's SLO watch sees: latencies that ended, and those that did not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.commands import CONFIRM_WITHIN_S, MAX_TRIAL_S, SetKnobs
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.handoff.request import Request
from schedtop.engine.serving.slo_watch import MIN_SAMPLES, SETTLE_S, WATCH_S
from schedtop.engine.serving.trial import Trials
from schedtop.engine.step.engine import Engine

from tests.engine.harness import STEP_S, Script, ask, engine_of
from tests.engine.harness import step as stepped

ROOMY = {"num_blocks": 4000, "max_model_len": 4000}


def reported(engine: Engine, before: int, steps: int, slo_s: dict[str, float], **knobs: int) -> list[str]:
    """What is said of a trial that begins after `before` steps, until it is over or `steps` more ran."""
    said: list[str] = []
    trials = Trials(engine, lambda notice: said.append(notice.text), now=lambda: 0.0)
    for _ in range(before):
        trials.watch(stepped(engine))
    assert trials.set_knobs(SetKnobs(1, knobs, trial_s=3600.0, slo_s=slo_s)).ok
    for _ in range(steps):
        trials.watch(stepped(engine))
        trials.check()
        if trials.pending is None:
            break
    return said[1:]


def stream(count: int, every_s: float, outputs: int = 4) -> Iterable[Request]:
    return [ask(f"{i:02}", 4, outputs, arrival_s=i * every_s) for i in range(count)]


def decoding(count: int) -> Engine:
    """So many requests that answer for long."""
    return engine_of(*(ask(f"{i:03}", 4, 3000) for i in range(count)), max_num_seqs=1000, **ROOMY)


def test_requests_that_wait_for_their_first_token_break_a_ttft_slo() -> None:
    engine = engine_of(ask("zz", 4, 3000), source=Script(list(stream(60, 0.25))), **ROOMY)
    (words,) = reported(engine, 4, 100, {"ttft": 2.0}, max_num_seqs=1)
    # The one that runs never ends: no TTFT of the time since then does.
    assert "TTFT p95" in words and "broke its SLO of 2 s" in words and "still without a token" in words
    assert engine.knobs["max_num_seqs"] == 128
    assert len(engine.scheduler.state.waiting) >= MIN_SAMPLES


def test_a_day_is_the_longest_and_leaves_time_to_confirm_it() -> None:
    trials = Trials(decoding(2), lambda notice: None, now=lambda: 0.0)
    with pytest.raises(ValueError, match="at most 86400"):
        trials.set_knobs(SetKnobs(1, {"max_num_seqs": 5}, trial_s=MAX_TRIAL_S + CONFIRM_WITHIN_S + 1.0))
    assert trials.set_knobs(SetKnobs(2, {"max_num_seqs": 5}, trial_s=MAX_TRIAL_S + CONFIRM_WITHIN_S)).ok


def test_a_few_that_wait_are_too_few() -> None:
    few = engine_of(ask("zz", 4, 3000), source=Script(list(stream(15, 0.25))), **ROOMY)
    assert reported(few, 2, 200, {"ttft": 2.0}, max_num_seqs=1) == []


def test_waits_within_the_bound_do_not_count() -> None:
    engine = engine_of(ask("zz", 4, 3000), source=Script(list(stream(60, 0.25))), **ROOMY)
    assert reported(engine, 4, 100, {"ttft": 1e6}, max_num_seqs=1) == []


@pytest.mark.parametrize("bound_s", [STEP_S * 1.5, WATCH_S])
def test_requests_that_starve_break_an_itl_slo_however_many_gaps_the_others_have(bound_s: float) -> None:
    engine = decoding(10)
    (words,) = reported(engine, 5, 100, {"itl": bound_s}, max_num_scheduled_tokens=4)
    assert "ITL" in words and "broke its SLO" in words
    assert engine.knobs["max_num_scheduled_tokens"] is None


def test_it_says_how_many_starve() -> None:
    (words,) = reported(decoding(150), 5, 100, {"itl": WATCH_S}, max_num_scheduled_tokens=110)
    assert words.endswith("ITL broke its SLO of 5 s: 40 of 150 requests got no token for longer")


def test_a_budget_for_all_of_them_is_kept() -> None:
    assert reported(decoding(10), 5, 100, {"itl": STEP_S * 1.5}, max_num_scheduled_tokens=10) == []


def test_one_of_many_that_is_held_up_is_what_pressure_does() -> None:
    assert reported(decoding(20), 5, 100, {"itl": 3.0}, max_num_scheduled_tokens=19) == []


def test_nothing_is_judged_before_the_change_has_settled() -> None:
    engine = decoding(30)
    said = reported(engine, 5, int(SETTLE_S / STEP_S) - 1, {"itl": STEP_S / 2}, max_num_scheduled_tokens=4)
    assert said == []


def test_what_has_not_ended_is_what_a_snapshot_tells() -> None:
    """Under pressure, with requests that run, wait, and were preempted."""
    engine = engine_of(source=Script(list(stream(30, 0.2, outputs=20))), num_blocks=24)
    seen = {"ttft": 0, "itl": 0, "preempted": 0}
    while engine.step() is not None:
        found, now_s = engine.unended(), engine.clock_s
        requests = engine.snapshot().requests
        waits = [now_s - r.arrival.arrival_s for r in requests if r.last_token_s is None]
        gaps = [now_s - r.last_token_s for r in requests if r.last_token_s is not None]
        assert sorted(found.ttft.tolist()) == pytest.approx(sorted(waits))
        assert sorted(found.itl.tolist()) == pytest.approx(sorted(gaps))
        seen["ttft"] += len(waits)
        seen["itl"] += len(gaps)
        seen["preempted"] += sum(r.status == "preempted" and r.last_token_s is not None for r in requests)
    assert all(seen.values()), seen


def under_pressure(change: dict[str, Any], slo_s: dict[str, float], seconds: float = 12.0) -> list[str]:
    """An overloaded pool whose SLO is broken for long; then a change on trial."""
    config = EngineConfig(
        device="sim:llama-3.1-8b@h100", workload=WorkloadSpec(source="pressure"), scheduler={"num_blocks": 2000}
    )
    said: list[str] = []
    engine = build_engine(config)
    trials = Trials(engine, lambda notice: said.append(notice.text), now=lambda: 0.0)
    while engine.clock_s < 22.0:
        trials.watch(stepped(engine))
    assert trials.set_knobs(SetKnobs(1, change, trial_s=3600.0, slo_s=slo_s)).ok
    while engine.clock_s < 22.0 + seconds and trials.pending is not None:
        trials.watch(stepped(engine))
        trials.check()
    return said[1:]


def test_a_cure_is_not_taken_back_for_what_was_broken_before() -> None:
    assert under_pressure({"watermark": 0.05}, {"ttft": 1.0}) == []


def test_what_was_broken_must_not_get_worse() -> None:
    (words,) = under_pressure({"max_num_batched_tokens": 8}, {"ttft": 1.0})
    assert "was past its SLO of 1 s and gets worse" in words and "outputs/s served" in words


def test_a_change_that_starves_is_caught_where_ttft_is_broken_already() -> None:
    (words,) = under_pressure({"max_num_scheduled_tokens": 4}, {"ttft": 1.0, "itl": 0.2})
    assert "ITL" in words or "gets worse" in words
