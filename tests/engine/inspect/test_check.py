"""Conditions: their grammar, their values, and the step that broke them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.latencies.slo import parse_slo
from schedtop.engine.inspect.check import Checked, check
from schedtop.engine.inspect.conditions import ConditionError, parse_condition
from schedtop.engine.recording import Recording


@pytest.mark.parametrize(
    ("text", "figure", "statistic", "relation", "limit"),
    [
        ("ttft.p95<1s", "ttft", "p95", "<", 1.0),
        ("itl.p99 <= 50 ms", "itl", "p99", "<=", 0.05),
        ("E2E.max<2min", "e2e", "max", "<", 120.0),
        ("ttft.n>=100", "ttft", "n", ">=", 100.0),
        ("preemptions==0", "preemptions", "", "==", 0.0),
        ("hit_rate>=50%", "hit_rate", "", ">=", 0.5),
        ("goodput>.95", "goodput", "", ">", 0.95),
        ("no loops", "loops", "", "==", 0.0),
        ("no knob-changes", "knob_changes", "", "==", 0.0),
    ],
)
def test_conditions(text: str, figure: str, statistic: str, relation: str, limit: float) -> None:
    found = parse_condition(text)
    assert (found.figure, found.statistic, found.relation) == (figure, statistic, relation)
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft<1s", "write ttft.NAME"),
        ("ttft.p42<1s", "one of p50"),
        ("ttft.p95<1", "needs a unit"),
        ("ttft.p95<1h", "needs a unit"),
        ("preemptions==0s", "takes no unit"),
        ("preemptions.p95==0", "is one number"),
        ("hit_rate>50", "is a share"),
        ("hit_rate>150%", "is a share"),
        pytest.param(f"ttft.p95<{'9' * 400}s", "too large", id="a time beyond all numbers"),
        ("preemptions=0", "write == for equal"),
        ("speed>3", "no figure is called 'speed'"),
        ("no steps", "after `no`"),
        ("no", "write FIGURE"),
        ("", "write FIGURE"),
        ("ttft.p95<-1s", "write FIGURE"),
        ("ttft.p95<1s<2s", "write FIGURE"),
        ("ttft.p95<٣s", "write FIGURE"),
    ],
)
def test_what_is_no_condition(text: str, says: str) -> None:
    with pytest.raises(ConditionError, match=says):
        parse_condition(text)


def outcome(recording: Recording, text: str) -> Checked:
    return check(recording, [parse_condition(text)], parse_slo("ttft=1s"))[0]


def test_values_are_those_of_the_records(recording: Recording) -> None:
    records = list(recording.records())
    waits = [wait_s for record in records for _, wait_s in record.ttft_s]
    gaps = np.concatenate([np.frombuffer(record.itl_s, dtype=np.float32) for record in records])
    gaps = gaps[~np.isnan(gaps)]
    assert outcome(recording, "ttft.p95<1s").value == pytest.approx(np.quantile(waits, 0.95))
    assert outcome(recording, "itl.p50<1s").value == pytest.approx(np.quantile(gaps, 0.5), rel=1e-6)
    assert outcome(recording, "itl.mean<1s").value == pytest.approx(gaps.mean(), rel=1e-5)
    assert outcome(recording, "ttft.n>=0").value == len(waits)
    assert outcome(recording, "preemptions>=0").value == sum(len(record.preemptions) for record in records)
    assert outcome(recording, "steps>=0").value == sum(record.executed for record in records)
    assert outcome(recording, "aborts>=0").value == records[-1].totals.aborted
    assert outcome(recording, "output_tokens>=0").value == records[-1].totals.output_tokens
    assert outcome(recording, "finished>=0").value == records[-1].totals.finished


def test_figures_of_a_late_recording_are_of_what_it_holds(record: Callable[..., Path]) -> None:
    with Recording(record(150, "shared-prefix", 4.0, turned=False, late=150, num_blocks=4000)) as late:
        before, after = late.keyframe_before(0)[0].totals, list(late.records())[-1].totals
        prompts = after.prompt_tokens - before.prompt_tokens
        assert prompts
        hits = (after.cached_tokens - before.cached_tokens) / prompts
        assert hits != pytest.approx(after.cached_tokens / after.prompt_tokens)
        assert outcome(late, "hit_rate>=0").value == pytest.approx(hits)
        steps = [record for record in late.records() if record.executed]
        use = sum(r.scheduled_tokens for r in steps) / sum(r.token_budget for r in steps)
        assert outcome(late, "budget_use>=0").value == pytest.approx(use)
        outputs = after.output_tokens - before.output_tokens
        span_s = late.end_s - late.keyframe_before(0)[0].clock_s
        assert outcome(late, "output_tokens_per_s>=0").value == pytest.approx(outputs / span_s)


@pytest.mark.parametrize("name", ["hit_rate", "budget_use", "output_tokens_per_s"])
def test_a_late_recording_of_no_step_has_no_figures(record: Callable[..., Path], name: str) -> None:
    with Recording(record(0, late=30)) as empty:
        assert outcome(empty, f"{name}>=0").value is None


def test_a_breached_count_names_the_step_that_broke_it(recording: Recording) -> None:
    preempted = [(r.step, p.number) for r in recording.records() for p in r.preemptions]
    names = {a.number: a.id for r in recording.records() for a in r.arrivals}
    for limit in (0, 2):
        found = outcome(recording, f"preemptions<={limit}")
        assert not found.ok and (found.step, found.request) == (preempted[limit][0], names[preempted[limit][1]])
    assert outcome(recording, f"preemptions<={len(preempted)}").ok
    assert outcome(recording, f"preemptions=={len(preempted)}").ok


def test_a_breached_latency_names_the_worst(recording: Recording) -> None:
    worst = max((wait_s, r.step) for r in recording.records() for _, wait_s in r.ttft_s)
    found = outcome(recording, "ttft.p50<1us")
    assert found.step == worst[1] and "worst" in str(found)


def test_a_bound_from_below_is_judged_at_the_end(recording: Recording) -> None:
    found = outcome(recording, "finished>=100000")
    assert not found.ok and found.step == recording.num_steps and "BREACH" in str(found)


def test_what_is_unknown_keeps_no_condition(recording: Recording, record: object) -> None:
    path = record(3, turned=False)  # type: ignore[operator]
    with Recording(path) as short:
        assert outcome(short, "e2e.p95<1s") == Checked(
            "e2e.p95<1s", False, None, "n/a: the recording has none", None, None, ""
        )


def test_goodput_needs_bounds(recording: Recording) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        check(recording, [parse_condition("goodput>50%")])
    assert outcome(recording, "goodput>=0").ok


def test_outcomes_come_in_the_order_asked(pressed: Path) -> None:
    asked = [parse_condition(text) for text in ("no loops", "ttft.p95<1h".replace("h", "s"), "no aborts")]
    with Recording(pressed) as recording:
        assert [found.condition for found in check(recording, asked)] == [item.text for item in asked]
