"""Starvation after a knob change, and a falling hit rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scenes import Run, ask, numbers, serve, stream
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.step.engine import Engine


def changing(step: int, **values: Any) -> Callable[[Engine], None]:
    """Sets knobs once, before step `step` + 1."""

    def each(engine: Engine) -> None:
        if engine.observer.step == step and not engine.knobs_version:
            assert engine.set_knobs(values, by="key").ok

    return each


def budget(tokens: int) -> Run:
    return serve([ask(i, 20, 4000) for i in range(40)], 4, changing(200, max_num_scheduled_tokens=tokens))


def test_a_budget_below_the_decodes_starves_them() -> None:
    run = budget(16)
    finding = run.findings()["starved-after-change"]
    reported = numbers(finding)
    change = next(r for r in run.records if r.knobs)
    starved = {r.seq: int((row_columns(r)["tokens"] == 0).sum()) for r in run.window()}
    after = [count for seq, count in starved.items() if seq >= change.seq]
    before = [count for seq, count in starved.items() if seq < change.seq]
    assert reported["steps_since"] == len(after)
    assert reported["after_share"] == pytest.approx(np.mean(np.array(after) > 0))
    assert reported["before_share"] == pytest.approx(np.mean(np.array(before) > 0)) == 0
    assert reported["starved"] == pytest.approx(np.mean(after)) == 24
    assert reported["knob"] == "max_num_scheduled_tokens"
    assert reported["step"] == change.step
    assert finding.advice[0].direction == "back to auto"


def test_it_says_one_thing_about_who_starves() -> None:
    links = [link.words for link in budget(16).findings()["starved-after-change"].links]
    assert links[0].startswith("some running requests get no token in 100 % of the ") and "queue" not in links[0]
    assert links[1].startswith("in a step since then 24.0 of 40.0 running requests get no token and 0.0 wait")


def test_a_cap_starves_nobody_and_what_held_the_queue_before_is_told() -> None:
    """Ten requests fill the pool before the cap is lowered below them."""
    requests = [ask(i, 100, 400) for i in range(400)]
    run = serve(requests, 10, changing(300, max_num_seqs=2), num_blocks=200, enable_prefix_caching=False)
    change = next(index for index, record in enumerate(run.records) if record.knobs)
    before = [r for r in run.records[:change] if r.waiting and not r.admissions]
    reported = numbers(finding := run.findings()["starved-after-change"])
    assert reported["before_share"] == 0 and reported["starved"] == 0
    assert reported["other_before_share"] == pytest.approx(len(before) / change)
    assert "held by the sequence cap" in finding.links[0].words and "(then " in finding.links[0].words
    assert not any("no token" in link.words or "starve" in link.words for link in finding.links)
    assert not any("token" in steps.words for steps in finding.steps)


def test_a_budget_above_the_decodes_is_silent() -> None:
    assert budget(256).findings() == {}


def test_a_lowered_cap_holds_the_queue() -> None:
    def run(cap: int) -> Run:
        requests = [ask(i, 20, 4000) for i in range(10)] + stream(200, 0.02, 20, 40, start_s=0.1)
        return serve(requests, 5, changing(250, max_num_seqs=cap))

    finding = run(4).findings()["starved-after-change"]
    assert numbers(finding)["knob"] == "max_num_seqs"
    assert finding.advice[0].direction == "back to 128"
    assert "starved-after-change" not in run(100).findings()


@pytest.mark.parametrize(("cap", "starves"), [(9, True), (12, False)])
def test_a_looser_limit_is_not_what_a_queue_came_from(cap: int, starves: bool) -> None:
    """More requests come as the cap changes: one that was lowered holds them, one that was raised does not."""
    requests = [ask(i, 20, 4000) for i in range(10)] + stream(300, 0.01, 20, 400, start_s=2.2)
    run = serve(requests, 5, changing(250, max_num_seqs=cap), max_num_seqs=10, max_seqs_ceiling=20)
    change = next(index for index, record in enumerate(run.records) if record.knobs)
    late = run.records[change:]
    assert np.mean([bool(r.head and r.head.reason == "sequence_cap") for r in late]) > 0.5
    assert ("starved-after-change" in run.findings()) == starves


def test_what_was_there_before_is_no_change() -> None:
    requests = [ask(i, 20, 4000) for i in range(10)]
    run = serve(requests, 5, changing(250, max_num_seqs=3), max_num_seqs=4)
    assert "starved-after-change" not in run.findings()


def asked(other: bool = False, each: Callable[[Engine], None] | None = None, **scheduler: Any) -> Run:
    """Prompts behind one long prefix; from 35 s on, if `other`, behind none."""
    requests = stream(350, 0.1, 600, 5, prefix=512)
    requests += stream(310, 0.1, 600, 5, first=3000, start_s=35.0, prefix=0 if other else 512)
    return serve(requests, 66, each, **scheduler)


def caching_off(engine: Engine) -> None:
    if engine.clock_s > 35 and not engine.knobs_version:
        engine.set_knobs({"enable_prefix_caching": False}, by="key")


def check_rates(run: Run, reported: dict[str, Any]) -> None:
    """Both rates from the admissions, split where the telling window begins."""
    prompts = {a.number: a.prompt_tokens for r in run.records for a in r.arrivals}
    first = [a for r in run.records for a in r.admissions if not a.resumed]
    late = first[-reported["n"] :]
    early = first[-reported["n"] - reported["n_before"] : -reported["n"]]

    def rate(part: list[Any]) -> float:
        return float(sum(a.cached_tokens for a in part) / sum(prompts[a.number] for a in part))

    assert reported["late"] == pytest.approx(rate(late), abs=1e-9)
    assert reported["early"] == pytest.approx(rate(early), abs=1e-9)


def test_caching_switched_off() -> None:
    run = asked(each=caching_off)
    finding = run.findings()["hit-rate-falling"]
    check_rates(run, numbers(finding))
    assert finding.links[-1].words == "prefix caching is off"
    assert [(a.knob, a.direction) for a in finding.advice] == [("enable_prefix_caching", "on")]


def test_other_requests() -> None:
    run = asked(other=True)
    finding = run.findings()["hit-rate-falling"]
    reported = numbers(finding)
    check_rates(run, reported)
    assert reported["repeats"] == 0
    assert reported["repeats_before"] > 0.9
    assert finding.advice[0].knob == ""


def test_a_pool_that_forgets() -> None:
    """From 35 s on, long answers fill the pool and push the prefix out between two questions."""

    def run(blocks: int) -> Run:
        questions = stream(240, 0.27, 600, 5, prefix=512)
        answers = stream(120, 0.26, 1500, 60, first=5000, start_s=35.0)
        return serve(questions + answers, 66, num_blocks=blocks)

    finding = run(110).findings()["hit-rate-falling"]
    reported = numbers(finding)
    assert reported["late"] < reported["early"] / 2
    assert "repeats" in reported
    assert (finding.advice[0].knob, finding.advice[0].direction) == ("num_blocks", "up")
    assert reported["repeat_hit_rate"] < reported["repeat_hit_rate_before"] / 2
    roomy = run(5000).findings()["hit-rate-falling"]
    assert roomy.severity.word == "notice"
    assert roomy.advice[0].knob == ""


def test_hits_that_go_on_are_silent() -> None:
    assert asked().findings() == {}


def test_a_step_that_was_planned_before_a_change_is_not_counted_after_it() -> None:
    """With steps under way the next record is of a step that the change could not touch."""
    run = serve(
        [ask(i, 20, 4000) for i in range(40)],
        4,
        changing(200, max_num_scheduled_tokens=16),
        async_scheduling=True,
    )
    reported = numbers(run.findings()["starved-after-change"])
    change = next(record for record in run.records if record.knobs)
    assert not (row_columns(change)["tokens"] == 0).any()
    assert reported["after_share"] == 1 and reported["before_share"] == 0
    assert reported["step"] == change.step + 1
    assert reported["steps_since"] == sum(record.seq > change.seq for record in run.window())
