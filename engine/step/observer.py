"""Turns the engine's work into telemetry: one record per step, and snapshots of the present state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import (
    Arrival,
    Blocks,
    Deferral,
    Finish,
    FinishReason,
    Head,
    HostTier,
    KnobChange,
    Limiter,
    Refusal,
    RequestState,
    Snapshot,
    StepRecord,
    Totals,
    UnderWay,
)
from schedtop.engine.handoff.plan import IntArray, StepPlan, StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import PlannedBatch, PlannedStep
from schedtop.engine.scheduler.passes.admission import mark_inverted
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.scheduler.settle import Settled
from schedtop.engine.sim.host_store import HostStore
from schedtop.engine.step.describe import describe_arrival, growth, packed

_COUNTED_AS = {
    FinishReason.ABORT.value: "aborted",
    FinishReason.REFUSED.value: "refused",
    FinishReason.KV_CAPACITY.value: "kv_capacity",
    FinishReason.ERROR.value: "failed",
}
"""Ends that are not simply `finished`, and their counters."""


def counted_as(finish: Finish) -> str:
    """The field of `Totals` that counts an end."""
    return _COUNTED_AS.get(finish.reason, "finished")


class Timing(msgspec.Struct, frozen=True):
    """When a step ran, on the engine's clock, and how long its parts took (None on a simulated clock)."""

    start_s: float
    end_s: float
    schedule_s: float | None
    execute_s: float
    update_s: float | None


class PendingEvents(msgspec.Struct):
    """What happened since the last record, outside a step."""

    arrivals: list[Arrival] = []
    refusals: list[Refusal] = []
    finishes: list[Finish] = []
    knobs: list[KnobChange] = []
    paused_by: str = ""


