"""The scheduler: decides how much each request advances in a step. The rooms beside this file decide the parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from schedtop.engine.config import SchedulerConfig, check_scheduler_config
from schedtop.engine.kv.prefix_cache import extend_keys
from schedtop.engine.plan import StepPlan, StepResult
from schedtop.engine.request import Request, Status
from schedtop.engine.scheduler.admission import AdmissionPass
from schedtop.engine.scheduler.running import run_pass
from schedtop.engine.scheduler.settle import Settled, end_request, settle
from schedtop.engine.scheduler.state import Draft, State
from schedtop.engine.scheduler.submission import refuse
from schedtop.engine.telemetry import Finish, FinishReason, Head, Limiter, Refusal, RowFlag


class Scheduler:
    """Running requests before waiting ones, under a token budget, an input budget and a pool of blocks.

    Call `add`, `schedule`, `update` in turn; `schedule` and `update` must alternate.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = check_scheduler_config(config)
        self.state = State(config)
        self.draft = Draft(0.0)
        self._next_number = 0

    @property
    def num_unfinished(self) -> int:
        return self.state.num_unfinished

    def add(self, request: Request) -> Refusal | None:
        """Queue a request and give it its number; returns why not if it can never be served."""
        state = self.state
        request.number = self._next_number
        self._next_number += 1
        refusal = refuse(state, request)
        if refusal is not None:
            request.status = Status.FINISHED
            return refusal
        if state.kv.caching:
            extend_keys(request, request.num_prompt_tokens // state.kv.block_size, state.kv.block_size)
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

    def set_limits(self, values: Mapping[str, Any]) -> None:
        """Apply checked knob values from the next step on; nothing running is stopped."""
        self.state.set_limits(values)

    def schedule(self, now_s: float) -> StepPlan:
        """Plan one step; the blocks it needs are taken, the positions it covers count as computed."""
        state = self.state
        draft = self.draft = Draft(now_s)
        state.table.flags[: state.table.size] = 0
        run_pass(state, draft)
        if draft.preemptions:
            draft.limiter = Limiter.PREEMPTED_NOW
            draft.head = Head(state.waiting.head().number, Limiter.PREEMPTED_NOW)
        else:
            AdmissionPass(state, draft).run()
        return self._seal()

    def _seal(self) -> StepPlan:
        """Freeze the drafted step and advance every row by what it was given."""
        state, table, size = self.state, self.state.table, self.state.table.size
        tokens = table.tokens[:size]
        computed, num_tokens = table.num_computed[:size], table.num_tokens[:size]
        table.computed[:size] = computed
        table.needed[:size] = num_tokens
        end = computed + tokens
        computed[:] = end
        block = state.kv.block_size
        blocks = table.num_blocks[:size]
        np.maximum(blocks, (end + (block - 1)) // block, out=blocks)
        np.maximum(table.num_full[:size], np.minimum(end, num_tokens) // block, out=table.num_full[:size])
        np.subtract(blocks, table.num_released[:size], out=table.blocks[:size])
        drafts = table.drafts[:size]
        np.maximum(end - num_tokens, 0, out=drafts)
        samples = end >= num_tokens
        busy = tokens > 0
        self._flag_rows(samples, busy)
        rows: slice | np.ndarray[Any, Any] = slice(None)
        ids = table.ids.copy()
        if not busy.all():
            rows = np.flatnonzero(busy)
            ids = [ids[row] for row in rows.tolist()]
        width = int(drafts.max(initial=0))
        draft_token_ids = table.draft_ids[:size, :width][rows].copy() if width else None
        table.num_spec[:size][rows] = 0
        gone, state.gone = state.gone, []
        return StepPlan(
            ids=ids,
            numbers=table.request[:size][rows].copy(),
            tokens=tokens[rows].copy(),
            drafts=drafts[rows].copy(),
            computed=table.computed[:size][rows].copy(),
            samples=samples[rows].copy(),
            draft_token_ids=draft_token_ids,
            new_blocks=self.draft.new_blocks,
            started=self.draft.started,
            gone=gone,
        )

    def _flag_rows(self, samples: np.ndarray[Any, Any], busy: np.ndarray[Any, Any]) -> None:
        table, size = self.state.table, self.state.table.size
        table.mid_prompt[:size][busy] = ~samples[busy]
        # A row decodes when all but its newest token had state and that token is an output.
        decode = (table.needed[:size] - table.computed[:size] == 1) & (table.flags[:size] == 0) & busy
        decode &= ~np.isnan(table.last_s[:size])
        table.flags[:size] += decode * np.int32(RowFlag.DECODE) + (samples & busy) * np.int32(RowFlag.SAMPLED)

    def update(self, plan: StepPlan, result: StepResult, now_s: float) -> Settled:
        """Apply what the worker returned for the plan; `now_s` is when the outputs are delivered."""
        return settle(self.state, plan, result, now_s)

    def audit(self) -> None:
        """Check that the books balance; raises `AssertionError` naming what is off."""
        state = self.state
        state.kv.pool.audit(request.block_ids for request in state.requests.values())
        assert len(state.requests) == state.num_unfinished, "a request is in no queue, or in two"
        for row, request in enumerate(state.table.requests):
            assert state.table.request.item(row) == request.number, "a row belongs to another request"
            assert state.table.num_blocks.item(row) == len(request.block_ids), "a row miscounts its blocks"
