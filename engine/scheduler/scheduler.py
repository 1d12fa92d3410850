"""The scheduler: decides how much each request advances in a step. The rooms beside this file decide the details."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedtop.engine.contract.config import SchedulerConfig, check_scheduler_config
from schedtop.engine.contract.telemetry import Finish, FinishReason, Head, Limiter, Refusal
from schedtop.engine.handoff.plan import IntArray, StepPlan, StepResult
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.handoff.store import KVStore
from schedtop.engine.kv.prefix_cache import extend_keys
from schedtop.engine.scheduler.books.ending import end_request
from schedtop.engine.scheduler.books.loads import Loads
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState
from schedtop.engine.scheduler.books.submission import refuse
from schedtop.engine.scheduler.late_results import place_after_results
from schedtop.engine.scheduler.passes.admission import AdmissionPass
from schedtop.engine.scheduler.passes.loading import LoadingPass
from schedtop.engine.scheduler.passes.running import run_pass
from schedtop.engine.scheduler.passes.seal import seal
from schedtop.engine.scheduler.settle import Settled, settle


class Scheduler:
    """Running requests before waiting ones, under a token budget, an input budget and a pool of blocks.

    Call `add`, `schedule`, `update` in turn. `schedule` may be ahead of `update` by as many steps as the config's
    `max_concurrent_batches`; results are applied in the order of the plans.
    """

    def __init__(self, config: SchedulerConfig, store: KVStore | None = None) -> None:
        self.config = check_scheduler_config(config)
        self.state = SchedulerState(config)
        if store is not None:
            self.state.loads = Loads(self.state, store)
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
        if state.loads is not None and (entry := state.loads.of(request)) is not None:
            if entry.loading:
                return state.loads.end_while_loading(state, request, FinishReason.ABORT, now_s)
            state.loads.leave(request)
        else:
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

    def resume_at(self, number: int) -> None:
        """The next request gets this number."""
        self._next_number = number

    def set_limits(self, values: Mapping[str, Any]) -> None:
        """Apply checked knob values from the next step on; nothing running is stopped."""
        self.state.set_limits(values)

    def schedule(self, now_s: float, decodes: IntArray | None = None) -> StepPlan:
        """Plan one step; the blocks it needs are taken, the positions it covers count as computed.

        `decodes`: the tokens of each running request, where these are known to be one at most.
        """
        state = self.state
        limits = state.limits
        planned = self.planned = PlannedStep(now_s, limits.token_budget, limits.input_budget)
        state.num_planned += 1
        if state.encoder is not None:
            state.encoder.begin_step()
        if state.loads is not None:
            state.loads.started = {}
        run_pass(state, planned, decodes)
        if planned.preemptions:
            planned.limiter = Limiter.PREEMPTED_NOW
            planned.head = Head(state.waiting.first_number, Limiter.PREEMPTED_NOW)
        elif state.loads is not None:
            LoadingPass(state, planned, state.loads).run()
        elif state.waiting:
            AdmissionPass(state, planned).run()
        planned.blocks_in_use = state.kv.pool.num_blocks - state.kv.pool.num_free
        if state.loads is not None:
            planned.lost = state.loads.store.take_lost()
        state.under_way.append(seal(state, planned))
        return state.under_way[-1].plan

    def next_due(self) -> StepPlan:
        """The oldest plan under way, after the results of earlier ones."""
        batch = self.state.under_way[0]
        place_after_results(self.state, batch)
        return batch.plan

    def update(self, plan: StepPlan, result: StepResult, now_s: float) -> Settled:
        """Apply what the worker returned for the oldest plan under way; `now_s`: when the outputs are delivered."""
        batch = self.state.under_way.popleft()
        assert batch.plan is plan, "results come in the order of their plans"
        return settle(self.state, batch, result, now_s)

    def audit(self) -> None:
        """Check that the books balance; raises `AssertionError` naming what is off."""
        state = self.state
        kept = [] if state.loads is None else state.loads.kept
        owners = [*state.requests.values(), *kept]
        state.kv.pool.audit(table for request in owners for table in state.kv.tables(request))
        holding = 0 if state.loads is None else len(state.loads.holding)
        queued = state.table.size + len(state.waiting) + holding
        assert len(state.requests) == queued, "a request is in no queue, or in two"
        for row, request in enumerate(state.table.requests):
            assert state.table.request.item(row) == request.number, "a row belongs to another request"
            assert state.table.room.item(row) == state.kv.standing(request)[0], "a row miscounts its blocks"
