"""Admission with an external store: requests waiting for a load come first, and look-ups continue in the store."""

from __future__ import annotations

import msgspec
from schedtop.engine.contract.telemetry import Head, Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.kv.manager import Hit
from schedtop.engine.scheduler.books.loads import Loads, WaitingHolder, no_room
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState
from schedtop.engine.scheduler.passes.admission import AdmissionPass


class LoadingPass(AdmissionPass):
    """`aside` are queued requests that the store cannot answer yet: they return to their places."""

    def __init__(self, state: SchedulerState, planned: PlannedStep, loads: Loads) -> None:
        super().__init__(state, planned)
        self.loads = loads
        self.aside: list[Request] = []

    def run(self) -> None:
        if self._run_holding():
            super().run()
        for request in self.aside:
            self.state.waiting.ready.insert(request)
        loading = next((entry.request for entry in self.loads.holding if entry.loading), None)
        if self.planned.head is None and loading is not None:
            self.planned.head = Head(loading.number, Limiter.REMOTE_KV)
            if self.planned.limiter is Limiter.NONE:
                self.planned.limiter = Limiter.REMOTE_KV

    def _run_holding(self) -> bool:
        """True: the pass goes on to the queue."""
        for entry in list(self.loads.holding):
            head = self.stop_before_look()
            if head is None:
                head = self._turn(entry)
            if head is not None:
                self.stop(head)
                return False
        return True

    def _turn(self, entry: WaitingHolder) -> Head | None:
        request = entry.request
        if entry.loading or (self.slots is not None and self.slots.is_shut(request)):
            self.planned.held_back.append(request)
            return None
        hit = self.loads.turn(self.state.kv, entry)
        return self._try_admit(request) if hit is None else self._admit_with(request, hit)

    def _try_admit(self, request: Request) -> Head | None:
        state, loads = self.state, self.loads
        hit = state.kv.look_up(request, request.num_tokens)
        outside = 0 if request.skip_reading_prefix_cache else loads.store.tokens(request, hit.num_tokens)
        if outside is None:
            self._set_aside(request)
            return None
        whole = msgspec.structs.replace(hit, num_tokens=hit.num_tokens + outside)
        if not outside or not loads.store.waits:
            head = self._admit_with(request, whole)
            if head is None and outside:
                loads.begin(state, request, whole, hit.num_tokens)
            return head
        head = no_room(state, request, whole)
        if head is not None:
            return head
        if loads.of(request) is None:
            state.waiting.remove(request)
            self.planned.passed_over.append(request)
        else:
            self.planned.held_back.append(request)
        state.kv.admit_load(request, whole)
        loads.begin(state, request, whole, hit.num_tokens)
        return None

    def _set_aside(self, request: Request) -> None:
        if self.loads.of(request) is not None:
            self.planned.held_back.append(request)
            return
        self.state.waiting.remove(request)
        self.aside.append(request)
        self.planned.passed_over.append(request)

    def _take(self, request: Request, hit: Hit, chunk: int) -> None:
        if hit.held:
            self.state.kv.grow(request, hit.num_tokens + chunk)
        else:
            super()._take(request, hit, chunk)

    def _leave_queue(self, request: Request) -> None:
        if not self.loads.leave(request):
            super()._leave_queue(request)
