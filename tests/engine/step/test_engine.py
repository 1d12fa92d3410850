"""The engine from outside: determinism, knobs, pause and single step, drain, refusals and full pools."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import FinishReason, KnobChange, StepRecord
from schedtop.engine.step.engine import Engine

from tests.engine.harness import STEP_S, Script, ask, engine_of, run_out, step

# Determinism


def encoded_run(seed: int) -> list[bytes]:
    spec = WorkloadSpec(source="mixed", seed=seed, rate=20.0, limit=30, scale=0.2)
    settings = {"num_blocks": 200, "num_speculative_tokens": 2}
    engine = build_engine(EngineConfig(workload=spec, seed=seed, scheduler=settings))
    return [msgspec.msgpack.encode(record) for record in run_out(engine)]


def test_the_same_seed_gives_the_same_records_byte_for_byte() -> None:
    assert encoded_run(3) == encoded_run(3)
    assert encoded_run(3) != encoded_run(4)


def test_a_record_survives_encoding() -> None:
    record = step(engine_of(ask("a", 8), ask("b", 200)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=StepRecord) == record
    assert record.refusals


# Arrivals and idle time


def test_an_idle_clock_skips_to_the_next_arrival() -> None:
    source = Script([ask("a", 4, outputs=1, arrival_s=3.0), ask("b", 4, outputs=1, arrival_s=9.0)])
    engine = engine_of(source=source)
    records = run_out(engine)
    assert [record.start_s for record in records] == [3.0, 9.0]
    assert [arrival.arrival_s for record in records for arrival in record.arrivals] == [3.0, 9.0]
    assert engine.exhausted


def test_arrivals_during_a_step_wait_for_the_next_one() -> None:
    source = Script([ask("a", 4, outputs=2, arrival_s=0.0), ask("b", 4, outputs=1, arrival_s=0.2)])
    first, second = run_out(engine_of(source=source))
    assert [arrival.id for arrival in first.arrivals] == ["a"]
    assert [arrival.id for arrival in second.arrivals] == ["b"]
    assert second.admissions[0].waited_s == pytest.approx(STEP_S - 0.2)


def test_an_engine_with_nothing_to_do_tells_nothing() -> None:
    engine = engine_of()
    assert engine.step() is None and engine.exhausted
    assert engine.next_wake_s() is None


def test_a_source_at_rate_zero_neither_ends_the_work_nor_moves_the_clock() -> None:
    engine = engine_of(source=Script([ask("a", 4, outputs=1, arrival_s=math.inf)]))
    assert engine.step() is None
    assert engine.clock_s == 0.0 and not engine.exhausted


def test_a_generated_workload_turned_off_is_not_at_its_end() -> None:
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source="mixed", rate=5.0, scale=0.1)))
    step(engine)
    assert engine.set_knobs({"rate": 0}).ok
    finished = run_out(engine)[-1].totals.finished
    assert engine.next_wake_s() == math.inf and not engine.exhausted
    stopped_s = engine.clock_s
    assert engine.set_knobs({"rate": 5}).ok
    record = step(engine)
    assert record.arrivals and stopped_s < record.start_s < stopped_s + 60
    assert record.totals.finished == finished


# Refusals and full pools


@pytest.mark.parametrize(
    ("prompt", "outputs", "config", "need", "capacity", "words"),
    [
        (0, 4, {}, 1, 0, "the prompt is empty"),
        (4, 0, {}, 1, 0, "max_tokens is 0"),
        (200, 4, {}, 201, 200, "max_model_len 200"),
        (65, 4, {}, 17, 16, "needs 17 KV blocks, the pool has 16"),
        (9, 4, {"enable_chunked_prefill": False, "max_num_batched_tokens": 8}, 9, 8, "without chunked prefill"),
        (
            7,
            4,
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8, "draft_slots": 2},
            7,
            6,
            "without chunked prefill",
        ),
    ],
)
def test_what_can_never_fit_is_refused_with_need_and_capacity(
    prompt: int, outputs: int, config: dict[str, Any], need: int, capacity: int, words: str
) -> None:
    engine = engine_of(ask("a", prompt, outputs), ask("b", 2, outputs=1), **config)
    record = step(engine)
    (refusal,) = record.refusals
    assert (refusal.id, refusal.need, refusal.capacity) == ("a", need, capacity)
    assert words in refusal.reason
    assert record.totals.refused == 1 and record.totals.finished == 1, "the queue moves on"


def test_a_refused_request_alone_is_told_without_a_step() -> None:
    engine = engine_of(ask("a", 65))
    record = step(engine)
    assert not record.executed and len(record.refusals) == 1 and record.step == 0
    assert engine.step() is None


def test_a_prompt_of_the_whole_pool_gets_its_one_output() -> None:
    records = run_out(engine_of(ask("a", 64, outputs=1)))
    assert [finish.reason for finish in records[-1].finishes] == [FinishReason.LENGTH]


@pytest.mark.parametrize("drafts", [0, 3])
def test_growth_that_reaches_the_whole_pool_ends_there_with_its_outputs(drafts: int) -> None:
    request = ask("a", 60, outputs=50)
    engine = engine_of(request, ask("b", 8, outputs=2), num_speculative_tokens=drafts)
    records = run_out(engine)
    finishes = {finish.number: finish for record in records for finish in record.finishes}
    assert finishes[0].reason == FinishReason.KV_CAPACITY
    assert finishes[0].output_tokens == len(request.output_token_ids) == 5, "the last token needs no slot"
    assert finishes[1].reason == FinishReason.LENGTH, "the queue moves on"
    assert records[-1].blocks.empty == 16


# Pause, single step, drain


def test_a_paused_engine_runs_exactly_the_steps_it_is_allowed() -> None:
    engine = engine_of(ask("a", 8))
    assert not engine.step_once(), "it is not paused"
    step(engine)
    engine.pause()
    reported = step(engine)
    assert not reported.executed and reported.paused
    assert engine.step() is None
    assert engine.step_once() and engine.step_once()
    assert step(engine).executed and step(engine).executed
    assert engine.step() is None
    engine.resume()
    assert sum(record.executed for record in run_out(engine)) == 1


def test_records_say_who_paused_and_who_resumed() -> None:
    engine = engine_of(ask("a", 8))
    step(engine)
    engine.pause("key ann@pts/1")
    assert step(engine).paused_by == "key ann@pts/1"
    engine.resume("key bob@pts/2")
    records = run_out(engine)
    assert records[0].paused_by == "key bob@pts/2"
    assert not any(record.paused_by for record in records[1:])


def test_a_new_pause_forgets_steps_allowed_before() -> None:
    engine = engine_of(ask("a", 8))
    engine.pause()
    engine.step_once()
    engine.pause()
    assert not step(engine).executed
    assert engine.step() is None


def test_a_simulated_clock_stands_still_while_paused() -> None:
    engine = engine_of(source=Script([ask("a", 4, arrival_s=5.0)]))
    engine.pause()
    step(engine)
    assert engine.clock_s == 0.0 and engine.step() is None


def test_draining_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    source = Script([ask("a", 4, outputs=3), ask("b", 4, arrival_s=0.7)])
    engine = engine_of(source=source)
    step(engine)
    engine.pause()
    engine.drain()
    records = run_out(engine)
    assert records[-1].totals.finished == records[-1].totals.submitted == 1
    assert engine.exhausted and not engine.paused


# Knobs


def knob_state(engine: Engine) -> tuple[Any, ...]:
    snapshot = engine.snapshot()
    return msgspec.structs.astuple(snapshot), msgspec.msgpack.encode(engine.knobs), engine.scheduler.state.limits


def test_a_change_is_applied_from_the_next_step_and_told_once() -> None:
    engine = engine_of(ask("a", 20, outputs=2))
    reply = engine.set_knobs({"max_num_batched_tokens": 8}, expected_version=0, by="key")
    assert reply.ok and reply.knobs_version == 1 and reply.text == "applied"
    record = step(engine)
    assert record.scheduled_tokens == 8 == record.token_budget == record.input_budget
    assert record.knobs == (KnobChange("max_num_batched_tokens", 2048, 8, "key"),)
    assert record.knobs_version == 1
    assert not step(engine).knobs
    assert engine.snapshot().knobs["max_num_batched_tokens"] == 8


def test_max_num_batched_tokens_sets_both_budgets_unless_the_other_is_given_too() -> None:
    engine = engine_of(ask("a", 60), max_num_scheduled_tokens=4)
    engine.set_knobs({"max_num_batched_tokens": 8})
    assert step(engine).token_budget == 8
    assert engine.knobs["max_num_scheduled_tokens"] is None
    engine.set_knobs({"max_num_batched_tokens": 10, "max_num_scheduled_tokens": 6})
    record = step(engine)
    assert (record.token_budget, record.input_budget) == (6, 10)
    engine.set_knobs({"max_num_scheduled_tokens": None})
    assert step(engine).token_budget == 10


def test_the_knob_table_always_tells_the_cap_that_holds() -> None:
    engine = engine_of(*(ask(id, 4, outputs=30) for id in "abcdefgh"), max_num_seqs=6, max_num_active_seqs=2)
    assert step(engine).running == 2
    engine.set_knobs({"max_num_active_seqs": None})
    assert step(engine).running == 6, "as max_num_seqs unless set"
    engine.set_knobs({"max_num_active_seqs": 3})
    engine.set_knobs({"max_num_seqs": 7})
    assert step(engine).running == 7, "max_num_seqs replaces the admission cap"
    assert engine.knobs["max_num_active_seqs"] is None, "an admission cap that no longer holds is not shown"


def test_a_dry_run_answers_and_changes_nothing() -> None:
    engine = engine_of(*(ask(id, 4, outputs=9) for id in "abc"))
    step(engine)
    before = knob_state(engine)
    reply = engine.set_knobs({"max_num_seqs": 1}, dry_run=True)
    assert reply.ok and reply.text == "checked" and reply.knobs_version == 0
    assert reply.warnings == ["3 running, cap 1: 2 must finish first"]
    assert knob_state(engine) == before
    assert not step(engine).knobs


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "no knob was named"),
        ({"max_num_sequences": 3}, "no knob is called 'max_num_sequences'"),
        ({"block_size": 8}, "block_size is set at start-up only: restart with --block-size"),
        ({"policy": "priority"}, "restart with --scheduling-policy"),
        ({"max_num_seqs": 0}, "max_num_seqs=0: must be at least 1"),
        ({"max_num_seqs": 33}, "max_num_seqs=33: must be at most 32 (start-up ceiling max_seqs_ceiling)"),
        ({"max_num_active_seqs": 33}, "at most 32"),
        ({"max_num_batched_tokens": 4097}, "at most 4096 (start-up ceiling max_batched_tokens_ceiling)"),
        ({"max_num_scheduled_tokens": 4097}, "at most 4096"),
        ({"max_num_seqs": None}, "max_num_seqs needs a value"),
        ({"max_num_seqs": "many"}, "max_num_seqs='many': must be a whole number"),
        ({"max_num_seqs": 2.5}, "must be a whole number"),
        ({"max_num_seqs": True}, "must be a whole number"),
        ({"watermark": math.nan}, "watermark=nan: must be a finite number"),
        ({"watermark": math.inf}, "must be a finite number"),
        ({"watermark": 0.6}, "watermark=0.6: must be at most 0.5"),
        ({"rate": math.nan}, "must be a finite number"),
        ({"num_speculative_tokens": 9}, "must be at most 8"),
        ({"scheduler_reserve_full_isl": "perhaps"}, "must be true or false"),
        ({"max_num_batched_tokens": 2}, "leaves no row beside draft_slots=2: it must be at least 3"),
        ({"max_num_seqs": 2, "watermark": -1}, "watermark=-1.0: must be at least 0"),
    ],
)
def test_a_bad_value_is_refused_as_a_whole_with_its_bound(values: dict[str, Any], words: str) -> None:
    engine = engine_of(
        ask("a", 8), draft_slots=2, max_seqs_ceiling=32, max_batched_tokens_ceiling=4096, max_num_seqs=8
    )
    step(engine)
    before = knob_state(engine)
    reply = engine.set_knobs(values)
    assert not reply.ok and words in reply.text and "\n" not in reply.text
    assert knob_state(engine) == before
    assert not step(engine).knobs


def test_a_change_made_on_an_old_view_is_refused() -> None:
    engine = engine_of()
    assert engine.set_knobs({"watermark": 0.1}, expected_version=0).ok
    reply = engine.set_knobs({"watermark": 0.2}, expected_version=0)
    assert not reply.ok and reply.knobs_version == 1 and "version 1, not 0" in reply.text
    assert engine.knobs["watermark"] == 0.1


def test_chunking_off_refuses_a_budget_below_a_prompt_in_flight() -> None:
    engine = engine_of(ask("a", 20, outputs=2), enable_chunked_prefill=False)
    reply = engine.set_knobs({"max_num_batched_tokens": 19})
    assert not reply.ok and "request a has 20 tokens; a step would take 19" in reply.text
    assert engine.set_knobs({"max_num_batched_tokens": 20}).ok
    assert run_out(engine)[-1].totals.finished == 1


def test_warnings_foresee_what_a_change_will_do() -> None:
    engine = engine_of(*(ask(id, 4, outputs=9) for id in "abc"), enable_prefix_caching=True)
    step(engine)

    def foreseen(**values: Any) -> list[str]:
        reply = engine.set_knobs(values, dry_run=True)
        assert reply.ok, reply.text
        return reply.warnings

    assert foreseen(max_num_seqs=3) == []
    assert foreseen(max_num_active_seqs=2) == ["3 running, cap 2: 1 must finish first"]
    assert foreseen(max_num_batched_tokens=2) == ["3 decoding, budget 2: 1 get no token"]
    assert foreseen(max_num_scheduled_tokens=1) == ["3 decoding, budget 1: 2 get no token"]
    assert foreseen(max_num_batched_tokens=4) == []
    (line,) = foreseen(enable_prefix_caching=False)
    assert "no cached prefix" in line
    (line,) = foreseen(long_prefill_token_threshold=2, num_speculative_tokens=2)
    assert "below 1 + drafts" in line
    engine.submit(ask("d", 36, outputs=2))
    step(engine)
    assert foreseen(watermark=0.5) == ["watermark 8 blocks, 1 free: nobody is admitted until 7 more are free"]


def test_a_lower_budget_gives_the_foreseen_rows_no_token() -> None:
    engine = engine_of(*(ask(id, 4, outputs=9) for id in "abc"))
    step(engine)
    engine.set_knobs({"max_num_batched_tokens": 2})
    assert row_columns(step(engine))["tokens"].tolist() == [1, 1, 0]


def test_a_changed_rate_reaches_the_source_and_drafts_reach_the_worker() -> None:
    source = Script([ask("a", 4, outputs=9)])
    engine = engine_of(source=source)
    step(engine)
    assert engine.set_knobs({"rate": 2.5, "num_speculative_tokens": 2}).ok
    assert source.rates == [(2.5, STEP_S)]
    step(engine)
    assert step(engine).draft_tokens == 2
    assert engine.set_knobs({"num_speculative_tokens": 0}).ok
    step(engine)
    assert step(engine).draft_tokens == 0


def test_no_knob_change_can_strand_a_request_under_a_window() -> None:
    """A budget raised above the start's lets a prompt ask for more blocks at once than the pool has."""
    engine = engine_of(ask("a", 100, outputs=4), num_blocks=8, sliding_window=8, max_num_batched_tokens=8)
    step(engine, 2)
    engine.set_knobs({"max_num_batched_tokens": 64})
    assert run_out(engine, most=200)[-1].totals.finished == 1


def test_requests_whose_adapter_did_not_fit_are_work_once_nobody_runs() -> None:
    requests = [ask(f"{letter}0", 4, outputs=2, adapter=adapter) for adapter, letter in enumerate("abc", 1)]
    engine = engine_of(*requests, max_loras=1)
    assert [finish.number for record in run_out(engine) for finish in record.finishes] == [0, 1, 2]
