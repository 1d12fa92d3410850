"""Steps taken together are the steps taken one by one: every record, every request, every figure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, SchedulerConfig, WorkloadSpec
from schedtop.engine.contract.latencies.front_end import FrontEnd, front_end_of
from schedtop.engine.contract.latencies.slo import parse_slo
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.golden.case import Case, CaseRequest, prompt_tokens
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.headless import run_headless, run_through, step_through
from schedtop.engine.offline.report import Report
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.linear import LinearCost
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.clock import SimulatedClock
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.stretch.run import MOST_OUTPUTS, run_stretch
from schedtop.engine.step.stretch.stretch import Stretch

from tests.engine.harness import Script, ask, engine_of, header_of, step
from tests.engine.scheduler.cases import cases, overlapped

COST = LinearCost(fixed_s=0.1, per_token_s=0.013, per_kv_token_s=0.00031, per_request_s=0.0071)
MOST_STEPS = 3000
SLO = parse_slo("ttft=2s,itl=150ms,tpot=200ms,e2e=20s")


class Run:
    """A case served to its end, with its knobs and aborts at their steps; with stretches where `together`."""

    def __init__(self, case: Case, together: bool, vocab: int, gap_s: float, stops: frozenset[int]) -> None:
        self.case = case
        self.together = together
        self.requests = [
            Request(
                asked.id,
                prompt_tokens(asked),
                asked.max_tokens,
                asked.arrival_step * gap_s,
                asked.priority,
                stop_token_ids=stops if ordinal % 4 == 0 else frozenset(),
            )
            for ordinal, asked in enumerate(case.requests)
        ]
        self.engine = self._engine(vocab)
        self.log: list[bytes] = []
        self.report = Report(SLO, block_size=case.config.block_size, front_end=FrontEnd(0.1, 0.01, 0.001))
        self.num_stretched = 0
        self._serve()

    def _engine(self, vocab: int) -> Engine:
        config, source = self.case.config, Script(list(self.requests))
        worker = SimWorker(
            COST,
            vocab,
            num_speculative_tokens=config.num_speculative_tokens,
            keeps_drafts=config.async_scheduling,
        )
        return Engine(Scheduler(config), worker, source, SimulatedClock(), header_of(config))

    def _serve(self) -> None:
        events: list[tuple[int, Any]] = [(knob.step, knob.set) for knob in self.case.knobs]
        events += [(abort.step, abort.id) for abort in self.case.aborts]
        events.sort(key=lambda event: event[0], reverse=True)
        engine = self.engine
        while not engine.exhausted and engine.observer.step < MOST_STEPS:
            while events and events[-1][0] <= engine.observer.step:
                self._intervene(events.pop()[1])
            self._advance(events[-1][0] - engine.observer.step if events else MOST_OUTPUTS)
        self.snapshot = msgspec.msgpack.encode(engine.snapshot())
        engine.scheduler.audit()

    def _intervene(self, change: dict[str, Any] | str) -> None:
        if isinstance(change, dict):
            self.engine.set_knobs(change)
        else:
            self.engine.abort(next(request.number for request in self.requests if request.id == change))

    def _advance(self, most_steps: int) -> None:
        done = run_stretch(self.engine, most_steps=most_steps) if self.together else None
        if isinstance(done, Stretch):
            records = list(done.records())
            self.num_stretched += len(records)
            self.report.add(done)
        else:
            record = self.engine.step()
            records = [] if record is None else [record]
            for record in records:
                self.report.add(record)
        self.log += map(msgspec.msgpack.encode, records)


def calmed(case: Case) -> Case:
    """With room for stretches: one group without a window, no drafts, images or pooling, a larger pool."""
    config = msgspec.structs.replace(
        case.config,
        kv_groups=None,
        prefix_cache_retention_interval=None,
        sliding_window=None,
        num_speculative_tokens=0,
        drop_last_cached_block=False,
        num_lookahead_tokens=0,
        prefill_lookahead=0,
        encoder_budget=None,
        pooling=False,
        num_blocks=3 * case.config.num_blocks,
        max_num_batched_tokens=max(case.config.max_num_batched_tokens, 8 * (1 + case.config.draft_slots)),
        max_num_seqs=4,
    )
    requests = [msgspec.structs.replace(asked, max_tokens=asked.max_tokens or 30) for asked in case.requests]
    knobs = [knob for knob in case.knobs if not knob.set.get("num_speculative_tokens")]
    return msgspec.structs.replace(case, config=config, requests=requests, knobs=knobs)


@given(
    cases() | cases().map(calmed) | overlapped(cases().map(calmed)) | overlapped(cases()),
    st.sampled_from([2, 1000]),
    st.sampled_from([0.2, 1.1, 5.0]),
    st.sampled_from([frozenset(), frozenset(), frozenset({1})]),
)
def test_stretches_change_nothing(case: Case, vocab: int, gap_s: float, stops: frozenset[int]) -> None:
    alone, together = (Run(case, each, vocab, gap_s, stops) for each in (False, True))
    assert [decoded(raw) for raw in together.log] == [decoded(raw) for raw in alone.log]
    assert together.log == alone.log
    assert together.snapshot == alone.snapshot
    assert together.report.as_dict() == alone.report.as_dict()
    for one, other in zip(alone.requests, together.requests, strict=True):
        assert (one.output_token_ids, one.status) == (other.output_token_ids, other.status), one.id
        assert one.gaps_s.tobytes() == other.gaps_s.tobytes(), one.id


def decoded(raw: bytes) -> StepRecord:
    return msgspec.msgpack.decode(raw, type=StepRecord)


def stretch_of(engine: Engine, **limits: Any) -> Stretch:
    stretch = run_stretch(engine, **limits)
    assert stretch is not None
    return stretch


def test_a_stretch_goes_on_when_requests_end() -> None:
    engine = engine_of(ask("a", 3, outputs=10), ask("b", 3, outputs=14))
    step(engine)  # both prompts, and their first outputs
    records = list(stretch_of(engine).records())
    assert [[finish.number for finish in record.finishes] for record in records] == [
        *[[]] * 8, [0], *[[]] * 3, [1],
    ]  # fmt: skip
    assert [record.running for record in records] == [2] * 8 + [1] * 4 + [0]
    assert engine.num_unfinished == 0


def test_a_report_sees_the_fullest_pool_of_a_stretch() -> None:
    """Which is before its last step: there, a request ends and gives its blocks back."""
    engine, report = engine_of(ask("a", 3, outputs=10), ask("b", 3, outputs=14)), Report()
    step(engine)
    report.add(stretch_of(engine))
    assert report.as_dict()["peak_kv_usage"] == 2 * 3 / 16


def test_a_stretch_takes_in_who_arrives() -> None:
    """Steps take half a second: the one that starts at 2.0 takes the arrival in, with its whole prompt."""
    source = Script([ask("a", 3, outputs=20), ask("b", 3, outputs=8, arrival_s=2.0)])
    engine = engine_of(source=source, num_blocks=32)
    step(engine)
    before, records = 3, list(stretch_of(engine).records())
    first = records[before]
    assert first.start_s == 2.0
    assert [arrival.number for arrival in first.arrivals] == [1]
    assert [admission.number for admission in first.admissions] == [1]
    assert first.ttft_s == ((1, 0.5),)
    assert (first.prefill_tokens, first.decode_tokens, first.running) == (3, 1, 2)
    assert [record.scheduled_tokens for record in records] == [1] * before + [4] + [2] * 7 + [1] * 8
    others = records[:before] + records[before + 1 :]
    assert not any(record.arrivals or record.admissions or record.ttft_s for record in others)


def test_a_stretch_that_begins_with_prompts_alone_has_no_decode_in_its_first_step() -> None:
    source = Script([ask("a", 12, outputs=20), ask("b", 3, outputs=20, arrival_s=0.4)])
    engine = engine_of(source=source, num_blocks=32, max_num_batched_tokens=10)
    step(engine)
    first, second, *_ = stretch_of(engine).records()
    assert [(each.prefill_tokens, each.decode_tokens) for each in (first, second)] == [(5, 0), (0, 2)]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_arrival_whose_prompt_takes_several_steps_is_taken_in(ahead: bool) -> None:
    source = Script([ask("a", 3, outputs=20), ask("b", 24, outputs=4, arrival_s=2.0)])
    engine = engine_of(source=source, num_blocks=32, max_num_batched_tokens=10, async_scheduling=ahead)
    step(engine)
    records = [record for record in stretch_of(engine).records() if record.start_s >= 2.0 + 0.5 * ahead]
    assert [record.prefill_tokens for record in records[:4]] == [9, 9, 6, 0]
    assert [len(record.ttft_s) for record in records[:4]] == [0, 0, 1, 0]
    assert [record.decode_tokens for record in records[:4]] == [1, 1, 1, 2]
    assert engine.num_unfinished == 0


def test_planned_ahead_an_arrival_is_computed_a_step_later() -> None:
    source = Script([ask("a", 3, outputs=20), ask("b", 3, outputs=8, arrival_s=2.0)])
    engine = engine_of(source=source, num_blocks=32, async_scheduling=True)
    step(engine)
    records = [record for record in stretch_of(engine).records() if record.start_s >= 2.0]
    assert [len(record.arrivals) for record in records[:2]] == [1, 0]
    assert [len(record.admissions) for record in records[:2]] == [0, 1]
    assert [record.ttft_s for record in records[:2]] == [(), ((1, 1.0),)]
    assert [record.scheduled_tokens for record in records[:3]] == [1, 4, 2]


def test_planned_ahead_who_comes_in_anothers_last_turn_is_taken_in() -> None:
    """The arrival is planned while the last output of the request before it is under way."""
    source = Script([ask("a", 3, outputs=5), ask("b", 3, outputs=8, arrival_s=2.0)])
    engine = engine_of(source=source, num_blocks=32, async_scheduling=True)
    step(engine)
    first, second, *_ = [record for record in stretch_of(engine).records() if record.start_s >= 2.0]
    assert ([finish.number for finish in first.finishes], first.running) == ([0], 1)
    assert (second.ttft_s, second.scheduled_tokens) == (((1, 1.0),), 3)


def test_a_block_of_one_token_is_taken_before_it_is_registered() -> None:
    """Also after an arrival, where the first turn's step is planned already."""
    requests = [
        CaseRequest(id=name, arrival_step=at, max_tokens=30, prompt_parts=[(seed, 1)])
        for name, at, seed in (("a", 0, 102), ("b", 1, 103))
    ]
    config = SchedulerConfig(num_blocks=72, block_size=1, max_num_batched_tokens=8, max_model_len=120)
    case = Case(config, requests)  # type: ignore[arg-type]
    alone, together = (Run(case, each, 2, 0.2, frozenset()) for each in (False, True))
    assert together.num_stretched > 25
    assert together.log == alone.log and together.snapshot == alone.snapshot


