"""Replays golden cases step by step and reports where decisions differ."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import Finish, FinishReason, Refusal
from schedtop.engine.golden.case import STOP_TOKEN, Case, CaseStep, make_request
from schedtop.engine.golden.case_requests import CaseRequest
from schedtop.engine.golden.store import CaseStore
from schedtop.engine.handoff.plan import PLACEHOLDER, IntArray, StepPlan, StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.passes.deferral import skipped
from schedtop.engine.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class CaseDifference:
    """The first place where a case and this scheduler diverge."""

    step: int
    field: str
    recorded: Any
    decided: Any

    def __str__(self) -> str:
        return f"step {self.step}: {self.field}: recorded {self.recorded}, decided {self.decided}"


@dataclass(slots=True)
class Verdict:
    """The outcome of replaying a case. `equal` is None for a case without recorded steps.

    `submitted` is the sum of `finished`, `kv_capacity`, `refused`, `aborted`, `failed`, `running` and `waiting`.
    """

    name: str
    equal: bool | None = None
    steps: int = 0
    preemptions: int = 0
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    submitted: int = 0
    finished: int = 0
    kv_capacity: int = 0
    refused: int = 0
    aborted: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    difference: CaseDifference | None = None


class CaseModel:
    """The model of the cases: outputs and accepted drafts follow from ordinals alone.

    Output k of the request with ordinal o is 32000 + (o * 7919 + k * 104729) % 16000; of m drafts,
    (o + outputs so far) % (m + 1) are accepted, of placeholders none; every request that got output drafts again.
    """

    simulated = True

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self._ordinals = np.zeros(16, dtype=np.int64)
        self._outputs = np.zeros(16, dtype=np.int64)
        self._stops = np.zeros(16, dtype=np.int64)

    def add(self, number: int, ordinal: int, stop_after: int | None = None) -> None:
        if number >= len(self._ordinals):
            self._ordinals = np.resize(self._ordinals, 2 * number)
            self._outputs = np.resize(self._outputs, 2 * number)
            self._stops = np.resize(self._stops, 2 * number)
        self._ordinals[number] = ordinal
        self._outputs[number] = 0
        self._stops[number] = stop_after or 0

    def execute(self, plan: StepPlan) -> StepResult:
        ordinal, outputs = self._ordinals[plan.numbers], self._outputs[plan.numbers]
        counts = plan.samples.astype(np.int32)
        if plan.draft_token_ids is not None:
            accepted = (ordinal + outputs) % (plan.drafts + 1)
            accepted[plan.draft_token_ids[:, 0] == PLACEHOLDER] = 0
            counts = np.where(plan.samples, accepted + 1, 0).astype(np.int32)
        places = outputs[:, None] + np.arange(int(counts.max(initial=1)))
        sampled = (32000 + (ordinal[:, None] * 7919 + places * 104729) % 16000).astype(np.int32)
        sampled[places + 1 == self._stops[plan.numbers][:, None]] = STOP_TOKEN
        self._outputs[plan.numbers] = outputs + counts
        result = StepResult(sampled, counts)
        if self.num_drafts:
            result.drafts = np.tile(40000 + np.arange(self.num_drafts, dtype=np.int32), (plan.num_rows, 1))
            result.num_drafts = np.full(plan.num_rows, self.num_drafts, dtype=np.int32)
        return result

    def take_back(self, numbers: IntArray, counts: IntArray) -> None:
        """Results that were ignored, because a load they depended on had failed, are not outputs."""
        self._outputs[numbers] -= counts


def case_model(case: Case) -> CaseModel:
    """With asynchronous scheduling the model keeps its drafts."""
    return CaseModel(0 if case.config.async_scheduling else case.config.num_speculative_tokens)


class CaseRun:
    """One replay of a case: knobs, arrivals, aborts, schedule, model, update, step after step."""

    def __init__(self, case: Case) -> None:
        self.case = case
        connector, size = case.config.kv_connector, case.config.block_size
        self.store = None if connector is None else CaseStore(connector, size, len(case.config.groups()))
        self.scheduler = Scheduler(case.config, self.store)
        self.model = case_model(case)
        self.finishes: list[Finish] = []
        self.refusals: list[Refusal] = []
        self.admitted: dict[int, tuple[int, int]] = {}
        self.num_submitted = 0
        self.scheduled_tokens = self.recomputed_tokens = 0
        self.draft_tokens = self.accepted_draft_tokens = 0
        self._depth = case.config.max_concurrent_batches
        self._under_way: deque[tuple[int, StepPlan]] = deque()
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._arrivals: dict[int, list[tuple[int, CaseRequest]]] = {}
        for ordinal, request in enumerate(case.requests):
            self._arrivals.setdefault(request.arrival_step, []).append((ordinal, request))
        self._ready: dict[int, list[str]] = {}
        for request in case.requests:
            if request.ready_step > request.arrival_step:
                self._ready.setdefault(request.ready_step, []).append(request.id)
        events = [
            *self._arrivals,
            *self._ready,
            *(knob.step for knob in case.knobs),
            *(abort.step for abort in case.aborts),
        ]
        self._events = sorted(set(events))
        self._last_event = self._events[-1] if self._events else 0

    def steps(self) -> Iterator[CaseStep]:
        """Run to the end; yields every step at which some request is unfinished."""
        step = 0
        while step <= self._last_event or self._active:
            self.apply_events(step)
            if self._active:
                reported = self.scheduler.num_unfinished > 0 or self._is_kept
                decided = self._run_step(step)
                if reported:
                    yield decided
                step += 1
            else:
                step = min((event for event in self._events if event > step), default=step + 1)

    @property
    def _active(self) -> bool:
        """There is something to plan, or a plan awaiting its results."""
        more = self._depth > 1 and bool(self._under_way or self._unreported)
        return self.scheduler.num_unfinished > 0 or more or self._is_kept

    @property
    def _is_kept(self) -> bool:
        """The store still needs the blocks of an ended request."""
        return self.scheduler.state.loads is not None and bool(self.scheduler.state.loads.kept)

    @property
    def _unreported(self) -> bool:
        """Some ends have not been passed to the worker."""
        return bool(self.scheduler.state.gone)

    def apply_events(self, step: int) -> None:
        """Knobs, arrivals, aborts and requests becoming ready, in this order."""
        if self.store is not None:
            self.store.now = step
        for knob in self.case.knobs:
            if knob.step == step:
                self.scheduler.set_limits(knob.set)
        for ordinal, request in self._arrivals.get(step, ()):
            self._add(step, ordinal, request)
        for abort in self.case.aborts:
            if abort.step == step and abort.id in self._numbers:
                finish = self.scheduler.abort(self._numbers[abort.id], float(step))
                self.finishes += [finish] if finish else []
        for name in self._ready.get(step, ()):
            self.scheduler.make_ready(self._numbers[name])

    def _add(self, step: int, ordinal: int, request: CaseRequest) -> None:
        arrived = make_request(request, step + ordinal * 1e-6)
        refusal = self.scheduler.add(arrived)
        self.num_submitted += 1
        if self.store is not None:
            self.store.known[arrived.number] = request
        self._numbers[request.id] = arrived.number
        self._ids[arrived.number] = request.id
        self.model.add(arrived.number, ordinal, request.stop_after)
        self.refusals += [refusal] if refusal else []

    def _run_step(self, step: int) -> CaseStep:
        """Plan, and apply the oldest plan if the limit of plans under way is reached or nothing else is left to do."""
        decided: dict[str, Any] = {"step": step, "finished": []}
        due = True
        if self.scheduler.num_unfinished or self._unreported or self._is_kept:
            decided |= self._plan(step)
            full = len(self._under_way) == self._depth
            waits = self.scheduler.num_unfinished or self._unreported or self._is_kept
            due = full or not (decided["scheduled"] or waits)
        if self._depth > 1:
            decided["applied"] = None
        if due:
            self._apply(step, decided)
        decided["free_blocks_after"] = self.scheduler.state.kv.pool.num_free
        if self.scheduler.state.loads is not None:
            decided["held"] = [request.id for request in sorted(self.scheduler.state.loads.kept, key=_ordinal)]
        return CaseStep(**{**_NOTHING_PLANNED, **decided})

    def _plan(self, step: int) -> dict[str, Any]:
        scheduler, state, names = self.scheduler, self.scheduler.state, self._ids
        plan = scheduler.schedule(float(step))
        self._under_way.append((step, plan))
        planned = scheduler.planned
        self.scheduled_tokens += int(plan.tokens.sum())
        self.draft_tokens += int(plan.drafts.sum())
        self.recomputed_tokens += planned.recomputed_tokens
        for started in planned.started:
            if not started.resumed:
                request = started.request
                self.admitted[request.number] = (request.num_prompt_tokens, request.cached_tokens)
        decided: dict[str, Any] = {
            "scheduled": list(zip(plan.ids, plan.tokens.tolist(), plan.drafts.tolist(), strict=True)),
            "admitted": {names[entry.number]: entry.cached_tokens for entry in planned.admissions},
            "preempted": [names[entry.number] for entry in planned.preemptions],
            "running": list(state.table.ids),
            "waiting": [request.id for request in state.waiting],
            "free_blocks": state.kv.pool.num_free,
        }
        if self._ready or self._depth > 1 or self.case.config.max_loras or state.loads is not None:
            decided["skipped"] = [request.id for request in skipped(state, planned)]
        if state.encoder is not None:
            decided["encoded"] = {names[number]: images for number, images in state.encoder.encoded.items()}
            decided["images_dropped"] = state.encoder.dropped
        if state.loads is not None:
            decided["holding"] = [entry.request.id for entry in state.loads.holding]
            decided["load_started"] = {names[number]: load for number, load in state.loads.started.items()}
        self.finishes += planned.ended
        return decided

    def _apply(self, step: int, decided: dict[str, Any]) -> None:
        planned_at, plan = self._under_way.popleft()
        result = self.model.execute(plan)
        sampled = result.num_sampled.copy()
        settled = self.scheduler.update(plan, result, float(step))
        self.model.take_back(plan.numbers, sampled - result.num_sampled)
        self.finishes += settled.finishes
        self.accepted_draft_tokens += settled.accepted_drafts
        errors = [finish.number for finish in settled.finishes if finish.reason == FinishReason.ERROR]
        decided["finished"] = [
            self._ids[finish.number] for finish in settled.finishes if finish.number not in errors
        ]
        loads = self.scheduler.state.loads
        if loads is not None:
            decided["load_done"] = [request.id for request in loads.done]
            decided["load_failed"] = [request.id for request in sorted(loads.failed, key=_ordinal)]
            decided["send_done"] = [request.id for request in loads.sent]
            decided["errors"] = [self._ids[number] for number in sorted(errors)]
        if self._depth > 1 and plan.num_rows:
            decided["applied"] = planned_at


def _ordinal(request: Request) -> int:
    return request.number


_NOTHING_PLANNED = {
    "scheduled": [],
    "admitted": {},
    "preempted": [],
    "running": [],
    "waiting": [],
    "free_blocks": 0,
}


def compare_step(recorded: CaseStep, decided: CaseStep) -> CaseDifference | None:
    """The first field in which two steps differ, in the order in which a step decides them."""
    for name in CaseStep.__struct_fields__:
        want, have = getattr(recorded, name), getattr(decided, name)
        if want != have and want is not msgspec.UNSET:
            return CaseDifference(decided.step, name, want, have)
    return None


def verify(case: Case) -> Verdict:
    """Replay a case and compare every step; stops comparing at the first difference."""
    run, verdict = CaseRun(case), Verdict(case.name)
    recorded = case.steps
    count = 0
    for decided in run.steps():
        verdict.preemptions += len(decided.preempted)
        if recorded is not None and verdict.difference is None:
            if count >= len(recorded):
                verdict.difference = CaseDifference(decided.step, "step", "none", decided.step)
            else:
                verdict.difference = compare_step(recorded[count], decided)
        count += 1
        if verdict.difference is not None:
            break
    else:
        if recorded is not None and count < len(recorded):
            verdict.difference = CaseDifference(recorded[count].step, "step", recorded[count].step, "none")
    verdict.steps = len(recorded) if recorded is not None else count
    verdict.equal = None if recorded is None else verdict.difference is None
    verdict.scheduled_tokens, verdict.recomputed_tokens = run.scheduled_tokens, run.recomputed_tokens
    verdict.draft_tokens, verdict.accepted_draft_tokens = run.draft_tokens, run.accepted_draft_tokens
    verdict.prompt_tokens = sum(prompt for prompt, _ in run.admitted.values())
    verdict.cached_tokens = sum(cached for _, cached in run.admitted.values())
    _count_requests(verdict, run)
    return verdict


def _count_requests(verdict: Verdict, run: CaseRun) -> None:
    reasons = Counter(finish.reason for finish in run.finishes)
    state = run.scheduler.state
    verdict.submitted = run.num_submitted
    verdict.refused = len(run.refusals) + reasons[FinishReason.REFUSED]
    verdict.aborted, verdict.failed = reasons[FinishReason.ABORT], reasons[FinishReason.ERROR]
    verdict.kv_capacity = reasons[FinishReason.KV_CAPACITY]
    verdict.finished = reasons[FinishReason.STOP] + reasons[FinishReason.LENGTH]
    verdict.running, verdict.waiting = state.table.size, state.num_unfinished - state.table.size
