"""Telemetry told step by step: replayed from the start, the records give back the engine's whole state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.reading import (
    IntArray,
    block_changes,
    blocks_in_use,
    itl_column,
    row_columns,
    table_growth,
)
from schedtop.engine.contract.telemetry import (
    PREFIX_KEY_BYTES,
    BlockClass,
    Finish,
    FinishReason,
    Limiter,
    RowFlag,
    Snapshot,
    StepRecord,
    Totals,
)
from schedtop.engine.step.engine import Engine

from tests.engine.harness import STEP_S, ask, engine_of, run_out, step
from tests.engine.scheduler.cases import configs, prompt_parts


@dataclass
class Mirror:
    """What a console knows that joined with `snapshot` and read every record since."""

    snapshot: Snapshot
    tables: dict[int, list[int]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    prompts: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    scheduled: Counter[int] = field(default_factory=Counter)
    rejected: Counter[int] = field(default_factory=Counter)
    spared: Counter[int] = field(default_factory=Counter)
    high_water: dict[int, int] = field(default_factory=dict)
    finishes: dict[int, Finish] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = np.frombuffer(self.snapshot.block_classes, dtype=np.uint8).copy()

    def read(self, record: StepRecord) -> None:
        blocks, classes = block_changes(record)
        self.classes[blocks] = classes
        self._read_events(record)
        self._read_tables(record)
        self._read_rows(record)
        self._sum(record)
        for finish in record.finishes:
            self.finishes[finish.number] = finish
            self.tables.pop(finish.number, None)
            self.computed.pop(finish.number, None)

    def _read_events(self, record: StepRecord) -> None:
        for arrival in record.arrivals:
            self.prompts[arrival.number] = arrival.prompt_tokens
        for preemption in record.preemptions:
            self.tables.pop(preemption.number, None)
            self.computed.pop(preemption.number, None)
            high = max(self.high_water.get(preemption.number, 0), preemption.lost_tokens)
            self.high_water[preemption.number] = high
        for admission in record.admissions:
            self.tables[admission.number] = []
            if admission.resumed:
                high = self.high_water[admission.number]
                self.spared[admission.number] += max(0, admission.cached_tokens - high)
            else:
                self.cached[admission.number] = admission.cached_tokens

    def _read_tables(self, record: StepRecord) -> None:
        for number, blocks in table_growth(record.grown, record.grown_blocks):
            self.tables[number] += np.frombuffer(blocks, dtype=np.int32).tolist()

    def _read_rows(self, record: StepRecord) -> None:
        rows = row_columns(record)
        rejected = _rejected(rows)
        after = rows["computed"] + rows["tokens"] - rejected
        for index, number in enumerate(rows["request"].tolist()):
            self.computed[number] = int(after[index])
            self.scheduled[number] += int(rows["tokens"][index])
            self.rejected[number] += int(rejected[index])

    def _sum(self, record: StepRecord) -> None:
        rows, sums = row_columns(record), self.sums
        reasons = Counter(finish.reason for finish in record.finishes)
        firsts = [entry for entry in record.admissions if not entry.resumed]
        refused = {refusal.number for refusal in record.refusals}
        kept = [arrival for arrival in record.arrivals if arrival.number not in refused]
        sums["submitted"] += len(record.arrivals)
        sums["submitted_prompt_tokens"] += sum(arrival.prompt_tokens for arrival in kept)
        sums["refused"] += len(record.refusals) + reasons[FinishReason.REFUSED]
        sums["aborted"] += reasons[FinishReason.ABORT]
        sums["aborted_prefill_tokens"] += sum(
            self.scheduled[finish.number] + self.spared[finish.number]
            for finish in record.finishes
            if finish.reason == FinishReason.ABORT and finish.ttft_s is None
        )
        sums["finished"] += reasons[FinishReason.STOP] + reasons[FinishReason.LENGTH]
        sums["kv_capacity"] += reasons[FinishReason.KV_CAPACITY]
        sums["admitted"] += len(firsts)
        sums["prompt_tokens"] += sum(self.prompts[entry.number] for entry in firsts)
        sums["cached_tokens"] += sum(entry.cached_tokens for entry in firsts)
        sums["reused_tokens"] += sum(entry.cached_tokens for entry in record.admissions if entry.resumed)
        sums["preemptions"] += len(record.preemptions)
        sums["recomputed_tokens"] += record.recomputed_tokens
        sums["rejected_draft_tokens"] += int(_rejected(rows).sum())
        sums["accepted_draft_tokens"] += int(rows["accepted"].sum())
        sums["drafts"] += int(np.count_nonzero(rows["drafts"]))
        sums["output_tokens"] += int(rows["emitted"].sum())
        if record.executed:
            sums["steps"] += 1
            for name in ("scheduled_tokens", "draft_tokens", "token_budget", "input_rows", "input_budget"):
                sums[name] += getattr(record, name)
            sums["busy_s"] += record.end_s - record.start_s  # type: ignore[assignment]


def _rejected(rows: dict[str, IntArray]) -> IntArray:
    """Drafts that became no output: not agreed with, or past a request's end."""
    rejected: IntArray = rows["drafts"] - np.minimum(rows["accepted"], np.maximum(rows["emitted"] - 1, 0))
    return rejected


