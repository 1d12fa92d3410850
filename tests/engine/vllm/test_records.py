"""Notes of schedulers of every shape become records whose books balance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.console.past.state import LiveState
from schedtop.engine.channel.protocol import decode_outgoing, encode
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import BlockClass, StepRecord
from schedtop.engine.decide_again.recorded_inputs import Driver
from schedtop.engine.vllm.engine import fixed_of
from schedtop.engine.vllm.events import Added, Scheduled, Updated
from schedtop.engine.vllm.groups import block_size_of, entry_of, settings_of, undecided_of
from schedtop.engine.vllm.limits import ServerFacts
from schedtop.engine.vllm.records.records import Records

from tests.engine.vllm.drive import Run
from tests.engine.vllm.stub import VERSIONS, Status


def work_of(records: list[StepRecord]) -> dict[int, dict[str, int]]:
    """Tokens scheduled, drafted and delivered by request."""
    work: dict[int, dict[str, int]] = {}
    for record in records:
        columns = row_columns(record)
        for number, tokens, emitted in zip(columns["request"], columns["tokens"], columns["emitted"], strict=True):
            mine = work.setdefault(int(number), {"tokens": 0, "emitted": 0})
            mine["tokens"] += int(tokens)
            mine["emitted"] += int(emitted)
    return work


REQUESTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12)


@pytest.mark.parametrize("version", VERSIONS)
@given(requests=REQUESTS, num_blocks=st.integers(27, 60), gap=st.integers(0, 3))
def test_books_balance(version: str, requests: list[tuple[int, int]], num_blocks: int, gap: int) -> None:
    run = Run(version, num_blocks=num_blocks)
    for place, (prompt, outputs) in enumerate(requests):
        run.add(f"r{place}", prompt, outputs)
        for _ in range(gap):
            run.step()
    run.run_out()
    assert not run.hook.errors
    arrivals = {arrival.number: arrival for record in run.records for arrival in record.arrivals}
    finishes = {finish.number: finish for record in run.records for finish in record.finishes}
    work = work_of(run.records)
    assert len(arrivals) == len(finishes) == len(requests)
    for number, (prompt, outputs) in enumerate(requests):
        finish = finishes[number]
        assert (arrivals[number].prompt_tokens, finish.output_tokens) == (prompt, outputs)
        assert work[number]["emitted"] == outputs
        assert work[number]["tokens"] == prompt + outputs - 1 + finish.recomputed_tokens
    totals = run.records[-1].totals
    assert totals.output_tokens == sum(outputs for _, outputs in requests)
    assert totals.scheduled_tokens == sum(mine["tokens"] for mine in work.values())
    assert totals.preemptions == sum(len(record.preemptions) for record in run.records)
    assert (totals.submitted, totals.finished, totals.aborted) == (len(requests), len(requests), 0)


@pytest.mark.parametrize("version", VERSIONS)
@given(requests=REQUESTS, num_blocks=st.integers(27, 60))
def test_a_console_that_sees_every_record_knows_what_a_snapshot_says(
    version: str, requests: list[tuple[int, int]], num_blocks: int
) -> None:
    run, state = Run(version, num_blocks=num_blocks), LiveState()
    state.start_afresh(run.maker.snapshot(0.0))
    for place, (prompt, outputs) in enumerate(requests):
        run.add(f"r{place}", prompt, outputs)
    seen = 0
    while run.scheduler.requests:
        run.step()
        for record in run.records[seen:]:
            state.apply(decode_outgoing(encode(record)))
        seen = len(run.records)
        reported, known = run.maker.snapshot(0.0), state.snapshot()
        assert (known.waiting, known.block_classes) == (reported.waiting, reported.block_classes)
        assert sorted(known.running) == sorted(reported.running)
        mine = {item.arrival.number: item for item in reported.requests}
        assert mine.keys() == {item.arrival.number for item in known.requests}
        for item in known.requests:
            other = mine[item.arrival.number]
            assert (item.output_tokens, item.table) == (other.output_tokens, other.table)
            assert item.computed_tokens == other.computed_tokens


@pytest.mark.parametrize("version", VERSIONS)
def test_blocks_are_told_as_the_pool_has_them(version: str) -> None:
    run = Run(version, num_blocks=31)
    for place in range(8):
        run.add(f"r{place}", 17, 30)
    pool = run.scheduler.kv_cache_manager.block_pool
    while run.scheduler.requests:
        run.step()
        blocks = run.records[-1].blocks
        assert blocks.held + blocks.shared + blocks.cached_free + blocks.empty == 30
        assert blocks.cached_free + blocks.empty == pool.get_num_free_blocks()
        held = {block.block_id - 1 for block in pool.blocks[1:] if block.ref_cnt}
        classes = np.frombuffer(run.maker.snapshot(0.0).block_classes, dtype=np.uint8)
        assert set(np.flatnonzero(classes == BlockClass.HELD).tolist()) == held
    assert run.records[-1].totals.preemptions > 0


def test_a_preemption_names_who_needed_the_room() -> None:
    run = Run("0.32", num_blocks=11, max_num_seqs=2)
    run.add("first", 16, 20)
    run.add("second", 16, 20)
    while not run.records or not run.records[-1].preemptions:
        run.step()
    preemption = run.records[-1].preemptions[0]
    assert (preemption.number, preemption.for_number, preemption.count) == (1, 0, 1)
    assert preemption.freed_blocks == 5
    assert preemption.lost_tokens == 18
    assert preemption.usage_before == 1.0
    assert run.records[-1].limiter == "preempted_now"


def test_the_head_waits_for_the_first_reason_that_vllm_asks_for() -> None:
    run = Run("0.32", max_num_seqs=1)
    run.add("runs", 4, 8)
    run.add("waits", 4, 8)
    run.step()
    assert (run.records[-1].head.reason, run.records[-1].head.need, run.records[-1].head.have) == (
        "sequence_cap",
        1,
        1,
    )
    run = Run("0.32", budget=4)
    run.add("runs", 8, 8)
    run.add("waits", 4, 8)
    run.step()
    assert run.records[-1].limiter == "token_budget"
    run = Run("0.32", num_blocks=11)
    run.add("runs", 12, 28)
    run.step()
    run.add("waits", 30, 2)
    run.step()
    head = run.records[-1].head
    assert (head.reason, head.need, head.have) == ("full_sequence", 8, 6)


def test_a_skipped_request_is_not_the_head() -> None:
    run = Run("0.32", max_num_seqs=1)
    run.add("runs", 4, 8)
    run.step()
    run.add("skipped", 4, 8, status=Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    run.scheduler.deferred_waiting.add(run.scheduler.requests["skipped"])
    run.step()
    assert (run.records[-1].head.number, run.records[-1].waiting) == (1, 1)
    run.add("next", 4, 8)
    run.step()
    assert run.records[-1].head.number == 2


def test_an_abort_between_steps_is_told_and_one_by_stop_string_is_not_certain() -> None:
    run = Run("0.32")
    run.add("left", 4, 50)
    run.add("stopped", 4, 50, sampling_params=type("Params", (), {"stop": ["\n"]})())
    run.step()
    run.scheduler.finish_requests(iter(["left"]), Status.FINISHED_ABORTED)
    run.scheduler.finish_requests("stopped", Status.FINISHED_ABORTED)
    record = run.tell()
    assert record is not None and not record.executed
    assert [finish.reason for finish in record.finishes] == ["abort", "stop_or_abort"]
    assert (record.totals.aborted, record.totals.finished) == (1, 1)
    assert (record.totals.cache_queries, record.totals.aborted_prefill_tokens) == (8, 0)
    assert run.tell() is None


def test_who_skips_the_prefix_cache_asks_it_nothing() -> None:
    """As requests for log probabilities of their prompts do."""
    run = Run("0.32")
    run.add("looks", 4, 5)
    run.add("skips", 6, 5, skip_reading_prefix_cache=True)
    run.step()
    record = run.records[-1]
    assert [arrival.skip_reading_prefix_cache for arrival in record.arrivals] == [False, True]
    assert record.totals.cache_queries == 4


def test_steps_in_flight_are_recorded_in_the_order_of_their_schedules() -> None:
    """As under async scheduling: a step is decided while the one before runs."""
    run = Run("0.32", budget=8)
    run.add("long", 24, 1)
    outputs = [run.scheduler.schedule(), run.scheduler.schedule()]
    run.add("late", 4, 1)
    outputs.append(run.scheduler.schedule())
    for output in outputs:
        run.scheduler.update_from_output(output)
        run.take()
    assert [record.step for record in run.records] == [1, 2, 3]
    assert [row_columns(record)["computed"].tolist() for record in run.records] == [[0], [8], [16]]
    assert [len(record.arrivals) for record in run.records] == [1, 0, 1]
    assert all(later.start_s >= earlier.end_s for earlier, later in zip(run.records, run.records[1:], strict=False))
    assert run.records[-1].head.number == 1


def test_a_schedule_without_a_batch_is_no_step() -> None:
    run = Run("0.32")
    run.add("one", 4, 1)
    run.step()
    run.step()
    assert len(run.records) == 1


def test_its_header_and_arrivals_can_be_decided_again() -> None:
    run = Run("0.32")
    run.add("one", 19, 3, block_hashes=keys(1, 4))
    run.run_out()
    driver = Driver(run.hook.facts.header, "here")
    for record in run.records:
        again = driver.play(record, ())
        assert again is not None
        assert (again.rows, again.grown_blocks) == (record.rows, record.grown_blocks)


def keys(place: int, count: int) -> list[bytes]:
    return [bytes([place, block]) * 16 for block in range(count)]


def test_the_groups_of_a_hybrid_model_are_told_one_by_one() -> None:
    """Full attention and a window of six tokens, in blocks of four: the second group gives its first block back."""
    run = Run("0.32")
    header = run.hook.facts.header
    header = msgspec.structs.replace(header, config={**header.config, "kv_groups": [{"full": True}, {"window": 6}]})
    records, state = Records(header, run.hook.facts.knobs, fixed_of(header)), LiveState()
    state.start_afresh(records.snapshot(0.0))
    records.take(Added(0.0, "one", 10, 3, 0, (), None, False))
    reported = []
    for step, (tokens, before, new) in enumerate([(10, 0, ([1, 2, 3], [4, 5, 6])), (1, 10, None), (1, 11, None)]):
        output = output_of("one", tokens, before, new)
        records.take(scheduled(output, step))
        blocks = [part for block in range(1, 7) for part in (block, int(step == 0 or block != 4), 0)]
        record = records.take(Updated(output, {}, step + 0.5, step + 0.6, blocks, False, 34 + (step > 0), 1, 0))
        assert record is not None
        state.apply(record)
        reported.append((record.group_blocks, int(row_columns(record)["blocks"][0]), record.blocks.stored_tokens))
    assert reported == [((3, 3), 6, 20), ((3, 2), 5, 18), ((3, 2), 5, 20)]
    assert [np.frombuffer(table, dtype=np.int32).tolist() for table in state.group_tables(0)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    (one,) = records.snapshot(3.0).requests
    assert np.frombuffer(one.further[0], dtype=np.int32).tolist() == [-1, 4, 5]


def output_of(name: str, tokens: int, before: int, new: Any) -> Any:
    """A scheduler's output with one request, which is a new one if none of it is computed."""
    fresh = SimpleNamespace(req_id=name, block_ids=new, num_computed_tokens=before)
    later = SimpleNamespace(req_ids=[name], new_block_ids=[new], num_computed_tokens=[before], resumed_req_ids=())
    nobody = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=())
    return SimpleNamespace(
        num_scheduled_tokens={name: tokens},
        scheduled_spec_decode_tokens={},
        scheduled_new_reqs=[] if before else [fresh],
        scheduled_cached_reqs=later if before else nobody,
    )


