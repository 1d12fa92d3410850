"""The engine: requests in, steps, records out."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from schedtop.engine.contract.config import knob_values
from schedtop.engine.contract.knobs import KnobError, with_followers
from schedtop.engine.contract.telemetry import (
    Header,
    KnobChange,
    Limiter,
    Refusal,
    Reply,
    Snapshot,
    StepRecord,
    TokenLogprob,
)
from schedtop.engine.handoff.plan import IntArray, StepPlan, StepResult, Worker
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import PlannedStep
from schedtop.engine.scheduler.open_latencies import OpenLatencies, look
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.host_store import HostStore
from schedtop.engine.step.clock import Clock
from schedtop.engine.step.consequences import check_change, warnings_for
from schedtop.engine.step.observer import Observer, Timing
from schedtop.engine.step.stages import Stages
from schedtop.engine.workload.source import RequestSource

NOTHING = StepResult(np.zeros((0, 1), dtype=np.int32), np.zeros(0, dtype=np.int32))
"""The result of an empty plan."""


class Engine:
    """One scheduler, one worker, one clock. It is driven from outside and never blocks.

    `texts` is the output text that the last step made certain, by request number, where the worker has any; `tier` is
    the memory behind the pool, where there is one. `sampled` are the last step's outputs as the worker returned them,
    int32 (rows, width), `logprobs` those of the requests that asked for them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        source: RequestSource | None,
        clock: Clock,
        header: Header,
        tier: HostStore | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.tier = tier
        self.worker = worker
        self.source = source
        self.clock = clock
        self.header = header
        self.observer = Observer(scheduler)
        rate = header.workload.get("rate") if source is not None else None
        self.knobs: dict[str, Any] = knob_values(scheduler.config, {"rate": rate})
        self.knobs_version = 0
        self.paused = False
        self.texts: dict[int, str] = {}
        self.sampled: IntArray = np.zeros((0, 1), dtype=np.int32)
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.num_turns = 0
        self._max_under_way = scheduler.config.max_concurrent_batches
        self._schedule_s: deque[float | None] = deque()
        stages = scheduler.config.pipeline_depth
        self.stages = Stages(stages) if stages > 1 else None
        self._last_end_s = 0.0
        self._steps_allowed = 0
        self._reported_paused = False
        self._unreported_turns = 0
        self._idle_records: deque[StepRecord] = deque()

    @property
    def clock_s(self) -> float:
        return self.clock.now_s()

    @property
    def num_unfinished(self) -> int:
        return self.scheduler.num_unfinished

    @property
    def exhausted(self) -> bool:
        """Nothing is in flight and no more arrivals are due."""
        return not self.num_unfinished and self.next_wake_s() is None

    def step(self) -> StepRecord | None:
        """Advance by one step; None when there is nothing to do and nothing to report."""
        if self._idle_records:
            return self._idle_records.popleft()
        self._take_arrivals()
        if self._idle_records:
            return self._idle_records.popleft()
        if not self._may_run():
            return self.tell()
        while (record := self.turn()) is None and self.has_work:
            self._take_arrivals()
            if self._idle_records:
                return self._idle_records.popleft()
        return record or self.tell()

    def set_apart(self) -> None:
        """Called before an event: turns since the last record came before it and get a record of their own."""
        if self._unreported_turns:
            self._idle_records.append(self._idle_record())

    def _before_event(self) -> None:
        """Copies that have ended by now are recorded first: `verify` needs the order of events."""
        if self.tier is not None:
            self.set_apart()

    def turn(self) -> StepRecord | None:
        """Plan a step if there is any work, and take the results of the oldest if no more may be under way."""
        record = self._turn()
        self._unreported_turns = 0 if record is not None else self._unreported_turns + 1
        return record

    def _turn(self) -> StepRecord | None:
        self.num_turns += 1
        if self.num_unfinished and len(self._schedule_s) < self._max_under_way:
            self.plan_step()
            if len(self._schedule_s) < self._max_under_way:
                return None
        return self.apply_results()

    @property
    def wakes_now(self) -> bool:
        """There is something to take in (see `next_wake_s`)."""
        wake_s = self.next_wake_s()
        return wake_s is not None and wake_s <= self.clock_s

    @property
    def only_plans(self) -> bool:
        """Nothing but planning lies between the arrivals and the results of a busy engine's turn."""
        return self.stages is None and self.tier is None and self.scheduler.state.loads is None

    @property
    def may_begin_turn(self) -> bool:
        """`begin_turn` is half of the next turn."""
        return self.only_plans and self.has_work and len(self._schedule_s) == self._max_under_way - 1

    def begin_turn(self, decodes: IntArray | None = None) -> None:
        """Take in who has arrived, and plan: half a turn of a busy engine. The next one applies the results."""
        self._take_arrivals()
        if self.num_unfinished:  # else results are all that is left, as for `turn`
            self.plan_step(decodes)

    def plan_step(self, decodes: IntArray | None = None) -> None:
        """Plan one more step; the caller knows how many may be under way. `decodes` as in `schedule`."""
        began_s = time.perf_counter()
        self.scheduler.schedule(self.clock_s, decodes)
        self._schedule_s.append(None if self.clock.simulated else time.perf_counter() - began_s)

    def apply_results(self) -> StepRecord | None:
        """Run the oldest plan under way and apply its results; None for an empty one, which takes no time."""
        schedule_s, planned = self._schedule_s.popleft(), self.scheduler.state.under_way[0].planned
        plan = self.scheduler.next_due()
        if self.tier is not None and self._waits_for_copies(plan, planned):
            return None
        preempts = planned.limiter is Limiter.PREEMPTED_NOW  # that request may have ended in the meantime
        reported = self._max_under_way == 1 or plan.num_rows or preempts or planned.ended
        if not reported and any(batch.plan.num_rows for batch in self.scheduler.state.under_way):
            self.scheduler.update(plan, NOTHING, self.clock_s)
            return None
        start_s = max(planned.now_s, self._last_end_s)
        end_s, execute_s, result = self._execute(plan, planned.now_s, start_s)
        began_s = time.perf_counter()
        settled = self.scheduler.update(plan, result, end_s)
        update_s = None if self.clock.simulated else time.perf_counter() - began_s
        self._last_end_s = end_s
        self._reported_paused = self.paused
        timing = Timing(start_s, end_s, schedule_s, execute_s, update_s)
        record = self.observer.record(plan, settled, timing, self.knobs_version, self.paused)
        if not self.header.simulated_clock:  # there every row gets all it may have
            self.observer.note_drafts(plan, result)
        return record

    def _waits_for_copies(self, plan: StepPlan, planned: PlannedStep) -> bool:
        """Nothing of a plan can run before a copy ends, a request comes or the steps behind it have run: then the time
        until that passes."""
        if _changes(plan, planned):
            return False
        state, wake_s = self.scheduler.state, self.next_wake_s()
        goes_on = any(_changes(batch.plan, batch.planned) for batch in state.under_way if batch.plan is not plan)
        if not goes_on and (wake_s is None or math.isinf(wake_s)):
            return False
        self._end_copies(plan)
        if (
            not goes_on
            and wake_s is not None
            and state.loads is not None
            and not (state.loads.done or state.loads.sent)
        ):
            self.clock.skip_to(wake_s)
        return True

    def _end_copies(self, plan: StepPlan) -> None:
        """Take in the copies that have ended, in an empty step."""
        self.observer.note_finishes(self.scheduler.update(plan, NOTHING, self.clock_s).finishes)

    def _execute(self, plan: StepPlan, planned_s: float, start_s: float) -> tuple[float, float, StepResult]:
        """Run a plan; returns when its results were there, how long the device had it, and the results."""
        began_s = time.perf_counter()
        result = self.worker.execute(plan)
        self.texts, self.sampled, self.logprobs = result.texts, result.sampled, result.logprobs
        if not self.clock.simulated:
            return self.clock.advance(None), time.perf_counter() - began_s, result
        elapsed_s = (result.elapsed_s or 0.0) + (0.0 if self.tier is None else self.tier.take_delay_s())
        if start_s > self._last_end_s:
            elapsed_s += getattr(self.worker, "wake_s", 0.0)
        if self.stages is None:
            end_s = self.clock.advance(elapsed_s)
            return end_s, end_s - start_s, result
        taken_up_s, end_s = self.stages.run(planned_s, elapsed_s)
        end_s = self.clock.advance(end_s - self.clock_s)
        return end_s, end_s - taken_up_s, result

    @property
    def has_work(self) -> bool:
        """A request can be scheduled, or results are to come. Deferred requests alone are not work."""
        state = self.scheduler.state
        # A request whose adapter had no slot may have one now that nothing runs.
        if state.table.size or state.waiting.ready:
            return True
        if state.loads is not None and state.loads.is_ready:
            return True
        return any(batch.plan.num_rows for batch in state.under_way)

    def _take_arrivals(self) -> None:
        if not self.has_work and not self.paused:
            wake_s = self.next_wake_s()
            if wake_s is not None and wake_s < math.inf:
                self.clock.skip_to(wake_s)
            self._take_copies()
        if self.source is None:
            return
        for request in self.source.take(self.clock_s, self.observer.step):
            self.submit(request)

    def _take_copies(self) -> None:
        """While there is nothing to run: process what the tier has copied by now."""
        if self.tier is not None and self.tier.is_due():
            self.scheduler.schedule(self.clock_s)
            self._end_copies(self.scheduler.next_due())
            self._unreported_turns += 1

    def _may_run(self) -> bool:
        if not self.has_work:
            return False
        if not self.paused:
            return True
        allowed = self._steps_allowed > 0
        self._steps_allowed -= allowed
        return allowed

    def tell(self) -> StepRecord | None:
        """A record of what happened since the last one without a step; None if nothing did."""
        if not self.observer.has_events and self.paused == self._reported_paused:
            return None
        return self._idle_record()

    def _idle_record(self) -> StepRecord:
        self._reported_paused = self.paused
        turns, self._unreported_turns = self._unreported_turns, 0
        return self.observer.idle_record(self.clock_s, self.knobs_version, self.paused, turns)

    def skip_to(self, time_s: float) -> None:
        """Pass time without stepping: nothing was to be done but to take what was copied."""
        while self.tier is not None and (copied_s := self.tier.next_event_s()) is not None and copied_s <= time_s:
            self.clock.skip_to(copied_s)
            self._take_copies()
        self.skip_turns(0, time_s)

    def skip_turns(self, count: int, end_s: float) -> None:
        """So many turns were taken elsewhere, until `end_s` (see `stretch`)."""
        self.num_turns += count
        self._schedule_s = deque([None] * len(self.scheduler.state.under_way))
        self.clock.skip_to(end_s)
        self._last_end_s = end_s
        self._reported_paused = self.paused

    def submit(self, request: Request) -> Refusal | None:
        """Queue a request; one that can never be served is refused, which the next record also reports."""
        refusal = self.scheduler.add(request)
        self.observer.note_arrival(request, refusal)
        return refusal

    def abort(self, number: int) -> bool:
        """End one request; False if there is none with this number."""
        self._before_event()
        prefill_tokens = self.scheduler.prefill_tokens(number)
        finish = self.scheduler.abort(number, self.clock_s)
        if finish is None:
            return False
        self.observer.note_abort(finish, prefill_tokens)
        return True

    def next_wake_s(self) -> float | None:
        """When an idle engine has something to do, on its clock; infinity: only once the rate is raised.

        None: nothing will arrive by itself any more.
        """
        arrival_s = None if self.source is None else self.source.next_arrival_s()
        copied_s = None if self.tier is None else self.tier.next_event_s()
        if arrival_s is None or copied_s is None:
            return copied_s if arrival_s is None else arrival_s
        return min(arrival_s, copied_s)

    def pause(self, by: str = "") -> None:
        self._before_event()
        self.observer.note_pause(by)
        self.paused = True
        self._steps_allowed = 0

    def resume(self, by: str = "") -> None:
        self._before_event()
        self.observer.note_pause(by)
        self.paused = False

    def step_once(self) -> bool:
        """Let one step run while paused; False if the engine is not paused."""
        self._steps_allowed += self.paused
        return self.paused

    def drain(self) -> None:
        """Take no more requests from the workload; those in flight continue."""
        self.source = None
        self.resume()

    def set_knobs(
        self, values: Mapping[str, Any], expected_version: int | None = None, by: str = "", dry_run: bool = False
    ) -> Reply:
        """Change live limits, all or none. The reply says what was refused or what the change will do."""
        if expected_version is not None and expected_version != self.knobs_version:
            text = (
                f"knobs were changed meanwhile (version {self.knobs_version}, not {expected_version}): look again"
            )
            return self._reply(False, text)
        state = self.scheduler.state
        try:
            typed = check_change(self.scheduler.config, state, self.knobs, values)
        except KnobError as error:
            return self._reply(False, str(error))
        warnings = warnings_for(state, self.knobs, typed)
        if not dry_run:
            self._apply(typed, by)
        return self._reply(True, "checked" if dry_run else "applied", warnings)

    def _apply(self, typed: dict[str, Any], by: str) -> None:
        self._before_event()
        typed = with_followers(typed)
        self.scheduler.set_limits(typed)
        if "rate" in typed and self.source is not None:
            self.source.set_rate(typed["rate"], self.clock_s)
        if "num_speculative_tokens" in typed and hasattr(self.worker, "num_speculative_tokens"):
            self.worker.num_speculative_tokens = typed["num_speculative_tokens"]
        for name, value in typed.items():
            if self.knobs.get(name) != value:
                self.observer.note_knob(KnobChange(name, self.knobs.get(name), value, by))
        self.knobs.update(typed)
        self.knobs_version += 1

    def _reply(self, ok: bool, text: str, warnings: list[str] | None = None) -> Reply:
        return Reply(0, ok, text, self.knobs_version, warnings or [])

    def unended(self) -> OpenLatencies:
        """Open waits and gaps as of now."""
        return look(self.scheduler.state, self.clock_s)

    def snapshot(self) -> Snapshot:
        """The whole present state, for a console that joins or a recording's keyframe."""
        free_s = () if self.stages is None else self.stages.free_s
        return self.observer.snapshot(self.clock_s, dict(self.knobs), self.knobs_version, self.paused, free_s)

    def take_over(self, stages_free_s: tuple[float, ...]) -> None:
        """Steps are under way that another engine planned; its stages were through at these times."""
        self._schedule_s = deque([None] * len(self.scheduler.state.under_way))
        self._last_end_s = self.clock_s
        if self.stages is not None and stages_free_s:
            self.stages.free_s = stages_free_s


def _changes(plan: StepPlan, planned: PlannedStep) -> bool:
    """Whether a step runs anything, or lets the one after it run more."""
    return bool(plan.num_rows or planned.preemptions or planned.ended)
