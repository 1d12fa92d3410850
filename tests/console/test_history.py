"""History: exact past states, gaps, events, latencies. The synthetic engine is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.console.past import history as past
from schedtop.console.past.history import KEYFRAME_EVERY, History
from schedtop.console.past.ladder import EARLIER
from schedtop.console.past.latency import LatencyBuckets, packed, unpacked
from schedtop.engine.contract.latencies.samples import Samples, collect, merge
from schedtop.engine.contract.telemetry import Arrival, Bye, Notice, Refusal, StepRecord, TextDelta, Totals
from schedtop.engine.golden.case import prompt_tokens, read_case
from synthetic import SyntheticEngine

from tests.engine.harness import ask as request_of
from tests.engine.harness import engine_of

BUSY = {"rate": 12.0, "num_blocks": 300}


def recorded(num: int, **engine: float) -> tuple[History, list[StepRecord]]:
    source = SyntheticEngine(**(BUSY | engine))
    history = History()
    history.apply(source.header())
    history.apply(source.snapshot())
    records = source.records(num)
    for record in records:
        history.apply(record)
    return history, records


def same_as(history: History, seq: int) -> None:
    """The inspected state equals that of an engine run just so far."""
    engine = SyntheticEngine(**BUSY)
    engine.records(seq + 1)
    moment = history.at(seq)
    assert moment is not None and moment.record is not None
    state = moment.state
    assert state.exact
    assert state.classes.tolist() == engine.classes.tolist()
    assert state.queue("fcfs") == [job.arrival.number for job in engine.waiting]
    assert state.running() == [job.arrival.number for job in engine.running]
    for job in engine.running:
        number = job.arrival.number
        assert state.outputs(number) == job.outputs
        assert np.frombuffer(state.tables[number], dtype=np.int32).tolist() == job.table
        assert state.requests[number].preemptions == job.preemptions


@pytest.mark.parametrize("seq", [0, 7, KEYFRAME_EVERY - 1, KEYFRAME_EVERY, KEYFRAME_EVERY + 1, 599])
def test_any_step_in_the_ring_is_inspected_exactly(seq: int) -> None:
    history, _ = recorded(600)
    same_as(history, seq)


def test_inspecting_forwards_and_backwards_gives_the_same_states() -> None:
    history, _ = recorded(400)
    for seq in (310, 311, 312, 330, 329, 5, 399):
        same_as(history, seq)


def test_inspecting_leaves_the_live_state_alone() -> None:
    history, records = recorded(300)
    before = (history.live.classes.tolist(), history.live.queue("fcfs"), history.live.seq)
    history.at(records[40].seq)
    assert (history.live.classes.tolist(), history.live.queue("fcfs"), history.live.seq) == before


def test_block_classes_add_up_to_the_pool_in_every_step() -> None:
    history, records = recorded(300)
    for record in records[::17]:
        moment = history.at(record.seq)
        assert moment is not None
        counts = np.bincount(moment.state.classes, minlength=4)
        blocks = record.blocks
        assert counts.tolist() == [blocks.empty, blocks.cached_free, blocks.held, blocks.shared]


def test_the_ring_forgets_the_oldest_and_stays_exact() -> None:
    engine = SyntheticEngine(**BUSY)
    history = History(max_records=200)
    history.apply(engine.header())
    history.apply(engine.snapshot())
    for record in engine.records(900):
        history.apply(record)
    assert 170 <= len(history.records) <= 200
    assert history.at(100) is None
    same_as(history, history.records[0].seq)


def test_all_steps_of_the_last_minutes_are_kept_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "MAX_RECORDS", 100)
    monkeypatch.setattr(past, "KEPT_S", 8.0)
    engine = SyntheticEngine(**BUSY)
    history = History()
    for message in (engine.header(), engine.snapshot(), *engine.records(1200)):
        history.apply(message)
        if len(history.records) > 100:
            kept_s = history.live.clock_s - history.records[0].start_s
            assert kept_s >= min(8.0, history.live.clock_s), "what is younger is not forgotten"
    assert 8.0 <= kept_s < 20.0 and len(history.records) > 300
    same_as(history, history.records[0].seq)


def test_the_ring_is_bounded_in_bytes() -> None:
    engine = SyntheticEngine(**BUSY)
    history = History(max_bytes=100_000)
    for message in (engine.header(), engine.snapshot(), *engine.records(300)):
        history.apply(message)
    assert 10 < len(history.records) < 80


def test_a_gap_is_kept_until_a_snapshot_and_totals_stay_right() -> None:
    engine = SyntheticEngine(**BUSY)
    history = History()
    history.apply(engine.header())
    history.apply(engine.snapshot())
    for record in engine.records(100):
        history.apply(record)
    engine.records(50)
    history.apply(engine.run_step())
    assert not history.live.exact
    assert [gap.missing for gap in history.gaps] == [50]
    assert history.live.totals.steps == 151
    history.apply(engine.snapshot())
    assert history.live.exact
    after = engine.run_step()
    history.apply(after)
    assert history.live.queue("fcfs") == [job.arrival.number for job in engine.waiting]
    assert [event.describe() for event in history.events if event.kind == "G"] == [
        "50 records missing; totals are still exact"
    ]
    assert history.at(after.seq).state.classes.tolist() == engine.classes.tolist()  # type: ignore[union-attr]


def test_a_snapshot_after_lost_records_marks_them_as_a_gap() -> None:
    engine = SyntheticEngine(**BUSY)
    history = History()
    history.apply(engine.header())
    history.apply(engine.snapshot())
    history.apply(engine.run_step())
    engine.records(20)
    history.apply(engine.snapshot())
    assert [gap.missing for gap in history.gaps] == [20]


def test_the_same_engine_again_keeps_history_another_one_starts_afresh() -> None:
    history, _ = recorded(50)
    engine = SyntheticEngine()
    history.apply(engine.header())
    assert len(history.records) == 50
    history.apply(engine.header(started_at=1.0))
    assert not history.records and history.live.seq == -1


def test_events_name_victim_cause_and_beneficiary() -> None:
    history, records = recorded(600)
    record = next(item for item in records if item.preemptions)
    event = next(item for item in history.events if item.kind == "V" and item.seq == record.seq)
    victim = record.preemptions[0]
    words = event.describe()
    assert words.startswith(f"r-{victim.number:04d} kv-full for=r-{victim.for_number:04d}")
    assert f"freed={victim.freed_blocks}" in words and f"lost={victim.lost_tokens}" in words


def test_a_knob_change_is_an_event_and_the_new_value() -> None:
    engine = SyntheticEngine()
    history = History()
    history.apply(engine.header())
    history.apply(engine.snapshot())
    history.apply(engine.run_step({"max_num_seqs": 12}))
    assert history.live.knobs["max_num_seqs"] == 12
    assert [event.describe() for event in history.events if event.kind == "K"] == ["max_num_seqs 16→12 by=key"]


def test_a_refused_request_never_waits() -> None:
    engine = SyntheticEngine()
    history = History()
    history.apply(engine.header())
    history.apply(engine.snapshot())
    refused = Arrival(number=9000, id="big\x1b[2J", arrival_s=0.0, prompt_tokens=99_999, max_tokens=1)
    record = msgspec.structs.replace(
        engine.run_step(), arrivals=(refused,), refusals=(Refusal(9000, refused.id, "prompt too long", 6250, 1024),)
    )
    history.apply(record)
    assert 9000 not in history.live.requests
    event = next(item for item in history.events if item.kind == "X")
    assert event.describe() == "big?[2J prompt too long: needs 6250, capacity 1024"


def test_finished_requests_stay_known_by_name() -> None:
    history, records = recorded(400)
    finish = next(item for record in records for item in record.finishes)
    assert history.name(finish.number) == f"r-{finish.number:04d}"
    assert history.finished[finish.number][1] == finish
    assert history.name(10**6) == "#1000000"


def test_notices_texts_and_the_end_are_kept() -> None:
    history, _ = recorded(5)
    history.apply(Notice("warning", "disk full: recording stopped"))
    history.apply(TextDelta(400, "Hello "))
    history.apply(TextDelta(400, "world"))
    history.apply(Bye("drained", 5))
    assert history.events[-1].describe() == "warning: disk full: recording stopped"
    assert history.texts[400] == "Hello world"
    assert history.bye is not None and history.bye.reason == "drained"


def test_rates_reach_back_further_than_the_records_are_kept() -> None:
    source, short, whole = SyntheticEngine(**BUSY), History(max_records=64), History()
    messages = [source.header(), source.snapshot(), *source.records(600)]
    for message in messages:
        short.apply(message)
        whole.apply(message)
    assert short.live.clock_s - short.records[0].end_s < 10 < short.live.clock_s
    found, wanted = short.rates(short.now(), span_s=10.0), whole.rates(whole.now(), span_s=10.0)
    assert found is not None and wanted is not None
    assert 9.0 <= found.span_s <= 10.0 <= wanted.span_s + 0.2
    first, last = (history_totals(messages, span_s) for span_s in (found.span_s, 0.0))
    assert found.output_tokens == pytest.approx((last.output_tokens - first.output_tokens) / found.span_s)
    hits, prompts = last.cached_tokens - first.cached_tokens, last.prompt_tokens - first.prompt_tokens
    assert found.hit_rate == pytest.approx(hits / prompts)


def history_totals(messages: list[Any], before_end_s: float) -> Totals:
    """The totals of the record that ended so long before the last."""
    records = [message for message in messages if isinstance(message, StepRecord)]
    return min(records, key=lambda record: abs(records[-1].end_s - before_end_s - record.end_s)).totals


def test_rates_are_differences_over_the_engines_clock() -> None:
    history, records = recorded(500)
    rates = history.rates(history.now(), span_s=2.0)
    assert rates is not None
    inside = [record for record in records if record.end_s > records[-1].end_s - rates.span_s]
    assert rates.steps == pytest.approx(len(inside) / rates.span_s, rel=0.02)


def test_window_percentiles_equal_those_of_all_its_samples() -> None:
    history, records = recorded(900)
    moment = history.at(700)
    assert moment is not None
    window_s = 5.0
    first = int(moment.clock_s) - int(window_s) + 1
    gaps = np.concatenate(
        [np.frombuffer(r.itl_s, dtype=np.float32) for r in records if r.end_s >= first and r.seq <= 700]
    )
    gaps = gaps[~np.isnan(gaps)]
    whole = merge(history.latency_columns("itl", moment, window_s, 50))
    assert whole.n == len(gaps)
    for share in (0.5, 0.95, 0.99):
        assert whole.quantile(share) == pytest.approx(float(np.quantile(gaps, share)), abs=2e-6)


def test_columns_of_the_window_hold_the_same_samples_however_many_there_are() -> None:
    history, _ = recorded(900)
    few, many = (merge(history.latency_columns("itl", history.now(), 10.0, n)) for n in (3, 40))
    assert few.n == many.n and few.quantile(0.95) == many.quantile(0.95)


@given(st.dictionaries(st.integers(0, 1 << 40), st.integers(1, 1 << 33), max_size=20))
def test_samples_are_packed_without_loss(found: dict[int, int]) -> None:
    values = np.array(sorted(found), dtype=np.int64)
    counts = np.array([found[value] for value in sorted(found)], dtype=np.int64)
    again = unpacked(*packed(Samples(values, counts)))
    assert again.values.tolist() == values.tolist() and again.counts.tolist() == counts.tolist()


def test_an_hour_of_latencies_is_kept_and_no_second_is_taken_for_another() -> None:
    records = recorded(300)[1]
    buckets, at = LatencyBuckets(), int(records[0].end_s)
    for record in records:
        buckets.take(record)
    before = buckets.bucket(at)
    assert (
        before is not None and before["itl"].n and buckets.bucket(at + 3600) is None and buckets.bucket(-1) is None
    )
    for record in records:
        buckets.take(
            msgspec.structs.replace(record, start_s=record.start_s + 3600, end_s=record.end_s + 3600),
        )
    after = buckets.bucket(at + 3600)
    assert buckets.bucket(at) is None and after is not None
    assert after["itl"].values.tolist() == before["itl"].values.tolist()


def test_samples_count_what_is_within_a_limit() -> None:
    samples = collect(np.array([0.1, 0.2, np.nan, 0.2, 0.3]))
    assert (samples.n, samples.within(0.2)) == (4, 3)
    empty = collect(np.array([np.nan]))
    assert isinstance(empty, Samples) and empty.n == 0 and empty.quantile(0.5) is None


def test_the_state_tells_the_snapshot_that_the_engine_would() -> None:
    engine = SyntheticEngine(**BUSY)
    history = History()
    for message in (engine.header(), engine.snapshot(), *engine.records(350)):
        history.apply(message)
    reported, own = history.live.snapshot(), engine.snapshot()
    assert (reported.waiting, reported.running, reported.block_classes) == (
        own.waiting,
        own.running,
        own.block_classes,
    )
    assert (reported.knobs, reported.step, reported.clock_s) == (own.knobs, own.step, own.clock_s)
    theirs = {state.arrival.number: state for state in own.requests}
    for state in reported.requests:
        other = theirs[state.arrival.number]
        assert state.table == other.table
        for field in ("output_tokens", "computed_tokens", "preemptions", "first_token_s", "cached_tokens"):
            assert getattr(state, field) == pytest.approx(getattr(other, field)), field


def test_another_engine_on_the_same_address_is_an_event() -> None:
    engine = SyntheticEngine()
    history = History()
    for message in (engine.header(), engine.snapshot(), *engine.records(20)):
        history.apply(message)
    assert not list(history.of_kind("N"))
    again = SyntheticEngine(seed=8)
    for message in (again.header(started_at=1_760_000_100.0), again.snapshot(), *again.records(3)):
        history.apply(message)
    [event] = history.of_kind("N")
    assert "a new engine (started at" in event.describe() and history.live.step == 3
    history.apply(again.header(started_at=1_760_000_100.0))
    assert len(list(history.of_kind("N"))) == 1, "the same one again is no other"


def test_the_first_step_of_a_session_counts() -> None:
    """Two prompts of 64 tokens, the second of which finds 48 of them: 37.5 %, however early the first came."""
    case = read_case(Path(__file__).parents[1] / "golden" / "field" / "hits-D3.json")
    config = {name: getattr(case.config, name) for name in ("block_size", "num_blocks", "max_num_batched_tokens")}
    first, second = (request_of(asked.id, prompt_tokens(asked).tolist(), outputs=2) for asked in case.requests)
    engine, history = engine_of(first, **config, enable_prefix_caching=True), History()
    for message in (engine.header, engine.snapshot(), engine.step(), engine.step()):
        assert message is not None
        history.apply(message)
    engine.submit(second)
    while not engine.exhausted:
        record = engine.step()
        assert record is not None
        history.apply(record)
    rates = history.rates(history.now(), 60.0)
    assert rates is not None
    assert rates.hit_rate == 0.375
    assert rates.steps == engine.observer.step / engine.clock_s


def test_the_run_before_a_restart_stays_on_the_timeline_behind_a_gap() -> None:
    history, records = recorded(300)
    end_s, peak = records[-1].end_s, max(record.scheduled_tokens for record in records)
    known = [event.describe() for event in history.events]
    again = SyntheticEngine(**BUSY)
    started_at = 1_760_000_000.0 + end_s + 30.0  # of the synthetic engine before, and half a minute after its end
    again_first, followed = again.snapshot(), list(again.records(50))
    for message in (again.header(started_at=started_at), again_first, *followed):
        history.apply(message)
    begin_s, now_s = history.extent()
    assert (begin_s, now_s) == (pytest.approx(-end_s - 30.0), followed[-1].end_s)
    grid = history.ladder.grid(begin_s, now_s, 100)
    columns, first_s, length_s = history.ladder.fill(grid), grid.begin_s, grid.column_s
    shown = [None if bucket is None else bucket.num_steps for bucket in columns]
    assert sum(filter(None, shown)) == 350
    assert max(sum(bucket.tokens) for bucket in columns if bucket is not None and bucket.slowest < -1) == peak
    before, after = (int((at_s - first_s) // length_s) for at_s in (-29.0, -1.0))
    assert not any(shown[before : after + 1]), "the gap"
    assert [event.describe() for event in history.events][: len(known)] == known
    assert all(event.clock_s < -29.9 and event.seq < -1 for event in list(history.events)[: len(known)])
    assert history.at(-1) is None


def test_steps_before_a_restart_can_be_gone_to_as_far_as_they_are_kept() -> None:
    history, records = recorded(300)
    before = {record.seq: history.at(record.seq) for record in records[::40]}
    again = SyntheticEngine(**BUSY)
    for message in (again.header(started_at=1_760_000_100.0), again.snapshot(), *again.records(50)):
        history.apply(message)
    for seq, known in before.items():
        moment = history.at(seq - EARLIER)
        assert moment is not None and known is not None and moment.record is not None and known.record is not None
        assert msgspec.structs.replace(moment.record, seq=seq) == known.record
        assert moment.state.requests == known.state.requests and moment.clock_s == known.clock_s
    marked = next(event for event in history.events if event.kind == "A")
    moment = history.at(marked.seq)
    assert moment is not None and moment.record is not None
    assert marked.number in {admission.number for admission in moment.record.admissions}
    assert history.at(records[7].seq - 2 * EARLIER) is None
    assert not any(record.seq < 0 for record in history.records)


def test_of_a_run_before_a_quarter_is_kept() -> None:
    history = History(max_records=400)
    first, again = SyntheticEngine(**BUSY), SyntheticEngine(**BUSY)
    for message in (first.header(), first.snapshot(), *first.records(390)):
        history.apply(message)
    for message in (again.header(started_at=1_760_000_100.0), again.snapshot()):
        history.apply(message)
    assert history.before is not None and 50 <= len(history.before.records) <= 150
    assert history.before.at(history.before.records[0].seq) is not None