def scheduled(output: Any, at_s: float) -> Scheduled:
    """A schedule of the stub's limits in which nobody waits."""
    limits = (16, 16, 4, 0, False, 0)
    return Scheduled(output, at_s, at_s + 0.1, *limits, 1, 0, 34, None, None, [], [], False, False)


@pytest.mark.parametrize(
    ("kind", "fields", "entry"),
    [
        ("FullAttentionSpec", {"block_size": 16}, {"full": True}),
        ("SlidingWindowSpec", {"block_size": 32, "sliding_window": 512}, {"window": 512, "block_size": 32}),
        ("MambaSpec", {"block_size": 4096, "mamba_cache_mode": "none"}, {"mamba": "none"}),
        ("MambaSpec", {"block_size": 16, "mamba_cache_mode": "align"}, {"mamba": "align"}),
        ("ChunkedLocalAttentionSpec", {"block_size": 16, "attention_chunk_size": 64}, {"window": 64}),
        ("Unheard", {"block_size": 16}, {"full": True}),
    ],
)
def test_kinds_of_layers_have_their_names_here(kind: str, fields: dict[str, Any], entry: dict[str, Any]) -> None:
    spec = type(kind, (), fields)()
    assert entry_of(spec, 16) == entry
    scheduler = SimpleNamespace(
        block_size=16, kv_cache_config=SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)] * 2)
    )
    decided = kind in ("FullAttentionSpec", "SlidingWindowSpec")
    assert undecided_of(scheduler) == ([] if decided else [f"layers of the kind {kind}"])
    assert settings_of(scheduler)["kv_groups"] == [entry_of(spec, block_size_of(scheduler))] * 2


