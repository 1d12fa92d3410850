"""What an operator must hear first: overload, starvation, lost hits, ends that are not successes; twins stay silent."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scenes import Run, ask, serve, stream
from schedtop.console.explain.facts import Facts
from schedtop.console.explain.log import Log
from schedtop.console.explain.window import Bounds
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.handoff.request import Request
from schedtop.engine.step.engine import Engine


@cache
def starved_of_budget() -> Run:
    """As it should be for ten seconds; then eight tokens a step."""

    def each(engine: Engine) -> None:
        if engine.clock_s > 10 and not engine.knobs_version:
            engine.set_knobs({"max_num_batched_tokens": 8}, by="key")

    return serve(WorkloadSpec(source="mixed", rate=12.0), 36, each)


def test_overload_is_told_before_all_else() -> None:
    run = starved_of_budget()
    found = list(run.findings(Bounds(ttft_s=1.0, itl_s=0.05)))
    assert found[0] == "overload"
    finding = run.findings()["overload"]
    rates, backlog, limits, _ = finding.links
    assert "requests/s come" in rates.words and "the backlog grows by" in rates.words
    growth = rates.numbers["growth_tokens_per_s"]
    assert isinstance(growth, float) and growth > 1000
    assert backlog.numbers["waiting"] == run.records[-1].waiting > 250
    assert "token budget" in limits.words or "input budget" in limits.words
    assert finding.advice[0].knob == "max_num_batched_tokens" and finding.advice[0].direction == "up"
    assert "less load, or more engines" in finding.advice[-1].words
    assert run.log().ranked()[0].finding.id == "overload"


@pytest.mark.parametrize(("source", "rate"), [("burst", 8.0), ("pressure", 1.0), ("mixed", 12.0)])
def test_a_load_that_is_served_is_no_overload(source: str, rate: float) -> None:
    log = serve(WorkloadSpec(source=source, rate=rate, seed=4), 40).log()
    assert "overload" not in log.entries


@cache
def documents_in(num_blocks: int) -> Run:
    """Questions about twenty documents in turn: 2,500 blocks of prefixes."""

    def question(turn: int) -> Request:
        document = np.arange(2000, dtype=np.int32) + turn % 20 * 2000
        own = np.arange(24, dtype=np.int32) + 100_000 + turn * 100
        return Request(f"r-{turn}", np.concatenate([document, own]), 4, 0.25 * turn)

    return serve([question(turn) for turn in range(400)], 120, num_blocks=num_blocks)


def test_lost_hits_not_usage_say_that_a_pool_is_too_small() -> None:
    """2,450 blocks give 41 % of the prompt tokens where 2,700 give 94 %, and requests hold few of either."""
    small, large = (run.records[-1].totals for run in map(documents_in, (2450, 2700)))
    assert small.cached_tokens / small.prompt_tokens == pytest.approx(0.41, abs=0.01)
    assert large.cached_tokens / large.prompt_tokens == pytest.approx(380 / 400 * 2000 / 2024)
    finding = documents_in(2450).findings()["lost-hits"]
    rate, lost, room = finding.links
    assert rate.numbers["unbounded_hit_rate"] == pytest.approx(2000 / 2024)
    share, held = lost.numbers["lost_share"], room.numbers["held_share"]
    assert isinstance(share, float) and share > 0.5
    assert isinstance(held, float) and held < 0.1
    assert finding.advice[0].knob == "num_blocks"
    assert not documents_in(2700).log().entries


@cache
def two_classes() -> Run:
    """Urgent requests fill every place; five of another class, from two clients, wait."""
    urgent = stream(400, 0.05, 200, 60, priority=0, client="carl")
    waiting = [
        ask(place, 100, 20, 2.0 + place, priority=5, client="anna" if place < 4 else "bob") for place in range(1, 6)
    ]
    return serve([*urgent, *waiting], 18, policy="priority", max_num_seqs=8)


def test_a_class_that_nobody_serves_is_named() -> None:
    run = two_classes()
    finding = run.findings()["starvation"]
    who, by_class, by_client, _ = finding.links
    end_s = run.records[-1].end_s
    assert who.words.startswith(f"r-1 (priority 5, lower is more urgent; client anna) has waited {end_s - 3:.2f} s")
    overtaken = who.numbers["overtaken_by"]
    assert isinstance(overtaken, int) and overtaken > 20
    waits = [f"r-{place} for {end_s - 2 - place:.2f} s" for place in (1, 2, 3)]
    assert f"5 requests starve: 5 of priority 5 ({', '.join(waits)} and 2 more)" in by_class.words
    assert by_client.words == f"by client: anna 3, for up to {end_s - 3:.2f} s; bob 2, for up to {end_s - 6:.2f} s"
    assert by_client.numbers["starving_of_client_bob"] == 2


def test_who_ran_before_starves_only_by_what_overtook_it_since() -> None:
    """A preempted request is older than nearly all that were admitted while it ran."""
    requests = [ask(1, 100, 900, priority=1), *stream(100, 0.05, 200, 60, priority=0)]
    run = serve(requests, 6, num_blocks=90, policy="priority")
    assert any(event.number == 0 for record in run.records for event in record.preemptions)
    facts = Facts()
    facts.take_header(run.header)
    facts.take_snapshot(run.snapshot)
    for record in run.records:
        facts.take_record(record)
        if record.preemptions:
            assert facts.overtaken().get(record.preemptions[0].number, 0) == 0


def test_one_class_in_its_order_starves_nobody() -> None:
    run = serve(stream(200, 0.02, 200, 60), 12, max_num_seqs=8)
    assert "starvation" not in run.log().entries


def test_answers_cut_off_are_told() -> None:
    run = serve([ask(1, 100, 4000), *stream(20, 1.0, 50, 10)], 40, num_blocks=60, max_model_len=8000)
    finding = run.log().entries["cut-off"].best
    assert "ended by kv_capacity" in finding.links[0].words
    assert finding.advice[0].knob == "num_blocks"


def test_an_answer_cut_off_at_the_very_end_is_told() -> None:
    run = serve([ask(1, 100, 4000)], 40, num_blocks=60, max_model_len=8000)
    assert run.records[-1].finishes and "cut-off" in run.log().entries


def test_a_share_of_refusals_is_told_with_its_reason() -> None:
    requests = [ask(place, 3000 if place % 5 == 0 else 100, 10, place * 0.5) for place in range(40)]
    finding = serve(requests, 30, max_model_len=2000).log().entries["refused"].best
    share, reason = finding.links
    assert "of" in share.words and "%" in share.words
    assert "max_model_len" in reason.words


def test_prefill_of_clients_who_left_is_told() -> None:
    def each(engine: Engine) -> None:
        for number, request in list(engine.scheduler.state.requests.items()):
            if request.num_prompt_tokens > 3000 and engine.scheduler.prefill_tokens(number):
                engine.abort(number)

    requests = [ask(place, 4000 if place % 2 else 100, 10, place * 0.5) for place in range(40)]
    finding = serve(requests, 22, each, max_num_batched_tokens=512).log().entries["aborted-prefill"].best
    assert finding.links[0].words.startswith("aborted while in prefill: ")
    assert "tokens computed for nothing" in finding.links[0].words


def test_a_few_gaps_past_the_slo_are_told() -> None:
    requests = [*stream(8, 0.0, 50, 3000), *stream(4, 4.0, 6000, 4, first=2000, start_s=4.0)]
    bounds = Bounds(itl_s=0.05)
    finding = serve(requests, 20, max_num_batched_tokens=8192).findings(bounds)["itl-spikes"]
    assert "past the ITL SLO of 50.0 ms" in finding.links[0].words
    assert "itl-spikes" not in serve(stream(8, 0.0, 50, 3000), 20).findings(bounds)


def test_a_finding_does_not_flicker() -> None:
    """Found, not found for a moment, found again: one episode; and it opens only after it has held."""
    run = starved_of_budget()
    log = Log()
    for message in run.messages[:2]:
        log.take(message)
    opened: list[float] = []
    for record in run.records:
        log.take(record)
        if record.seq % 20 == 0:
            log.look()
        if "overload" in log.entries:
            opened.append(record.end_s)
    assert len(log.entries["overload"].episodes) == 1
    assert opened[0] > 22.0, "ten seconds of the new limits, and two for which it held"


def test_values_are_those_of_the_evidence() -> None:
    """A knob that was turned back since has its value of then beside that of now."""

    def each(engine: Engine) -> None:
        if engine.clock_s > 10 and engine.knobs_version == 0:
            engine.set_knobs({"max_num_seqs": 4}, by="key")
        if engine.clock_s > 20 and engine.knobs_version == 1:
            engine.set_knobs({"max_num_seqs": 128}, by="key")

    run = serve(WorkloadSpec(source="mixed", rate=6.0, seed=3), 20.4, each)
    (advice,) = run.findings()["starved-after-change"].advice
    assert (advice.now, advice.then) == ("128, 4 then", "4")
