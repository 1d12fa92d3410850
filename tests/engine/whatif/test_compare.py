"""Comparisons: the same run twice, no change, and why runs part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Finish
from schedtop.engine.decide_again.divergence import Part, first_difference
from schedtop.engine.decide_again.scenario import KnobEvent, Scenario
from schedtop.engine.offline.headless import step_through
from schedtop.engine.whatif.compare import Comparison, compare, run

CASES = Path(__file__).parents[2] / "golden"


def config(source: str = "mixed", limit: int = 60, **changes: Any) -> EngineConfig:
    workload = WorkloadSpec(source=source, limit=limit, rate=changes.pop("rate", 30.0))
    return EngineConfig(workload=workload, **changes)


def step_log(scenario: Scenario) -> list[bytes]:
    encoder = msgspec.msgpack.Encoder()
    return [encoder.encode(record) for record in scenario.records(scenario.build())]


def part_of(comparison: Comparison, field: str) -> tuple[str, str]:
    assert comparison.divergence is not None
    (part,) = [part for part in comparison.divergence.parts if part.field == field]
    return part.base, part.variant


@pytest.mark.parametrize("source", ["mixed", "shared-prefix", str(CASES / "pressure-1-0.json")])
def test_a_scenario_gives_the_same_bytes_twice(source: str) -> None:
    if source.endswith(".json"):
        scenario = Scenario(EngineConfig(workload=WorkloadSpec(source=source)))
    else:
        scenario = Scenario(config(source, scheduler={"num_blocks": 2000}))
    log = step_log(scenario)
    assert len(log) > 50
    assert log == step_log(scenario)


def test_a_change_without_effect_is_no_change() -> None:
    comparison = compare(config(), {"max_num_seqs": 500})
    assert not comparison.changed
    assert comparison.divergence is None
    assert all(row.difference == 0 for row in comparison.differences if row.base is not None)
    assert "no change" in comparison.verdict()


@pytest.mark.parametrize(
    ("places", "reported"),
    [
        ((1, 0), ("a (length), b (length)", "b (length), a (length)")),
        ((1,), ("a (length)", "none")),
        ((0, 1, 2), ("none", "c (length)")),
    ],
)
def test_events_are_told_that_only_one_run_has_or_all_in_another_order(
    places: tuple[int, ...], reported: tuple[str, str]
) -> None:
    engine = build_engine(config(limit=3))
    one = engine.step()
    assert one is not None
    ends = [Finish(number, "length", 5) for number in range(3)]
    base = msgspec.structs.replace(one, finishes=tuple(ends[:2]))
    variant = msgspec.structs.replace(one, finishes=tuple(ends[place] for place in places))
    found = first_difference(base, variant, {0: "a", 1: "b", 2: "c"})
    assert found is not None and found.parts == [Part("finished", *reported)]


def test_the_values_compared_are_named() -> None:
    comparison = compare(config(limit=5), {"max_num_seqs": "500", "watermark": 0.01})
    assert comparison.changes == {"max_num_seqs": (128, 500), "watermark": (0.0, 0.01)}


def test_a_lower_sequence_cap_shows_as_the_limiter() -> None:
    comparison = compare(config(), {"max_num_seqs": 3})
    assert part_of(comparison, "limiter")[1] == "sequence_cap"
    base, variant = part_of(comparison, "scheduled")
    assert "nothing" in variant and "nothing" not in base
    assert "sequence cap 3, 3 running" in part_of(comparison, "head of the queue")[1]


def test_a_smaller_budget_shows_in_the_tokens() -> None:
    comparison = compare(config(limit=1), {"max_num_batched_tokens": 32})
    _, variant = part_of(comparison, "scheduled")
    assert "32 tokens after 0" in variant
    assert part_of(comparison, "limiter") == ("none", "token_budget")


def test_a_smaller_pool_shows_as_preemption() -> None:
    asked = config("pressure", limit=12, rate=50.0, scheduler={"num_blocks": 4000})
    comparison = compare(asked, {"num_blocks": 700})
    preemptions = {row.figure: row for row in comparison.differences}["preemptions"]
    assert preemptions.base == 0 and preemptions.variant and preemptions.variant > 0


def test_the_first_difference_is_the_first() -> None:
    """Every pair of records before it is the same, the pair at it is not."""
    base, variant = Scenario(config()).pinned(), Scenario(config()).pinned().changed({"max_num_seqs": 3})
    comparison = compare(config(), {"max_num_seqs": 3})
    assert comparison.divergence is not None
    for one, other in zip(base.records(base.build()), variant.records(variant.build()), strict=False):
        if one.step == comparison.divergence.step:
            assert first_difference(one, other, {}) is not None
            return
        assert (one.rows, one.end_s, one.limiter) == (other.rows, other.end_s, other.limiter)
    pytest.fail("the step was not reached")


def test_a_change_at_a_later_step_leaves_the_steps_before_alone() -> None:
    comparison = compare(config(limit=100, rate=60.0), {"max_num_seqs": 2}, from_step=40)
    assert comparison.divergence is not None
    assert comparison.divergence.step > 40


def test_only_live_knobs_change_at_a_later_step() -> None:
    with pytest.raises(ConfigError, match="start-up only"):
        compare(config(), {"block_size": 32}, from_step=3)


def test_a_case_is_compared_under_its_own_limits() -> None:
    case = EngineConfig(workload=WorkloadSpec(source=str(CASES / "pressure-1-0.json")))
    comparison = compare(case, {"watermark": 0.2})
    assert comparison.changes["watermark"][0] == 0.0
    assert comparison.changed
    with pytest.raises(ConfigError, match="fixed"):
        compare(case, {"rate": 3})


def test_the_pool_stays_the_same_unless_it_is_asked_about() -> None:
    """The pool follows the input budget at start-up, which is not part of the question."""
    pinned = Scenario(config()).pinned()
    blocks = pinned.build().scheduler.config.num_blocks
    for name, value, expected in (
        ("max_num_batched_tokens", 8192, blocks),
        ("num_blocks", 777, 777),
        ("block_size", 32, blocks // 2),
    ):
        changed = pinned.changed({name: value}).build().scheduler.config
        assert changed.num_blocks == pytest.approx(expected, abs=1), name


def test_the_rate_can_be_changed() -> None:
    comparison = compare(config(limit=40, rate=5.0), {"rate": 80.0})
    clock = {row.figure: row for row in comparison.differences}["clock_s"]
    assert clock.base is not None and clock.variant is not None
    assert clock.variant < 0.8 * clock.base


def test_duration_ends_arrivals_and_serves_them_all() -> None:
    workload = WorkloadSpec(source="mixed", rate=40.0)
    document = run(Scenario(EngineConfig(workload=workload, duration_s=2.0)))
    requests = document["requests"]
    assert requests["submitted"] == requests["finished"] > 40
    slower = run(Scenario(EngineConfig(workload=workload, duration_s=2.0, scheduler={"max_num_seqs": 2})))
    assert {**slower["requests"], "by_class": None} == {**requests, "by_class": None}
    assert slower["clock_s"] > document["clock_s"] > 2.0


def test_events_happen_at_their_time_unless_the_change_overrules_them() -> None:
    events = (KnobEvent(0.5, {"max_num_seqs": 2}),)
    scenario = Scenario(config(limit=80), events=events)
    records = list(scenario.records(scenario.build()))
    changed = [record for record in records if record.knobs]
    assert [(change.name, change.new) for change in changed[0].knobs] == [("max_num_seqs", 2)]
    assert changed[0].start_s >= 0.5 > records[records.index(changed[0]) - 2].start_s
    overruled = scenario.changed({"max_num_seqs": 64})
    assert not any(record.knobs for record in overruled.records(overruled.build()))


def test_bad_changes_are_named() -> None:
    with pytest.raises(ConfigError, match="no knob is called 'sequences'"):
        compare(config(), {"sequences": 3})
    with pytest.raises(ConfigError, match="watermark"):
        compare(config(), {"watermark": 2})
    with pytest.raises(ConfigError, match="simulated"):
        compare(config(device="cpu"), {"watermark": 0.1})


def test_a_paced_run_has_the_same_step_log() -> None:
    """Byte for byte: the wall clock decides when a step happens, never what."""
    encoder = msgspec.msgpack.Encoder()

    def log(asked: EngineConfig) -> list[bytes]:
        return [encoder.encode(record) for record in step_through(build_engine(asked), asked)]

    asked = config(limit=30, rate=200.0, duration_s=0.5)
    flat_out, paced = log(asked), log(msgspec.structs.replace(asked, real_time=True))
    assert len(flat_out) > 10
    assert paced == flat_out