class Observer:
    """Keeps the running totals and the events for the next record."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._block_size = scheduler.state.kv.stride
        self.counts: dict[str, float] = dict.fromkeys(Totals.__struct_fields__, 0)
        self.seq = 0
        self.step = 0
        self._events = PendingEvents()
        self._queued_s: dict[int, float] = {}
        self._proposed: tuple[IntArray, IntArray] | None = None

    @property
    def has_events(self) -> bool:
        """Whether something happened that no record has reported yet."""
        events = self._events
        reported = events.arrivals or events.refusals or events.finishes or events.knobs
        return bool(reported or self.scheduler.state.waiting.deferrals)

    def note_arrival(self, request: Request, refusal: Refusal | None) -> None:
        self.counts["submitted"] += 1
        self._events.arrivals.append(describe_arrival(request, self._block_size))
        if refusal is not None:
            self.counts["refused"] += 1
            self._events.refusals.append(refusal)
            return
        self.counts["submitted_prompt_tokens"] += request.num_prompt_tokens
        self._queued_s[request.number] = request.queued_since_s

    def note_abort(self, finish: Finish, prefill_tokens: int) -> None:
        """Count an end outside a step, with its wasted prompt tokens."""
        self.counts["aborted_prefill_tokens"] += prefill_tokens
        self._events.finishes.append(finish)
        self._count_finishes([finish])

    def note_finishes(self, finishes: list[Finish]) -> None:
        """Ends outside a step, for the next record."""
        self._events.finishes += finishes
        self._count_finishes(finishes)

    def note_knob(self, change: KnobChange) -> None:
        self._events.knobs.append(change)

    def note_pause(self, by: str) -> None:
        """Who paused or resumed the engine."""
        self._events.paused_by = by

    def record(
        self, plan: StepPlan, settled: Settled, timing: Timing, knobs_version: int, paused: bool
    ) -> StepRecord:
        """The record of a step that ran."""
        planned = settled.planned
        tokens, drafts = int(np.add.reduce(plan.tokens)), 0
        if plan.draft_token_ids is not None:
            drafts = int(np.add.reduce(plan.drafts))
        self.step += 1
        self._count_step(plan, settled, timing, tokens, drafts)
        self.move_queue(planned)
        self._count_finishes([*planned.ended, *settled.finishes])
        decodes = planned.decode_tokens
        state = self.scheduler.state
        events = self.take_events()
        reported: Set[int] = frozenset()
        if settled.ended_before:
            reported = {*settled.ended_before} - {finish.number for finish in events.finishes}
        grown, grown_blocks, grown_groups = growth(planned, reported)
        return StepRecord(
            seq=self._next_seq(),
            step=self.step,
            executed=True,
            start_s=timing.start_s,
            end_s=timing.end_s,
            schedule_s=timing.schedule_s,
            execute_s=timing.execute_s,
            update_s=timing.update_s,
            token_budget=planned.token_budget,
            input_budget=planned.input_budget,
            scheduled_tokens=tokens,
            decode_tokens=decodes,
            prefill_tokens=tokens - decodes - drafts,
            draft_tokens=drafts,
            recomputed_tokens=planned.recomputed_tokens,
            input_rows=self._input_rows(plan, tokens),
            limiter=planned.limiter.value,
            rows=settled.rows,
            itl_s=settled.itl_s,
            ttft_s=tuple(settled.first_tokens),
            running=state.table.size,
            waiting=self.num_waiting,
            oldest_wait_s=self._oldest_wait_s(timing.end_s),
            head=self.look_at(planned.head),
            blocks=self.blocks(),
            changed_blocks=state.kv.pool.drain_changes().tobytes(),
            grown=grown,
            grown_blocks=grown_blocks,
            arrivals=tuple(events.arrivals),
            admissions=tuple(planned.admissions),
            refusals=tuple(events.refusals),
            finishes=(*events.finishes, *planned.ended, *settled.finishes),
            preemptions=tuple(planned.preemptions),
            knobs=tuple(events.knobs),
            knobs_version=knobs_version,
            paused=paused,
            blocks_in_use=planned.blocks_in_use,
            totals=self.totals(),
            deferrals=self.take_deferrals(),
            deferred=self.deferred(),
            planned_s=planned.now_s,
            grown_groups=grown_groups,
            group_blocks=state.kv.group_blocks,
            host_blocks=self._host(),
            paused_by=events.paused_by,
            encoder_tokens=plan.encoder_tokens,
            proposed=self._cut_drafts(plan),
        )

    def note_drafts(self, plan: StepPlan, result: StepResult) -> None:
        """The number of drafts that a step's rows have for their next step."""
        if result.num_drafts is not None and not self.scheduler.config.async_scheduling:
            self._proposed = plan.numbers.copy(), result.num_drafts * (result.num_sampled > 0)

    def _cut_drafts(self, plan: StepPlan) -> bytes:
        """`StepRecord.proposed`."""
        if self._proposed is None:
            return b""
        (numbers, counts), self._proposed = self._proposed, None
        if np.array_equal(numbers, plan.numbers) and not (counts > plan.drafts).any():
            return b""
        used = dict(zip(plan.numbers.tolist(), plan.drafts.tolist(), strict=True))
        proposed = zip(numbers.tolist(), counts.tolist(), strict=True)
        return packed(
            [part for number, count in proposed if count > used.get(number, 0) for part in (number, count)]
        )

    def idle_record(self, now_s: float, knobs_version: int, paused: bool, turns: int = 0) -> StepRecord:
        """A record of what happened while nothing ran, and of `turns` after it that no other record counts."""
        waiting = self.scheduler.state.waiting
        reason = Limiter.PAUSED if paused and len(waiting) else Limiter.NONE
        head = Head(waiting.first_number, reason) if reason is Limiter.PAUSED else None
        events = self.take_events()
        return msgspec.structs.replace(
            self.blank_record(knobs_version),
            seq=self._next_seq(),
            start_s=now_s,
            end_s=now_s,
            limiter=reason.value,
            oldest_wait_s=self._oldest_wait_s(now_s),
            head=self.look_at(head),
            changed_blocks=self.scheduler.state.kv.pool.drain_changes().tobytes(),
            arrivals=tuple(events.arrivals),
            refusals=tuple(events.refusals),
            finishes=tuple(events.finishes),
            knobs=tuple(events.knobs),
            paused=paused,
            deferrals=self.take_deferrals(),
            turns=turns,
            paused_by=events.paused_by,
        )

    def blank_record(
        self,
        knobs_version: int,
        executed: bool = False,
        limiter: Limiter = Limiter.NONE,
        head: Head | None = None,
    ) -> StepRecord:
        """The present state as a record without events or duration."""
        state = self.scheduler.state
        return StepRecord(
            seq=self.seq,
            step=self.step,
            executed=executed,
            start_s=0.0,
            end_s=0.0,
            schedule_s=None,
            execute_s=0.0,
            update_s=None,
            token_budget=state.limits.token_budget,
            input_budget=state.limits.input_budget,
            scheduled_tokens=0,
            decode_tokens=0,
            prefill_tokens=0,
            draft_tokens=0,
            recomputed_tokens=0,
            input_rows=0,
            limiter=limiter.value,
            rows=b"",
            itl_s=b"",
            ttft_s=(),
            running=state.table.size,
            waiting=self.num_waiting,
            oldest_wait_s=None,
            head=head,
            blocks=self.blocks(),
            changed_blocks=b"",
            grown=b"",
            grown_blocks=b"",
            arrivals=(),
            admissions=(),
            refusals=(),
            finishes=(),
            preemptions=(),
            knobs=(),
            knobs_version=knobs_version,
            paused=False,
            blocks_in_use=state.kv.pool.num_blocks - state.kv.pool.num_free,
            totals=self.totals(),
            deferred=self.deferred(),
            group_blocks=state.kv.group_blocks,
            host_blocks=self._host(),
        )

    def take_deferrals(self) -> tuple[Deferral, ...]:
        waiting = self.scheduler.state.waiting
        deferrals, waiting.deferrals = waiting.deferrals, []
        return tuple(deferrals)

    def deferred(self) -> tuple[tuple[str, int], ...]:
        """How many waiting requests are not ready, by reason."""
        state = self.scheduler.state
        counts = state.waiting.num_deferred
        if state.loads is not None:
            counts = counts + Counter({Limiter.REMOTE_KV.value: state.loads.num_loading})
        return tuple((reason, count) for reason, count in counts.items() if count) if counts else ()

    @property
    def num_waiting(self) -> int:
        """Those in the queue, and before it those that own blocks: loading, or just loaded."""
        state = self.scheduler.state
        return len(state.waiting) + (0 if state.loads is None else len(state.loads.holding))

    def _host(self) -> tuple[int, ...]:
        loads = self.scheduler.state.loads
        return loads.store.standing if loads is not None and isinstance(loads.store, HostStore) else ()

    def _tier(self) -> HostTier | None:
        loads = self.scheduler.state.loads
        if loads is None or not isinstance(loads.store, HostStore):
            return None
        return loads.store.describe(loads.describe())

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def take_events(self) -> PendingEvents:
        """What no record has reported yet; the caller's record does."""
        events, self._events = self._events, PendingEvents()
        return events

    @property
    def oldest_queued_s(self) -> float | None:
        """When the longest-waiting request began to wait."""
        return next(iter(self._queued_s.values()), None)

    def _oldest_wait_s(self, now_s: float) -> float | None:
        oldest_s = self.oldest_queued_s
        return None if oldest_s is None else now_s - oldest_s

    def totals(self) -> Totals:
        return Totals(*self.counts.values())  # type: ignore[arg-type]

    def blocks(self) -> Blocks:
        """The pool by class, as of now."""
        state = self.scheduler.state
        pool, table = state.kv.pool, state.table
        free, cached_free = pool.num_free, pool.num_cached_free
        computed = int(np.add.reduce(table.num_computed[: table.size]))
        released = 0 if state.kv.at_once else int(table.num_released[: table.size].sum())
        return Blocks(
            held=pool.num_blocks - free - pool.num_shared,
            shared=pool.num_shared,
            cached_free=cached_free,
            empty=free - cached_free,
            stored_tokens=state.kv.stored_tokens(computed, released),
            watermark=state.kv.watermark_blocks,
        )

    def _input_rows(self, plan: StepPlan, tokens: int) -> int:
        return tokens + self.scheduler.config.draft_slots * plan.num_rows

    def _count_step(self, plan: StepPlan, settled: Settled, timing: Timing, tokens: int, drafts: int) -> None:
        counts, planned = self.counts, settled.planned
        counts["steps"] += 1
        counts["preemptions"] += len(planned.preemptions)
        counts["scheduled_tokens"] += tokens
        counts["recomputed_tokens"] += planned.recomputed_tokens
        counts["draft_tokens"] += drafts
        counts["rejected_draft_tokens"] += settled.rejected_drafts
        counts["output_tokens"] += settled.output_tokens
        counts["token_budget"] += planned.token_budget
        counts["input_rows"] += self._input_rows(plan, tokens)
        counts["input_budget"] += planned.input_budget
        if plan.draft_token_ids is not None:
            counts["drafts"] += int(np.count_nonzero(plan.drafts))
            counts["accepted_draft_tokens"] += settled.accepted_drafts
        counts["busy_s"] += timing.end_s - timing.start_s
        if planned.started or planned.admissions:
            for name, more in self.admitted(planned).items():
                counts[name] += more

    def admitted(self, planned: PlannedStep) -> Counter[str]:
        """What the totals gain by a step's admissions."""
        gained: Counter[str] = Counter()
        for started in planned.started:
            if started.resumed:
                continue
            gained["admitted"] += 1
            gained["prompt_tokens"] += started.request.num_prompt_tokens
            gained["cached_tokens"] += started.request.cached_tokens
            if self.scheduler.state.kv.caching and not started.request.skip_reading_prefix_cache:
                gained["cache_queries"] += started.request.num_prompt_tokens
        for entry in planned.admissions:
            if entry.resumed:
                gained["reused_tokens"] += entry.cached_tokens
            else:
                gained["external_tokens"] += entry.external_tokens
        return gained

    def begin_at(self, step: int, totals: Totals) -> None:
        """Continue after this many reported steps, with these totals."""
        self.step = self.seq = step
        self.counts.update(msgspec.structs.asdict(totals))

    def skip(self, steps: int, gained: Iterable[Mapping[str, int]], busy_s: float, finishes: list[Finish]) -> None:
        """Steps were reported elsewhere: what totals gained by them, and those who finished."""
        self.step += steps
        self.seq += steps
        for part in gained:
            for name, more in part.items():
                self.counts[name] += more
        self.counts["busy_s"] = busy_s
        self._count_finishes(finishes)

    def _count_finishes(self, finishes: list[Finish]) -> None:
        for finish in finishes:
            self._queued_s.pop(finish.number, None)
            self.counts[counted_as(finish)] += 1

    def move_queue(self, planned: PlannedStep) -> None:
        """The reported step took requests from the queue or sent them back."""
        for admission in planned.admissions:
            self._queued_s.pop(admission.number, None)
        for preemption in planned.preemptions:
            self._queued_s[preemption.number] = planned.now_s

    def look_at(self, head: Head | None) -> Head | None:
        """The head of the queue, with the details that the scheduler lacks."""
        if head is None:
            return None
        return self.look_again(msgspec.structs.replace(head, since_s=self._queued_s.get(head.number)))

    def look_again(self, head: Head) -> Head:
        """The same head after requests have ended."""
        return msgspec.structs.replace(head, inverted=mark_inverted(self.scheduler.state, head))

    def snapshot(
        self,
        clock_s: float,
        knobs: dict[str, object],
        knobs_version: int,
        paused: bool,
        stages_free_s: tuple[float, ...] = (),
    ) -> Snapshot:
        """The whole present state. Walks every request: for a joining console, not for every step."""
        state = self.scheduler.state
        table, pool = state.table, state.kv.pool
        rows = {number: row for row, number in enumerate(table.request[: table.size].tolist())}
        return Snapshot(
            seq=self.seq,
            step=self.step,
            clock_s=clock_s,
            requests=[self._request_state(request, rows.get(number)) for number, request in state.requests.items()],
            waiting=[request.number for request in (*self._holding(), *state.waiting)],
            running=list(rows),
            block_classes=pool.classes(),
            knobs=knobs,
            knobs_version=knobs_version,
            paused=paused,
            totals=self.totals(),
            under_way=tuple(self._describe_step(batch) for batch in state.under_way),
            stages_free_s=stages_free_s,
            host=self._tier(),
        )

    def _describe_step(self, batch: PlannedBatch) -> UnderWay:
        planned, live = batch.planned, self.scheduler.state.requests
        return UnderWay(
            planned_s=planned.now_s,
            rows=batch.columns.tobytes(),
            token_budget=planned.token_budget,
            input_budget=planned.input_budget,
            limiter=planned.limiter.value,
            head=planned.head,
            blocks_in_use=planned.blocks_in_use,
            recomputed_tokens=planned.recomputed_tokens,
            grown={number: len(blocks) for number, blocks in planned.new_blocks.items()},
            admissions=tuple(planned.admissions),
            preemptions=tuple(planned.preemptions),
            ended=tuple(planned.ended),
            grown_groups=planned.group_growth,
            gone=tuple(
                describe_arrival(started.request, self._block_size)
                for started in planned.started
                if started.request.number not in live
            ),
            encoder_tokens=batch.plan.encoder_tokens,
        )

    def _holding(self) -> list[Request]:
        loads = self.scheduler.state.loads
        return [] if loads is None else [entry.request for entry in loads.holding]

    def _why_deferred(self, request: Request) -> str:
        if request.deferred is not None:
            return request.deferred.value
        loads = self.scheduler.state.loads
        entry = None if loads is None else loads.of(request)
        return Limiter.REMOTE_KV.value if entry is not None and entry.loading else ""

    def _request_state(self, request: Request, row: int | None) -> RequestState:
        table = self.scheduler.state.table
        num_tokens = request.num_tokens if row is None else table.num_tokens.item(row)
        last_s = request.last_token_s if row is None else table.last_s.item(row)
        return RequestState(
            arrival=describe_arrival(request, self._block_size),
            status=request.status.value,
            output_tokens=num_tokens - request.num_prompt_tokens,
            computed_tokens=0 if row is None else table.num_computed.item(row),
            cached_tokens=request.cached_tokens,
            preemptions=request.num_preemptions,
            first_scheduled_s=request.first_scheduled_s,
            first_token_s=request.first_token_s,
            last_token_s=None if last_s is None or last_s != last_s else last_s,
            table=np.array(request.block_ids, dtype=np.int32).tobytes(),
            queued_s=self._queued_s.get(request.number),
            requeued_s=request.requeued_s,
            deferred=self._why_deferred(request),
            further=tuple(np.array(holding.block_ids, dtype=np.int32).tobytes() for holding in request.further),
        )