def check_record(mirror: Mirror, record: StepRecord, engine: Engine) -> None:
    """One record against the mirror before it, the engine after it, and itself."""
    mirror.read(record)
    firsts = [entry.number for entry in record.admissions if not entry.resumed]
    if engine.scheduler.state.kv.caching:
        mirror.sums["cache_queries"] += sum(mirror.prompts[number] for number in firsts)
    snapshot = engine.snapshot()
    blocks = record.blocks
    count = Counter(mirror.classes.tolist())
    classes = [count[BlockClass.HELD], count[BlockClass.SHARED], count[BlockClass.CACHED_FREE]]
    assert mirror.classes.tobytes() == snapshot.block_classes
    assert [blocks.held, blocks.shared, blocks.cached_free] == classes
    assert blocks.held + blocks.shared + blocks.cached_free + blocks.empty == len(mirror.classes)
    check_tables(mirror, record, snapshot, engine.scheduler.config.block_size)
    totals = msgspec.structs.asdict(record.totals)
    assert totals == {name: pytest.approx(mirror.sums[name]) for name in Totals.__struct_fields__}
    rows = row_columns(record)
    assert record.scheduled_tokens == rows["tokens"].sum()
    assert record.draft_tokens == rows["drafts"].sum()
    assert record.scheduled_tokens == record.decode_tokens + record.prefill_tokens + record.draft_tokens
    assert record.decode_tokens == np.count_nonzero(rows["flags"] & RowFlag.DECODE)
    assert record.running == len(snapshot.running) and record.waiting == len(snapshot.waiting)
    assert len(itl_column(record)) == rows["request"].size
    assert record.seq == snapshot.seq and record.step == snapshot.step
    assert (record.head is not None) or not record.executed or not record.waiting or record.preemptions


def check_tables(mirror: Mirror, record: StepRecord, snapshot: Snapshot, block_size: int) -> None:
    """Tables told are the tables held, but for blocks released before a window; so are the tokens in them."""
    stored: dict[int, int] = {}
    for request in snapshot.requests:
        table = np.frombuffer(request.table, dtype=np.int32).tolist()
        number = request.arrival.number
        assert len(mirror.tables.get(number, [])) == len(table)
        assert request.computed_tokens == mirror.computed.get(number, 0)
        for index, block in enumerate(table):
            if block >= 0:
                assert mirror.tables[number][index] == block
                fill = min(max(request.computed_tokens - index * block_size, 0), block_size)
                stored[block] = max(stored.get(block, 0), fill)
    assert record.blocks.stored_tokens == sum(stored.values())


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """An engine with requests in its queue, some of them impossible, some with a shared beginning."""
    config = msgspec.structs.asdict(draw(configs()))
    requests = []
    for ordinal in range(draw(st.integers(1, 8))):
        parts = draw(prompt_parts(20 + ordinal))
        prompt = [seed * 100 + place for seed, length in parts for place in range(length)]
        outputs, priority = draw(st.integers(1, 30)), draw(st.integers(0, 2))
        requests.append(ask(f"r{ordinal}", prompt, outputs, priority=priority))
    return engine_of(*requests, **config)


@given(engines(), st.data())
def test_replayed_records_give_the_engines_state(engine: Engine, data: st.DataObject) -> None:
    mirror = Mirror(engine.snapshot())
    abort_at = data.draw(st.dictionaries(st.integers(1, 20), st.integers(0, 7), max_size=2))
    for count in range(3000):
        if count in abort_at:
            engine.abort(abort_at[count])
        record = engine.step()
        if record is None:
            break
        check_record(mirror, record, engine)
    assert not engine.num_unfinished
    for number, finish in mirror.finishes.items():
        if finish.reason not in (FinishReason.ABORT, FinishReason.REFUSED):
            # Less what the cache gave a resumed request beyond what it had computed itself.
            useful = mirror.prompts[number] + finish.output_tokens - 1 - mirror.cached[number]
            work = useful - mirror.spared[number] + finish.recomputed_tokens + mirror.rejected[number]
            assert mirror.scheduled[number] == work
    assert set(mirror.classes.tolist()) <= {BlockClass.EMPTY, BlockClass.CACHED_FREE}