def test_with_nothing_but_results_left_a_refused_arrival_plans_no_step() -> None:
    requests = [
        CaseRequest(id="last", arrival_step=0, max_tokens=8, prompt_parts=[(101, 1)]),
        CaseRequest(id="empty", arrival_step=2, max_tokens=8, prompt_parts=[]),
    ]
    config = SchedulerConfig(
        num_blocks=6, block_size=4, max_num_seqs=8, num_speculative_tokens=4, async_scheduling=True
    )
    alone, together = (Run(Case(config, requests), each, 2, 0.2, frozenset()) for each in (False, True))  # type: ignore[arg-type]
    assert together.log == alone.log and together.snapshot == alone.snapshot


def test_a_stretch_ends_before_a_preemption() -> None:
    engine = engine_of(
        ask("a", 8, outputs=40), ask("b", 8, outputs=40), num_blocks=8, scheduler_reserve_full_isl=False
    )
    step(engine)
    stretch_of(engine)
    assert step(engine).preemptions


def test_a_report_knows_when_a_preempted_request_got_its_last_token() -> None:
    engine = engine_of(
        ask("a", 8, outputs=40), ask("b", 8, outputs=40), num_blocks=8, scheduler_reserve_full_isl=False
    )
    of_records, of_stretches, first = Report(), Report(), step(engine)
    stretch = stretch_of(engine)
    of_stretches.add(first)
    of_stretches.add(stretch)
    for record in (first, *stretch.records()):
        of_records.add(record)
    assert of_stretches.as_dict() == of_records.as_dict()
    assert engine.scheduler.state.waiting


