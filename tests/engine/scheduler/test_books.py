"""The scheduler's books under random arrivals, aborts and knob changes: they balance, and everything ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.telemetry import ROW_FIELDS, Finish, Limiter
from schedtop.engine.golden.case import CaseRequest, prompt_tokens
from schedtop.engine.golden.replay import CaseModel
from schedtop.engine.handoff.plan import StepPlan
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.scheduler.settle import Settled

from tests.engine.scheduler.cases import configs, knob_values, prompt_parts


class SchedulerBooks(RuleBasedStateMachine):
    """`submitted` maps numbers to requests; `finishes` to how they ended; `refused` are those turned away."""

    @initialize(config=configs())
    def open(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.model = CaseModel(config.num_speculative_tokens)
        self.submitted: dict[int, Request] = {}
        self.refused: set[int] = set()
        self.finishes: dict[int, Finish] = {}
        self.scheduled: dict[int, int] = {}
        self.rejected: dict[int, int] = {}
        self.spared: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.steps = 0

    @rule(parts=st.data(), max_tokens=st.integers(0, 40), priority=st.integers(0, 2), stop=st.integers(0, 60))
    def add(self, parts: st.DataObject, max_tokens: int, priority: int, stop: int) -> None:
        ordinal = len(self.submitted)
        asked = CaseRequest(f"r{ordinal}", 0, max_tokens, parts.draw(prompt_parts(100 + ordinal)))
        arrived_s = self.steps + ordinal * 1e-6
        request = Request(asked.id, prompt_tokens(asked), max_tokens, arrived_s, priority)
        if stop < 20:
            request.stop_token_ids = frozenset({32000 + (ordinal * 7919 + stop * 104729) % 16000})
        refusal = self.scheduler.add(request)
        self.submitted[request.number] = request
        self.model.add(request.number, ordinal)
        if refusal is None:
            return
        self.refused.add(request.number)
        assert refusal.need is not None and refusal.capacity is not None
        assert refusal.need > refusal.capacity or max_tokens < 1, refusal.reason

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.submitted)))
        live = number not in self.finishes and number not in self.refused
        finish = self.scheduler.abort(number, float(self.steps))
        assert (finish is not None) == live
        if finish is not None:
            assert finish.reason == "abort"
            self.note(finish)

    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        values: dict[str, Any] = data.draw(knob_values(self.config))
        before = self.scheduler.num_unfinished
        self.scheduler.set_limits(values)
        self.model.num_drafts = values.get("num_speculative_tokens", self.model.num_drafts)
        assert self.scheduler.num_unfinished == before, "a change never drops a request"

    @precondition(lambda self: self.scheduler.num_unfinished)
    @rule(count=st.integers(1, 6))
    def run(self, count: int) -> None:
        for _ in range(count):
            if self.scheduler.num_unfinished:
                self.step()

    def step(self) -> None:
        scheduler, state = self.scheduler, self.scheduler.state
        table = state.table
        size = table.size
        gaps = table.num_tokens[:size] + table.num_spec[:size] - table.num_computed[:size]
        gap_of = dict(zip(table.request[:size].tolist(), gaps.tolist(), strict=True))
        running, waiting = list(gap_of), [request.number for request in state.waiting]
        cap = state.chunk_cap()
        self.steps += 1
        plan = scheduler.schedule(float(self.steps))
        self.check_budgets(plan, gap_of, cap)
        self.check_queues(running, waiting)
        self.check_plan(plan)
        scheduler.audit()
        settled = scheduler.update(plan, self.model.execute(plan), float(self.steps))
        self.count_work(settled)
        for finish in [*scheduler.planned.ended, *settled.finishes]:
            self.note(finish)
        scheduler.audit()

    def check_budgets(self, plan: StepPlan, gap_of: dict[int, int], cap: int | None) -> None:
        limits, slots = self.scheduler.state.limits, self.config.draft_slots
        total = int(plan.tokens.sum())
        assert total <= limits.token_budget
        assert total + slots * plan.num_rows <= limits.input_budget
        assert (plan.tokens > 0).all() and (plan.drafts >= 0).all()
        for admission in self.scheduler.planned.admissions:
            request = self.submitted[admission.number]
            gap_of[admission.number] = request.num_tokens - admission.cached_tokens + limits.num_speculative_tokens
            if admission.resumed:  # the cache may now give more than it had computed itself
                spared = max(0, admission.cached_tokens - request.high_water)
                self.spared[request.number] = self.spared.get(request.number, 0) + spared
        for number, tokens, computed in zip(plan.numbers.tolist(), plan.tokens, plan.computed, strict=True):
            assert tokens <= gap_of[number]
            assert cap is None or tokens <= cap
            assert computed + tokens < self.config.max_model_len
            assert len(self.submitted[number].block_ids) * self.config.block_size >= computed + tokens

    def check_plan(self, plan: StepPlan) -> None:
        """What a worker was told so far is every scheduled request's block table, and no one else's."""
        for number in plan.gone:
            self.tables.pop(number, None)
        for number, blocks in plan.new_blocks.items():
            self.tables[number] += blocks
        for started in plan.started:
            assert started.request.number not in self.tables and plan.ids[started.row] == started.request.id
            self.tables[started.request.number] = list(started.block_table)
        numbers = plan.numbers.tolist()
        assert self.tables.keys() == set(
            self.scheduler.state.table.request[: self.scheduler.state.table.size].tolist()
        )
        assert plan.new_blocks.keys() | {started.request.number for started in plan.started} <= set(numbers)
        assert plan.ids == [self.submitted[number].id for number in numbers]
        for number, table in self.tables.items():
            held = self.submitted[number].block_ids
            assert len(held) == len(table)
            assert all(block in (-1, reported) for block, reported in zip(held, table, strict=True))

    def check_queues(self, running: list[int], waiting: list[int]) -> None:
        """Nothing running is stopped but by preemption; nobody overtakes the head; the head knows why it waits."""
        state, planned = self.scheduler.state, self.scheduler.planned
        admitted = [admission.number for admission in planned.admissions]
        preempted = [entry.number for entry in planned.preemptions]
        stranded = [finish.number for finish in planned.ended]
        stayed = [number for number in running if number not in preempted]
        assert state.table.request[: state.table.size].tolist() == stayed + admitted
        left = [request.number for request in state.waiting]
        assert not (admitted and preempted)
        if not preempted:
            passed = len(waiting) - len(left)
            assert sorted(admitted + stranded) == sorted(waiting[:passed]) and left == waiting[passed:]
            assert admitted == [number for number in waiting if number in admitted]
        elif self.config.policy == "fcfs":
            assert left == preempted[::-1] + waiting
        if admitted:
            assert state.table.size <= state.limits.seq_cap
        assert (planned.head is not None) == bool(left)
        if planned.head is not None:
            assert planned.head.number == left[0]
            assert planned.head.reason == planned.limiter != Limiter.NONE

    def count_work(self, settled: Settled) -> None:
        rows = np.frombuffer(settled.rows, dtype=np.int32).reshape(len(ROW_FIELDS), -1)
        columns = dict(zip(ROW_FIELDS, rows.tolist(), strict=True))
        for index, number in enumerate(columns["request"]):
            accepted, emitted = columns["accepted"][index], columns["emitted"][index]
            rejected = columns["drafts"][index] - min(accepted, max(emitted - 1, 0))
            self.scheduled[number] = self.scheduled.get(number, 0) + columns["tokens"][index]
            self.rejected[number] = self.rejected.get(number, 0) + rejected

    def note(self, finish: Finish) -> None:
        """One end per request, and for one that ran to its end: scheduled = useful + recomputed + rejected."""
        assert finish.number not in self.finishes and finish.number not in self.refused
        self.finishes[finish.number] = finish
        request = self.submitted[finish.number]
        assert finish.output_tokens == len(request.output_token_ids) <= request.max_tokens
        if finish.reason in ("abort", "refused"):
            return
        useful = request.num_prompt_tokens + finish.output_tokens - 1 - request.cached_tokens
        useful -= self.spared.get(finish.number, 0)
        work = useful + finish.recomputed_tokens + self.rejected[finish.number]
        assert self.scheduled[finish.number] == work
        if finish.reason == "kv_capacity":
            pool = self.config.num_blocks * self.config.block_size
            assert request.num_tokens == pool + 1, "the last token needs no slot"

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.audit()
            live = len(self.submitted) - len(self.finishes) - len(self.refused)
            assert self.scheduler.num_unfinished == live

    def teardown(self) -> None:
        """Everything in flight ends within bounded steps, and the pool is whole again."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(self.longest_drain()):
            if not self.scheduler.num_unfinished:
                break
            self.step()
        stuck = [request.id for request in self.scheduler.state.requests.values()]
        assert not stuck, f"{stuck} wait for ever: {self.scheduler.planned.head}"
        assert self.scheduler.state.kv.pool.num_free == self.config.num_blocks
        assert self.finishes.keys() | self.refused == self.submitted.keys()

    def longest_drain(self) -> int:
        """First come, first served, the oldest advances in every step; by priority, work may be lost as often as
        there are more urgent requests."""
        live = self.scheduler.state.requests.values()
        work = sum(request.num_prompt_tokens + request.max_tokens + 2 for request in live)
        return work * (len(live) if self.config.policy == "priority" else 1)


TestSchedulerBooks = SchedulerBooks.TestCase