# Figures of one request's life, on a clock where every step takes STEP_S


def finish_of(records: list[StepRecord], number: int) -> Finish:
    (finish,) = [finish for record in records for finish in record.finishes if finish.number == number]
    return finish


def test_times_of_a_request_that_is_served_at_once() -> None:
    engine = engine_of(ask("a", 8, outputs=4))
    records = run_out(engine)
    assert [record.ttft_s for record in records] == [((0, STEP_S),), (), (), ()]
    itl_s = np.concatenate([itl_column(record) for record in records])
    assert np.isnan(itl_s[0]) and itl_s[1:].tolist() == [STEP_S] * 3
    finish = finish_of(records, 0)
    assert finish.reason == FinishReason.LENGTH
    assert (finish.ttft_s, finish.e2e_s, finish.queue_s) == (STEP_S, 4 * STEP_S, 0)
    assert (finish.tpot_s, finish.itl_p95_s, finish.requeued_s) == (STEP_S, STEP_S, 0)


def test_a_request_with_one_output_has_neither_tpot_nor_itl() -> None:
    finish = finish_of(run_out(engine_of(ask("a", 8, outputs=1))), 0)
    assert finish.tpot_s is None and finish.itl_p95_s is None
    assert finish.ttft_s == finish.e2e_s == STEP_S


def test_waiting_counts_into_queue_time_and_ttft() -> None:
    records = run_out(engine_of(ask("a", 8, outputs=3), ask("b", 8, outputs=2), max_num_seqs=1))
    assert records[0].oldest_wait_s == STEP_S
    finish = finish_of(records, 1)
    assert finish.queue_s == 3 * STEP_S
    assert finish.ttft_s == 4 * STEP_S
    (admission,) = records[3].admissions
    assert (admission.number, admission.waited_s, admission.resumed) == (1, 3 * STEP_S, False)
    assert records[3].oldest_wait_s is None


def test_time_waited_after_a_preemption_is_requeued_time() -> None:
    # Both prompts fill the pool; the outputs of `a` push `b` out until `a` has ended.
    engine = engine_of(ask("a", 8, outputs=12), ask("b", 7, outputs=3), num_blocks=4)
    records = run_out(engine)
    out = next(record.start_s for record in records if record.preemptions)
    back = next(record.start_s for record in records if any(entry.resumed for entry in record.admissions))
    finish = finish_of(records, 1)
    assert finish.preemptions == 1 and finish.queue_s == 0
    assert finish.requeued_s == back - out > 0
    assert finish.recomputed_tokens > 0
    assert finish_of(records, 0).requeued_s == 0


def test_a_verified_burst_is_one_delivery_so_itl_and_tpot_differ() -> None:
    engine = engine_of(ask("a", 8, outputs=7), num_speculative_tokens=2, acceptance=1.0)
    records = run_out(engine)
    assert [row_columns(record)["emitted"].tolist() for record in records] == [[1], [3], [3]]
    finish = finish_of(records, 0)
    assert finish.itl_p95_s == STEP_S
    assert finish.tpot_s == pytest.approx(2 * STEP_S / 6)


def test_a_stop_token_ends_a_request_and_what_came_after_it_is_no_output() -> None:
    outputs = engine_of().worker.token_ids(np.int32(0), np.arange(8, 15, dtype=np.int32)).tolist()  # type: ignore[attr-defined]
    request = ask("a", 8, outputs=7, stop_token_ids=frozenset({outputs[2]}))
    records = run_out(engine_of(request, num_speculative_tokens=2, acceptance=1.0))
    assert request.output_token_ids.tolist() == outputs[:3]
    finish = finish_of(records, 0)
    assert (finish.reason, finish.output_tokens) == (FinishReason.STOP, 3)
    assert records[-1].totals.output_tokens == 3


def test_an_abort_keeps_its_figures_and_frees_its_blocks() -> None:
    engine = engine_of(ask("a", 8, outputs=9))
    step(engine, 3)
    assert engine.abort(0)
    record = step(engine)
    assert not record.executed and record.blocks.empty == 16
    (finish,) = record.finishes
    assert (finish.reason, finish.output_tokens, finish.ttft_s) == (FinishReason.ABORT, 3, STEP_S)
    assert record.totals.aborted == 1 and record.totals.finished == 0
    assert not engine.abort(0), "it is gone"
    assert engine.step() is None


