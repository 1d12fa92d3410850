"""Lives of requests of a real engine: starved, preempted, joined late, with records lost. Their parts add up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from schedtop.console.life.phases import PHASES, at_times
from schedtop.console.life.reader import LifeReader, read_life
from schedtop.console.life.request_life import RequestLife
from schedtop.console.life.request_list import RequestList
from schedtop.console.past.history import History
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Header, Snapshot, StepRecord
from schedtop.engine.step.engine import Engine

SLO_S = 0.05


def engine_of(workload: str = "pressure", **scheduler: Any) -> Engine:
    settings = {"num_blocks": 2000, **scheduler}
    return build_engine(EngineConfig(workload=WorkloadSpec(source=workload), scheduler=settings))


def run(engine: Engine, steps: int) -> list[StepRecord]:
    records = (engine.step() for _ in range(steps))
    return [record for record in records if record is not None]


def reported(*messages: Header | Snapshot | StepRecord, **limits: int) -> History:
    history = History(**limits)
    for message in messages:
        history.apply(message)
    return history


def lives(history: History) -> list[RequestLife]:
    numbers = [*history.finished, *history.live.requests]
    found = [read_life(history, history.now(), number, SLO_S) for number in numbers]
    assert all(life is not None for life in found)
    return [life for life in found if life is not None]


@cache
def starved() -> History:
    engine = engine_of()
    before = [engine.header, engine.snapshot(), *run(engine, 400)]
    engine.set_knobs({"max_num_scheduled_tokens": 4})
    return reported(*before, *run(engine, 60))


@cache
def thrashing() -> History:
    """Without overlap: the engine counts a victim's wait from the plan, while its last output is still to come."""
    engine = engine_of(num_blocks=850, async_scheduling=False)
    return reported(engine.header, engine.snapshot(), *run(engine, 1300))


@cache
def drafting() -> History:
    engine = engine_of(num_blocks=700, num_speculative_tokens=3)
    return reported(engine.header, engine.snapshot(), *run(engine, 500))


@cache
def joined_late() -> History:
    engine = engine_of(num_blocks=700)
    run(engine, 600)
    return reported(engine.header, engine.snapshot(), *run(engine, 300))


@cache
def with_losses() -> History:
    engine = engine_of(num_blocks=700)
    first = [engine.header, engine.snapshot(), *run(engine, 500)]
    run(engine, 100)
    return reported(*first, engine.snapshot(), *run(engine, 200))


@cache
def forgetful() -> History:
    engine = engine_of(num_blocks=700)
    return reported(engine.header, engine.snapshot(), *run(engine, 1200), max_records=256)


@pytest.mark.parametrize("make", [starved, thrashing, drafting, joined_late, with_losses, forgetful])
def test_the_parts_of_every_life_lie_end_to_end_and_add_up(make: Callable[[], History]) -> None:
    for life in lives(make()):
        spans = life.spans
        assert all(span.end_s > span.start_s for span in spans)
        assert all(before.end_s == after.start_s for before, after in itertools.pairwise(spans))
        assert not spans or (spans[0].start_s, spans[-1].end_s) == (life.arrival.arrival_s, life.until_s)
        split = life.split()
        assert sum(split.values()) == pytest.approx(life.length_s, abs=1e-9)
        if life.finish is not None and life.finish.e2e_s is not None:
            assert sum(split.values()) == pytest.approx(life.finish.e2e_s, abs=1e-9)


@pytest.mark.parametrize("make", [starved, thrashing, drafting])
def test_where_all_is_kept_the_parts_agree_with_the_engines_own_figures(make: Callable[[], History]) -> None:
    for life in lives(make()):
        split = life.split()
        assert life.complete
        assert split["queue"] == pytest.approx(life.length_s if life.queue_s is None else life.queue_s, abs=1e-6)
        if life.finish is None:
            continue
        assert split["re-queued"] == pytest.approx(life.finish.requeued_s, abs=1e-6)
        assert life.again_tokens == life.finish.recomputed_tokens
        if not life.finish.preemptions and not split["starved"] and life.ttft_s is not None:
            assert split["prefill"] == pytest.approx(life.ttft_s - split["queue"], abs=1e-6)


def test_a_long_life_with_everything_in_it_was_met() -> None:
    """The tests above say little unless each part occurs."""
    split = dict.fromkeys(PHASES, 0.0)
    for life in [*lives(starved()), *lives(thrashing()), *lives(joined_late())]:
        for phase, seconds in life.split().items():
            split[phase] += seconds
    assert [phase for phase, seconds in split.items() if not seconds] in ([], ["stalled"])


def test_the_bar_shows_what_the_parts_say() -> None:
    for life in lives(thrashing()):
        times_s = [life.arrival.arrival_s + (place + 0.5) * life.length_s / 5000 for place in range(5000)]
        shown = at_times(life.spans, times_s)
        for phase, seconds in life.split().items():
            error_s = life.length_s / 5000 * (2 + sum(span.phase == phase for span in life.spans))
            assert shown.count(phase) * life.length_s / 5000 == pytest.approx(seconds, abs=error_s)