def test_a_stretch_keeps_to_its_limits() -> None:
    engine = engine_of(ask("a", 3, outputs=40))
    step(engine)
    assert stretch_of(engine, until_s=1.9).end_s == 2.0
    assert stretch_of(engine, most_steps=5).end_s == 4.5


def test_who_waits_at_the_sequence_cap_waits_through_a_stretch() -> None:
    engine = engine_of(ask("a", 3, outputs=20), ask("b", 3), max_num_seqs=1)
    first = step(engine)
    records = list(stretch_of(engine).records())
    assert len(records) == 19
    assert {(record.head, record.limiter, record.waiting) for record in records} == {
        (first.head, "sequence_cap", 1)
    }
    assert records[-1].oldest_wait_s == records[-1].end_s


def test_a_head_that_outranks_who_leaves_is_inverted_no_more() -> None:
    engine = engine_of(
        ask("a", 3, outputs=10, priority=5), ask("b", 3, outputs=14), policy="priority", max_num_seqs=2
    )
    step(engine)
    engine.submit(ask("c", 3, priority=1))
    step(engine)
    heads = [record.head for record in stretch_of(engine).records()]
    assert [head.inverted for head in heads if head is not None] == [True] * 7 + [False]


def test_what_may_change_on_the_way_is_no_stretch() -> None:
    def refuses(engine: Engine) -> bool:
        step(engine)
        return run_stretch(engine) is None

    assert refuses(engine_of(ask("a", 30, outputs=20), max_num_batched_tokens=10))
    assert refuses(engine_of(ask("a", 3, outputs=20), num_speculative_tokens=2))
    assert refuses(engine_of(ask("a", 3, outputs=20, stop_token_ids=frozenset({1}))))
    assert refuses(engine_of(ask("a", 3, outputs=20), sliding_window=8))
    assert refuses(engine_of(ask("a", 3, outputs=20), ask("b", 50), num_blocks=13))
    paused = engine_of(ask("a", 3, outputs=20))
    step(paused)
    paused.pause()
    assert run_stretch(paused) is None
    paused.tell()
    paused.resume()
    assert run_stretch(paused) is not None
    assert paused.tell() is None
    turned = engine_of(ask("a", 3, outputs=20))
    step(turned)
    turned.set_knobs({"max_num_seqs": 3})
    assert run_stretch(turned) is None  # the change is a record's to tell
    assert step(turned).knobs
    assert run_stretch(turned) is not None


@pytest.mark.parametrize(("ahead", "stages"), [(False, 1), (True, 1), (True, 2), (False, 2)])
def test_a_whole_run_is_the_same(ahead: bool, stages: int) -> None:
    """The way every headless run goes, ends at its duration included."""
    asked = EngineConfig(
        device="sim:llama-3.1-8b@h100",
        workload=WorkloadSpec(source="mixed", rate=4.0, seed=3),
        scheduler={"num_blocks": 900, "max_num_seqs": 12, "async_scheduling": ahead},
        pipeline_parallel_size=stages,
        duration_s=8.0,
    )
    alone = list(step_through(build_engine(asked), asked))
    items = list(run_through(build_engine(asked), asked))
    together = [record for item in items for record in (item.records() if isinstance(item, Stretch) else [item])]
    assert together == alone
    assert len(items) < len(alone) / 2
    header = build_engine(asked).header
    report = Report(block_size=16, front_end=front_end_of(header.settings))
    report.workload = header.workload
    for record in alone:
        report.add(record)
    report.close(8.0)
    document = run_headless(asked, None, notice=lambda line: None).as_dict()
    assert document.pop("wall_s") is not None
    assert document == {name: value for name, value in report.as_dict().items() if name != "wall_s"}