def test_drafts_that_a_step_did_not_take_are_told() -> None:
    run = Run("0.32")
    run.add("one", 10, 5)
    run.step()
    run.scheduler.requests["one"].spec_token_ids = [7, 7]
    run.hook.after_drafts(SimpleNamespace(req_ids=["one", "gone"]))
    run.step()
    run.step()
    reported = [np.frombuffer(record.proposed, dtype=np.int32).tolist() for record in run.records]
    assert reported == [[], [0, 2], []] and not run.hook.errors


class FullAttentionSpec:
    """Told by its name."""

    block_size = 4


def header_with(**facts: Any) -> Any:
    """The header of a scheduler of 0.32 that has these attributes, too."""
    scheduler: Any = Run("0.32").scheduler
    for name, value in facts.items():
        owner = scheduler.kv_cache_manager if name == "coordinator" else scheduler
        setattr(owner, name, value)
    return ServerFacts.of(scheduler).header


def test_a_drafter_with_a_cache_is_told_by_what_each_version_has() -> None:
    names = ("drop_last_cached_block", "num_lookahead_tokens", "prefill_lookahead")

    def reported(**facts: Any) -> tuple[Any, ...]:
        return tuple(header_with(**facts).config[name] for name in names)

    assert reported() == (False, 0, 0)
    assert reported(use_eagle=True, num_lookahead_tokens=2) == (True, 2, 0)  # before 0.32
    kept = {"use_eagle": True, "use_eagle_block_drop": False, "num_lookahead_tokens": 2, "num_prefill_lookahead": 1}
    assert reported(**kept) == (False, 2, 1)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"dynamic_sd_lookup": [3, 2]}, ["a number of drafts that follows the batch"]),
        ({"coordinator": SimpleNamespace(eagle_group_ids={0})}, []),  # the only group there is
        (
            {
                "coordinator": SimpleNamespace(eagle_group_ids={0}),
                "kv_cache_config": SimpleNamespace(
                    kv_cache_groups=2 * [SimpleNamespace(kv_cache_spec=FullAttentionSpec())]
                ),
            },
            ["a drafter that keeps its state in some of the KV groups"],
        ),
    ],
    ids=["dynamic", "one-group", "some-groups"],
)
def test_drafters_that_are_not_decided_are_named(facts: dict[str, Any], why: list[str]) -> None:
    assert header_with(**facts).settings["undecidable"] == why
