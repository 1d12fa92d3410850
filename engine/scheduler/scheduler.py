"""The scheduler: decides how much each request advances in a step. The rooms beside this file decide the parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from schedtop.engine.contract.config import SchedulerConfig, check_scheduler_config
from schedtop.engine.contract.telemetry import Finish, FinishReason, Head, Limiter, Refusal, RowFlag
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.kv.prefix_cache import extend_keys
from schedtop.engine.scheduler.admission import AdmissionPass
from schedtop.engine.scheduler.request_table import BEFORE, DRAFTED, NOW, PLAN_ROWS, BoolArray, IntArray, RowArray
from schedtop.engine.scheduler.running import run_pass
from schedtop.engine.scheduler.settle import Settled, end_request, settle
from schedtop.engine.scheduler.state import PlannedStep, State
from schedtop.engine.scheduler.submission import refuse

NEW, RESUMED, SAMPLED = int(RowFlag.NEW), int(RowFlag.RESUMED), np.int32(RowFlag.SAMPLED)


class Scheduler:
    """Running requests before waiting ones, under a token budget, an input budget and a pool of blocks.

    Call `add`, `schedule`, `update` in turn; `schedule` and `update` must alternate.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = check_scheduler_config(config)
        self.state = State(config)
        self.planned = PlannedStep(0.0)
        self._next_number = 0

    @property
    def num_unfinished(self) -> int:
        return self.state.num_unfinished

    def add(self, request: Request) -> Refusal | None:
        """Queue a request and give it its number; returns why not if it can never be served.

        One with a `deferred` reason waits until `make_ready`.
        """
        state = self.state
        request.number = self._next_number
        self._next_number += 1
        refusal = refuse(state, request)
        if refusal is not None:
            request.status = Status.FINISHED
            return refusal
        if state.kv.caching and not request.block_keys:
            extend_keys(request, request.num_prompt_tokens // state.kv.stride, state.kv.stride)
        request.queued_since_s = request.arrival_s
        state.requests[request.number] = request
        state.waiting.add(request)
        return None

    def abort(self, number: int, now_s: float) -> Finish | None:
        """End one request; None if there is none with this number."""
        state = self.state
        request = state.requests.get(number)
        if request is None:
            return None
        if request.status is Status.RUNNING:
            row = state.table.requests.index(request)
            state.table.rest(row)
            finish = end_request(state, request, FinishReason.ABORT, now_s)
            state.table.remove([row])
            return finish
        state.waiting.remove(request)
        return end_request(state, request, FinishReason.ABORT, now_s)

    def make_ready(self, number: int) -> None:
        """A deferred request can be admitted from now on; nothing happens if it has ended."""
        request = self.state.requests.get(number)
        if request is not None and request.deferred is not None:
            self.state.waiting.make_ready(request)

    def prefill_tokens(self, number: int) -> int:
        """Tokens computed for a request that has no output yet; 0 once it has one."""
        state, request = self.state, self.state.requests.get(number)
        if request is None or request.first_token_s is not None or request.first_scheduled_s is None:
            return 0
        computed = request.high_water
        if request.status is Status.RUNNING:
            computed = max(computed, state.table.num_computed.item(state.table.requests.index(request)))
        return max(0, computed - request.cached_tokens) + request.recomputed_tokens

    def set_limits(self, values: Mapping[str, Any]) -> None:
        """Apply checked knob values from the next step on; nothing running is stopped."""
        self.state.set_limits(values)

    def schedule(self, now_s: float) -> StepPlan:
        """Plan one step; the blocks it needs are taken, the positions it covers count as computed."""
        state = self.state
        planned = self.planned = PlannedStep(now_s)
        run_pass(state, planned)
        if planned.preemptions:
            planned.limiter = Limiter.PREEMPTED_NOW
            planned.head = Head(state.waiting.first_number, Limiter.PREEMPTED_NOW)
        elif state.waiting:
            AdmissionPass(state, planned).run()
        planned.blocks_in_use = state.kv.pool.num_blocks - state.kv.pool.num_free
        return self._seal()

    def _seal(self) -> StepPlan:
        """Freeze the drafted step and advance every row by what it was given."""
        state, table, size = self.state, self.state.table, self.state.table.size
        tokens = table.tokens[:size]
        computed, num_tokens = table.num_computed[:size], table.num_tokens[:size]
        table.data[BEFORE, :size] = table.data[NOW, :size]
        computed += tokens
        samples = computed >= num_tokens
        all_busy = np.count_nonzero(tokens) == size
        busy: slice | RowArray = slice(0, size) if all_busy else tokens.nonzero()[0]
        self._flag_rows(samples, busy)
        table.data[DRAFTED, :size] = 0
        draft_token_ids = self._take_drafts(busy) if table.has_drafts else None
        numbers, tokens, drafts, _, before = table.data[:PLAN_ROWS, busy].copy()
        gone, state.gone = state.gone, []
        return StepPlan(
            ids=table.ids.copy() if isinstance(busy, slice) else [table.ids[row] for row in busy.tolist()],
            numbers=numbers,
            tokens=tokens,
            drafts=drafts,
            computed=before,
            samples=samples[busy],
            draft_token_ids=draft_token_ids,
            new_blocks=self.planned.new_blocks,
            started=self.planned.started,
            gone=gone,
        )

    def _take_drafts(self, busy: slice | RowArray) -> IntArray | None:
        """Note the drafts that the step schedules (what lies past a row's tokens); its other ones are dropped."""
        table, size = self.state.table, self.state.table.size
        drafts = table.drafts[:size]
        np.maximum(table.num_computed[:size] - table.num_tokens[:size], 0, out=drafts)
        table.num_spec[busy] = 0
        table.has_drafts = not isinstance(busy, slice) and bool(table.num_spec[:size].any())
        width = int(drafts.max(initial=0))
        return table.draft_ids[busy, :width].copy() if width else None

    def _flag_rows(self, samples: BoolArray, busy: slice | RowArray) -> None:
        table, size = self.state.table, self.state.table.size
        flags = table.flags[:size]
        if isinstance(busy, slice):
            np.multiply(samples, SAMPLED, out=flags)
            flags += table.decoding[:size]  # DECODE is bit 1, as `decoding` is
            np.logical_not(samples, out=table.mid_prompt[:size])
        else:
            flags[:] = 0
            flags[busy] = samples[busy] * SAMPLED + table.decoding[busy]
            table.mid_prompt[busy] = ~samples[busy]
        for started in self.planned.started:
            flags[started.row] += RESUMED if started.resumed else NEW

    def update(self, plan: StepPlan, result: StepResult, now_s: float) -> Settled:
        """Apply what the worker returned for the plan; `now_s` is when the outputs are delivered."""
        return settle(self.state, plan, result, now_s)

    def audit(self) -> None:
        """Check that the books balance; raises `AssertionError` naming what is off."""
        state = self.state
        state.kv.pool.audit(table for request in state.requests.values() for table in state.kv.tables(request))
        assert len(state.requests) == state.num_unfinished, "a request is in no queue, or in two"
        for row, request in enumerate(state.table.requests):
            assert state.table.request.item(row) == request.number, "a row belongs to another request"
            assert state.table.room.item(row) == state.kv.standing(request)[0], "a row miscounts its blocks"
