"""Each limiter, made to happen on purpose, with the numbers the head of the queue waits for."""

from __future__ import annotations

from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.telemetry import Limiter, StepRecord
from schedtop.engine.step.engine import Engine

from tests.engine.harness import ask, engine_of, run_out, step


def reported(record: StepRecord) -> tuple[str, str]:
    """The step's limiter, and the head's reason in words."""
    assert record.head is not None
    assert record.head.reason == record.limiter
    return record.limiter, describe_head(record.head)


def test_nothing_left_to_do_is_no_limit() -> None:
    record = step(engine_of(ask("a", 8)))
    assert record.limiter == Limiter.NONE and record.head is None


def test_token_budget() -> None:
    record = step(engine_of(ask("a", 8), ask("b", 3), max_num_scheduled_tokens=8))
    assert reported(record) == (Limiter.TOKEN_BUDGET, "token budget: 0 left of 8")
    assert (record.token_budget, record.scheduled_tokens) == (8, 8)


def test_token_budget_cuts_the_last_prompt_with_nobody_waiting() -> None:
    record = step(engine_of(ask("a", 8), ask("b", 3), max_num_batched_tokens=10))
    assert record.limiter == Limiter.TOKEN_BUDGET and record.head is None
    assert record.scheduled_tokens == 10


def test_input_budget() -> None:
    engine = engine_of(ask("a", 6), ask("b", 3), max_num_batched_tokens=9, draft_slots=2)
    record = step(engine)
    assert reported(record) == (Limiter.INPUT_BUDGET, "input budget: 1 left of 9")
    assert (record.input_rows, record.input_budget, record.scheduled_tokens) == (8, 9, 6)


def test_sequence_cap() -> None:
    record = step(engine_of(ask("a", 4), ask("b", 4), max_num_seqs=1))
    assert reported(record) == (Limiter.SEQUENCE_CAP, "sequence cap 1, 1 running")


def test_a_lower_sequence_cap_drains() -> None:
    engine = engine_of(*(ask(id, 4) for id in "abc"))
    step(engine)
    engine.set_knobs({"max_num_seqs": 1})
    engine.submit(ask("d", 4))
    record = step(engine)
    assert reported(record) == (Limiter.SEQUENCE_CAP, "sequence cap 1, 3 running, draining")
    assert record.running == 3
    assert [entry.running for entry in run_out(engine) if entry.running][-1] == 1


def test_blocks() -> None:
    engine = engine_of(ask("a", 12), ask("b", 8), num_blocks=4, scheduler_reserve_full_isl=False)
    assert reported(step(engine)) == (Limiter.BLOCKS, "blocks: needs 2, 1 free, short 1")


def test_full_sequence() -> None:
    engine = engine_of(ask("a", 8), ask("b", 20), num_blocks=6, max_num_batched_tokens=12)
    assert reported(step(engine)) == (Limiter.FULL_SEQUENCE, "full sequence: needs 5, 4 free, short 1")


def test_watermark() -> None:
    engine = engine_of(ask("a", 8), ask("b", 20), num_blocks=9, watermark=0.3)
    record = step(engine)
    assert reported(record) == (Limiter.WATERMARK, "watermark: 7 − 5 < 3")
    assert record.blocks.watermark == 3


def test_the_watermark_is_not_kept_while_nothing_runs() -> None:
    record = step(engine_of(ask("a", 32), num_blocks=9, watermark=0.3))
    assert record.limiter == Limiter.NONE and record.running == 1


def test_chunking_off() -> None:
    engine = engine_of(ask("a", 8), ask("b", 10), max_num_batched_tokens=12, enable_chunked_prefill=False)
    assert reported(step(engine)) == (Limiter.CHUNKING_OFF, "chunking off: needs 10 tokens, 4 left in this step")


def preempting_engine() -> Engine:
    return engine_of(ask("a", 8, outputs=9), ask("b", 7, outputs=9), num_blocks=4)


def test_preempted_now() -> None:
    record = step(preempting_engine(), 2)
    assert reported(record) == (Limiter.PREEMPTED_NOW, "preempted now")
    assert record.head is not None and record.head.number == 1


def test_paused() -> None:
    engine = engine_of(ask("a", 8))
    engine.pause()
    record = step(engine)
    assert reported(record) == (Limiter.PAUSED, "paused")
    assert not record.executed and record.paused


def test_the_head_knows_since_when_it_waits_and_whether_less_urgent_ones_run() -> None:
    engine = engine_of(ask("a", 8, outputs=9, priority=2), policy="priority", max_num_seqs=1)
    step(engine, 2)
    engine.submit(ask("b", 8, priority=1, arrival_s=engine.clock_s))
    record = step(engine)
    assert record.head is not None
    assert record.head.inverted and record.head.since_s == record.start_s
    engine = engine_of(ask("a", 8, priority=1), ask("b", 8, priority=1), policy="priority", max_num_seqs=1)
    head = step(engine).head
    assert head is not None and not head.inverted


def test_usage_figures_at_a_limit_replay_to_the_end() -> None:
    for engine in (preempting_engine(), engine_of(ask("a", 12), ask("b", 8), num_blocks=4)):
        assert run_out(engine)[-1].totals.finished == 2


def test_a_step_that_only_turns_away_a_stranded_request_is_recorded() -> None:
    """Without chunking, a preempted sequence that outgrew every budget ends, and says so."""
    engine = engine_of(
        ask("a", 8, outputs=14),
        ask("b", 10, outputs=10),
        num_blocks=6,
        enable_chunked_prefill=False,
        max_num_batched_tokens=12,
        scheduler_reserve_full_isl=False,
    )
    records = run_out(engine)
    ends = {finish.number: finish.reason for record in records for finish in record.finishes}
    assert ends == {0: "length", 1: "refused"}
