"""Admission: the head of the queue enters when budgets, the sequence cap and the pool all agree."""

from __future__ import annotations

import numpy as np
from schedtop.engine.contract.telemetry import Admission, FinishReason, Head, Limiter
from schedtop.engine.handoff.plan import PLACEHOLDER, Started
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.kv.manager import Hit
from schedtop.engine.scheduler.books.ending import end_request, stop_at
from schedtop.engine.scheduler.books.queues import urgency
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState
from schedtop.engine.scheduler.books.submission import step_room
from schedtop.engine.scheduler.passes.adapters import open_slots
from schedtop.engine.scheduler.passes.chunks import planned_tokens, shorten
from schedtop.engine.scheduler.passes.deferral import pass_deferred


class AdmissionPass:
    """One step's pass over the queue. `stopped` says why the head had to stay, or None."""

    def __init__(self, state: SchedulerState, planned: PlannedStep) -> None:
        self.state = state
        self.planned = planned
        table, slots = state.table, state.config.draft_slots
        given = table.tokens[: table.size]
        used = int(np.add.reduce(given))
        self.num_running_scheduled = int(np.count_nonzero(given))
        self.token_left = state.limits.token_budget - used
        self.input_left = state.limits.input_budget - used - slots * self.num_running_scheduled
        self.num_running_before = table.size
        self.slots = open_slots(state)

    def run(self) -> None:
        """Admit from the head until something stops it; notes the limiter and the head's reason."""
        while (request := self.state.waiting.head()) is not None:
            head = self.stop_before_look()
            if head is None:
                self.planned.last_look = request
                if self.slots is not None and self.slots.pass_over(request):
                    continue
                head = self._try_admit(request)
            if head is not None:
                self.stop(head)
                return
        pass_deferred(self.state, self.planned, stopped=self.stop_before_look() is not None)

    def stop(self, head: Head) -> None:
        """Stop the pass: nothing behind this head is considered."""
        self.planned.head = head
        self.planned.limiter = Limiter(head.reason)

    def stop_before_look(self) -> Head | None:
        """Limits that stop the pass whatever the head."""
        limits, waiting, size = self.state.limits, self.state.waiting, self.state.table.size
        if self.token_left <= 0:
            return Head(waiting.first_number, Limiter.TOKEN_BUDGET, limits.token_budget, self.token_left)
        if self.input_left <= self.state.config.draft_slots:
            return Head(waiting.first_number, Limiter.INPUT_BUDGET, limits.input_budget, self.input_left)
        if size >= limits.seq_cap:
            return Head(waiting.first_number, Limiter.SEQUENCE_CAP, limits.seq_cap, size)
        return None

    def _try_admit(self, request: Request) -> Head | None:
        return self._admit_with(request, self.state.kv.look_up(request, request.num_tokens))

    def _admit_with(self, request: Request, hit: Hit) -> Head | None:
        state, planned, num_tokens = self.state, self.planned, request.num_tokens
        wanted = num_tokens - hit.num_tokens
        drafts = self._padding(request, hit) if wanted == 1 else 0
        room = min(self.token_left, self.input_left - state.config.draft_slots)
        if drafts and wanted + drafts > room:
            return self._budget_head(request, wanted + drafts)
        chunk = min(wanted + drafts, state.chunk_cap() or wanted + drafts)
        if chunk > room and not state.config.enable_chunked_prefill:
            if self._end_stranded(request, chunk):
                return None
            return Head(request.number, Limiter.CHUNKING_OFF, chunk, room)
        chunk = min(chunk, room)
        if state.shrinks:
            chunk, drafts = self._shorten(request, hit, chunk, drafts)
            if not chunk or (state.kv.keeps_states and state.kv.shares_new_state(hit, planned_tokens(state))):
                return self._shortened_head(request)
        if state.is_empty(request):
            # Under a window, a chunk of a raised budget can ask for more than the whole pool at once.
            chunk = state.kv.most_tokens(hit, chunk)
        short = state.kv.shortage(
            hit, chunk, num_tokens, state.limits.reserve_full_isl, reserve=state.table.size > 0
        )
        if short is not None:
            if state.encoder is not None:
                state.encoder.give_back()
            return Head(request.number, short.reason, short.need, short.have, short.reserve)
        self._leave_queue(request)
        self._admit(request, hit, chunk, drafts)
        if self.slots is not None:
            self.slots.add(request)
        if state.encoder is not None:
            state.encoder.charge()
        self.token_left -= chunk
        self.input_left -= chunk + state.config.draft_slots
        planned.limiter = Limiter.NONE
        if chunk < wanted and chunk == room:
            planned.limiter = Limiter.TOKEN_BUDGET if self.token_left <= 0 else Limiter.INPUT_BUDGET
        return None

    def _shorten(self, request: Request, hit: Hit, chunk: int, drafts: int) -> tuple[int, int]:
        """The chunk and its drafts; a padded one that must end earlier goes without its padding."""
        request.junction = hit.junction
        shorter = shorten(self.state, request, hit.num_tokens, request.num_tokens, chunk)
        return (1, 0) if drafts and 0 < shorter < chunk else (shorter, drafts)

    def _shortened_head(self, request: Request) -> Head:
        """No token of a chunk that must end early could be taken."""
        encoder = self.state.encoder
        if encoder is None:
            return self._budget_head(request, 1)
        encoder.give_back()
        if encoder.missing is None:
            return self._budget_head(request, 1)
        return Head(request.number, Limiter.ENCODER, encoder.missing.length, encoder.left)

    def _end_stranded(self, request: Request, need: int) -> bool:
        """Without chunking, a sequence that outgrew every budget would wait for ever: it ends with its outputs."""
        state = self.state
        if not state.is_empty(request) or need <= step_room(state):
            return False
        self._leave_queue(request)
        self.planned.ended.append(end_request(state, request, FinishReason.REFUSED, self.planned.now_s))
        return True

    def _padding(self, request: Request, hit: Hit) -> int:
        """Placeholder drafts that keep a pure decode batch uniform when a one-token request joins it."""
        state, k = self.state, self.state.limits.num_speculative_tokens
        if not k or hit.num_tokens + k + 2 > state.config.max_model_len:
            return 0
        if not (self.num_running_scheduled or hit.num_tokens):
            return 0
        table, before = state.table, self.num_running_before
        if np.any(table.mid_prompt[:before] & (table.tokens[:before] > 0)):
            return 0
        cap = state.chunk_cap()
        if cap is not None and cap < 1 + k:
            return 0
        return 0 if self._padding_is_impossible(request, hit, k) else k

    def _padding_is_impossible(self, request: Request, hit: Hit, k: int) -> bool:
        """With nothing running, padding that no budget or pool could ever hold must not hold the request back."""
        state = self.state
        if not state.is_empty(request):
            return False
        short = state.kv.shortage(hit, 1 + k, hit.num_tokens + 1, state.limits.reserve_full_isl, reserve=False)
        return 1 + k > step_room(state) or short is not None

    def _leave_queue(self, request: Request) -> None:
        self.state.waiting.remove(request)

    def _take(self, request: Request, hit: Hit, chunk: int) -> None:
        """Allocate the blocks of a hit and those for the following chunk."""
        self.state.kv.admit(request, hit, chunk)
        self.state.kv.release_before_window(request, hit.num_tokens)

    def _budget_head(self, request: Request, need: int) -> Head:
        limits = self.state.limits
        if self.token_left <= self.input_left - self.state.config.draft_slots:
            return Head(request.number, Limiter.TOKEN_BUDGET, limits.token_budget, self.token_left)
        return Head(request.number, Limiter.INPUT_BUDGET, limits.input_budget, self.input_left)

    def _admit(self, request: Request, hit: Hit, chunk: int, drafts: int) -> None:
        state, planned = self.state, self.planned
        self._take(request, hit, chunk)
        resumed = request.status is Status.PREEMPTED
        waited_s = planned.now_s - request.queued_since_s
        if resumed:
            request.requeued_s += waited_s
        else:
            request.first_scheduled_s = planned.now_s
            request.cached_tokens = hit.num_tokens
        request.status = Status.RUNNING
        known = min(hit.num_tokens + chunk, request.num_tokens)
        state.kv.register(request, known)
        row = state.table.append(request, hit.num_tokens, stop_at(state, request), state.kv.standing(request))
        state.table.next_full[row] = state.kv.next_full(known)
        state.table.tokens[row] = chunk
        if drafts:
            state.table.num_spec[row] = drafts
            state.table.draft_ids[row] = PLACEHOLDER
            state.table.has_drafts = True
        external = max(hit.num_tokens - request.local_tokens, 0) if hit.held else 0
        planned.admissions.append(Admission(request.number, hit.num_tokens, waited_s, resumed, external))
        planned.started.append(_started(state, row, request, resumed))


def _started(state: SchedulerState, row: int, request: Request, resumed: bool) -> Started:
    """The tables may grow before the step is reported."""
    table, *further = (table.copy() for table in state.kv.tables(request))
    return Started(row, request, table, resumed, further)


def mark_inverted(state: SchedulerState, head: Head) -> bool:
    """Under priority: a more urgent request waits while a less urgent one runs."""
    request = state.requests.get(head.number)
    if request is None or state.config.policy != "priority":
        return False
    waiting = urgency(request)
    running = [request for request in state.table.requests if request.status is Status.RUNNING]
    return any(request.priority > waiting[0] for request in running)