def test_hits_count_at_the_first_admission_and_reuse_at_later_ones() -> None:
    prompt = list(range(12))
    engine = engine_of(ask("a", prompt, 2), ask("b", prompt, 2), enable_prefix_caching=True)
    record = step(engine)
    assert [(entry.number, entry.cached_tokens) for entry in record.admissions] == [(0, 0), (1, 8)]
    assert (record.totals.prompt_tokens, record.totals.cached_tokens, record.totals.reused_tokens) == (24, 8, 0)
    assert (record.blocks.shared, record.blocks.held) == (2, 2)


def test_prefix_keys_of_equal_prompts_are_equal() -> None:
    engine = engine_of(ask("a", list(range(8))), ask("b", list(range(9))), enable_prefix_caching=True)
    one, other = step(engine).arrivals
    assert one.prefix_keys == other.prefix_keys and len(one.prefix_keys) == 2 * PREFIX_KEY_BYTES


def test_the_pool_is_told_as_scheduled_and_as_left() -> None:
    """A head that is told how many blocks were free met the pool of the same record."""
    engine = engine_of(*(ask(name, 12, outputs=3) for name in "abcdef"), num_blocks=10)
    records = list(run_out(engine))
    freed = [
        record for record in records if any(finish.reason == FinishReason.LENGTH for finish in record.finishes)
    ]
    held_back = [record for record in records if record.head is not None and record.head.have is not None]
    assert freed and held_back
    for record in records:
        after = record.blocks.held + record.blocks.shared
        assert after <= blocks_in_use(record) <= 10
        assert record.finishes or after == blocks_in_use(record)
    assert all(blocks_in_use(record) > record.blocks.held + record.blocks.shared for record in freed)
    for record in held_back:
        if record.head is not None and record.head.reason in (Limiter.BLOCKS, Limiter.FULL_SEQUENCE):
            assert record.head.have == 10 - blocks_in_use(record)


# The preemption ledger


def ledger_engine(**config: Any) -> Engine:
    """Two requests that fill a pool of four blocks; the first needs a third block after its first output."""
    return engine_of(ask("a", 8, outputs=9), ask("b", 7, outputs=9), num_blocks=4, **config)


def test_the_ledger_says_who_lost_what_to_whom() -> None:
    engine = ledger_engine()
    record = step(engine, 2)
    (entry,) = record.preemptions
    assert (entry.number, entry.for_number, entry.count) == (1, 0, 1)
    assert (entry.lost_tokens, entry.freed_blocks) == (7, 2)
    assert (entry.usage_before, entry.usage_after) == (1.0, 0.5)
    assert not entry.was_planned and not entry.loop
    assert record.limiter == Limiter.PREEMPTED_NOW
    assert record.totals.preemptions == 1


def test_a_victim_that_was_already_planned_is_told_and_leaves_the_step() -> None:
    urgent, other = ask("b", 8, outputs=9, priority=0), ask("a", 5, outputs=9, priority=1)
    engine = engine_of(other, num_blocks=4, policy="priority")
    step(engine)
    engine.submit(urgent)
    step(engine)
    record = step(engine)
    (entry,) = record.preemptions
    assert entry.was_planned and (entry.number, entry.for_number) == (0, 1)
    assert row_columns(record)["request"].tolist() == [1]
    assert record.scheduled_tokens == 1


def test_three_preemptions_with_nothing_finished_in_between_are_a_loop() -> None:
    engine = engine_of(
        ask("a", 4, outputs=60),
        ask("b", 4, outputs=60),
        num_blocks=18,
        scheduler_reserve_full_isl=False,
        max_num_batched_tokens=16,
    )
    entries = [entry for record in run_out(engine) for entry in record.preemptions]
    loops = [entry.count for entry in entries if entry.loop]
    assert len(entries) >= 3
    assert loops == [entry.count for entry in entries if entry.count >= 3]


def test_who_skips_the_prefix_cache_asks_it_nothing() -> None:
    prompt = list(range(12))
    looks = ask("aa", prompt), ask("bb", prompt), ask("cc", prompt, skip_reading_prefix_cache=True)
    engine = engine_of(*looks[:1], enable_prefix_caching=True)
    engine.step()
    for request in looks[1:]:
        engine.submit(request)
    record = step(engine)
    assert (record.totals.cache_queries, record.totals.cached_tokens) == (24, 8)