def test_a_starved_request_is_starved_and_its_open_gap_names_who_got_the_tokens() -> None:
    history = starved()
    record = history.latest
    assert record is not None
    found = [life for life in lives(history) if life.visits and life.visits[-1].phase == "starved"]
    assert found
    for life in found:
        own = life.visits[-1]
        assert own.tokens == 0 and life.split()["starved"] > 0
        assert RequestList(history, history.now()).row(life.number).state == "starved"
        if not life.open_is_slow:
            continue
        blame = next(blame for blame in life.blames if blame.words.startswith("no token since: "))
        assert blame.seconds == pytest.approx(life.open_gap_s)
        assert "gave it no token: the budget of 4 went to" in blame.words or "preempted" in blame.words
    assert any(life.open_is_slow for life in found)


def test_what_happened_before_the_console_joined_is_unknown() -> None:
    history = joined_late()
    first = history.records[0]
    seen = 0
    for life in lives(history):
        if life.arrival.arrival_s >= first.start_s or life.queue_s is None:
            continue
        left_s = life.arrival.arrival_s + life.queue_s
        for span in life.spans:
            if span.phase == "queue":
                assert span.end_s <= left_s + 1e-9
            elif span.phase != "re-queued" and span.start_s < first.start_s:
                assert span.phase == "unknown"
        seen += not life.complete
    assert seen


def test_one_classification_for_table_and_life() -> None:
    engine = engine_of(num_blocks=1000)
    history = reported(engine.header, engine.snapshot(), *run(engine, 100))
    states, looked = set(), 0
    while looked < 16:
        record = run(engine, 1)[0]
        history.apply(record)
        if record.prefill_tokens == 0 and history.live.step < 2000:
            continue
        looked += 1
        if looked == 8:
            engine.set_knobs({"max_num_scheduled_tokens": 1})
        table = RequestList(history, history.now())
        for number in history.live.running():
            life, row = read_life(history, history.now(), number), table.row(number)
            assert life is not None and life.visits
            assert (row.state, row.kv, row.out) == (life.visits[-1].phase, life.blocks, life.outputs)
            assert row.done <= row.prompt and row.computed <= row.needed and row.progress <= 1
            states.add(row.state)
    assert states == {"decode", "prefill", "recompute", "starved"}


def test_a_life_that_is_read_as_it_goes_on_is_the_one_that_is_read_at_once() -> None:
    engine = engine_of(num_blocks=850)
    history = reported(engine.header, engine.snapshot(), *run(engine, 200))
    watched = itertools.product(history.live.running()[2:], (SLO_S, None))
    readers = [(number, slo_s, LifeReader(number)) for number, slo_s in watched]
    seen = set()
    for steps in itertools.islice(itertools.cycle((1, 0, 40, 200)), 24):
        for record in run(engine, steps):
            history.apply(record)
        if history.live.step > 1200:
            engine.set_knobs({"max_num_scheduled_tokens": 1})
        for number, slo_s, reader in readers:
            life = reader.read(history, history.now(), slo_s)
            whole = read_life(history, history.now(), number, slo_s)
            assert life is not None and whole is not None
            if life.slow_s == whole.slow_s:
                assert life == whole
            seen |= {phase for phase, seconds in life.split().items() if seconds}
    assert seen >= {"queue", "prefill", "decode", "recompute", "re-queued", "starved"}


def test_a_reader_begins_anew_where_the_moment_goes_back() -> None:
    history = thrashing()
    number = history.live.running()[0]
    reader = LifeReader(number)
    assert reader.read(history, history.now(), SLO_S) is not None
    life = read_life(history, history.now(), number)
    assert life is not None
    moment = history.at(life.visits[len(life.visits) // 2].seq)
    assert moment is not None
    assert reader.read(history, moment, SLO_S) == read_life(history, moment, number, SLO_S)


def test_time_per_output_token_so_far_is_that_of_its_tokens() -> None:
    history = thrashing()
    for life in lives(history):
        delivered = [visit for visit in life.visits if visit.emitted]
        if life.tpot_s is None or len(delivered) < 2:
            continue
        span_s = delivered[-1].end_s - delivered[0].end_s
        assert life.tpot_s == pytest.approx(span_s / (life.outputs - 1), abs=1e-6)


def test_blocks_of_a_request_are_known_when_a_console_has_just_joined() -> None:
    engine = engine_of()
    run(engine, 200)
    history = reported(engine.header, engine.snapshot())
    table = RequestList(history, history.now())
    rows = [table.row(number) for number in history.live.running()]
    assert rows and all(row.kv > 0 for row in rows)


def test_a_long_life_is_read_in_parts_that_make_the_whole() -> None:
    history = thrashing()
    moment, calls = history.now(), []
    for number in [*list(history.finished)[-3:], *history.live.running()[:3]]:
        reader, left = LifeReader(number), [10**9]
        while (life := reader.read(history, moment, SLO_S, within_s=0.0)) is None:
            left.append(reader.left)
            assert 0 < left[-1] < left[-2]
        assert reader.left == 0
        assert life == read_life(history, moment, number, SLO_S)
        calls.append(len(left))
    assert max(calls) > 2


def test_a_finished_life_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    history = thrashing()
    number = next(reversed(history.finished))
    reader = LifeReader(number)
    life = reader.read(history, history.now(), SLO_S)
    monkeypatch.setattr(history, "records", history.records[:1])  # nothing of it is there any more
    assert life is not None and life.visits
    assert reader.read(history, history.now(), SLO_S) is life
