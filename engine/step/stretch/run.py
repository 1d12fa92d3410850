"""Running a stretch: leg by leg. Between legs the scheduler plans a step itself; within one, rows decode and end.

Only a simulated device's steps are known before they run. Within a stretch there is no state to look at: whoever needs
that, as a recording does for its keyframes, takes single steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter

import numpy as np
from schedtop.engine.scheduler.books.register import enter, full_blocks
from schedtop.engine.scheduler.books.request_table import COLUMNS, IntArray
from schedtop.engine.scheduler.books.state import PlannedBatch, PlannedStep
from schedtop.engine.scheduler.decodes import (
    NUMBER,
    TOKENS,
    Filled,
    Gaps,
    Needs,
    Outlook,
    advance,
    batch_of,
    block_needs,
    decodes_ahead,
    decodes_next,
    deliver,
    ends_in,
    go_on,
    land_prompts,
    note_blocks,
    only_decodes,
    take_blocks,
    until,
)
from schedtop.engine.scheduler.settle import end_in_place, note_first_tokens
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.stretch.leg import (
    Before,
    Course,
    Ending,
    Foreseen,
    Leg,
    Standing,
    StepUnderWay,
    TurnTimes,
    gained,
    limiter_of,
)
from schedtop.engine.step.stretch.stretch import Stretch
from schedtop.engine.step.stretch.times import elapsed_s, staged, unstaged

SLOT = COLUMNS.index("slot")

MOST_OUTPUTS = 1 << 16
"""Of one stretch: bounds its memory, and how long nobody hears of it."""


def run_stretch(engine: Engine, until_s: float = math.inf, most_steps: int = MOST_OUTPUTS) -> Stretch | None:
    """Take the next turns that start before `until_s`, of which the first one only decodes, and take in who arrives.

    None if the next one does more; then nothing was done, or its step was planned, with those who have arrived.
    """
    worker = engine.worker
    if not isinstance(worker, SimWorker) or engine.paused or engine.observer.has_events:
        return None
    if until_s <= engine.clock_s or most_steps < 1:
        return None
    if engine.wakes_now:
        if not engine.may_begin_turn:
            return None
        engine.begin_turn()
    outlook = decodes_ahead(engine.scheduler.state)
    return None if outlook is None else _Run(engine, worker, until_s, most_steps).go(outlook)


class _Run:
    """A stretch while it runs. The books are those of the last turn, but for the steps that are under way."""

    def __init__(self, engine: Engine, worker: SimWorker, until_s: float, most_steps: int) -> None:
        self.engine, self.worker, self.until_s = engine, worker, until_s
        self.state, self.observer = engine.scheduler.state, engine.observer
        self.common = self.observer.blank_record(engine.knobs_version, executed=True)
        self.slots = self.state.config.draft_slots
        self.legs: list[Leg] = []
        self.totals, self.running = self.observer.totals(), self.state.table.size
        self.ended: list[int] = []
        self.under_way: list[PlannedBatch | Foreseen] = list(self.state.under_way)
        self.steps_left, self.outputs_left = most_steps, MOST_OUTPUTS
        self.least_s = worker.next_decode_s(1, 1)  # no step takes less
        self.state.under_way.clear()

    def go(self, outlook: Outlook | None) -> Stretch | None:
        """Leg after leg; None if there was not even one."""
        while outlook is not None and (leg := self._leg(outlook)) is not None:
            self.legs.append(leg)
            self.totals, self.running = self.observer.totals(), self.state.table.size
            outlook = self._outlook_after(leg)
        self._set_out_again()
        if not self.legs:
            return None
        self.engine.skip_turns(0, self.engine.clock_s)
        return Stretch(self.common, self.slots, self.legs, self._delivered(), self.totals, self.running)

    def _leg(self, outlook: Outlook) -> Leg | None:
        """The next leg; None if it has no turn."""
        state, size, now_s = self.state, self.state.table.size, self.engine.clock_s
        wake_s = self.engine.next_wake_s()
        until_s = self.until_s if wake_s is None else min(self.until_s, wake_s)
        turns = min(outlook.turns, self.steps_left, max(self.outputs_left // size, 1))
        if (until_s - now_s) < turns * self.least_s:
            turns = int((until_s - now_s) / self.least_s) + 1
        times = self._times(outlook, turns, now_s)
        turns = _last_reported(outlook, int(times.turns_s[:-1].searchsorted(until_s)))
        if turns < 1:
            return None
        needs = block_needs(state, outlook, turns)
        turns = _last_reported(outlook, needs.turns)
        if turns < 1:
            return None
        self.steps_left -= turns
        self.outputs_left -= turns * size
        return self._take(outlook, until(needs, turns), times.until(turns))

    def _times(self, outlook: Outlook, turns: int, now_s: float) -> TurnTimes:
        each_s = elapsed_s(self.worker, outlook, self._computed_before(outlook), self.under_way, turns)
        if self.engine.stages is None:
            return unstaged(now_s, each_s)
        return staged(now_s, each_s, [_planned_s(step) for step in self.under_way], self.engine.stages)

    def _computed_before(self, outlook: Outlook) -> IntArray:
        """Tokens of each row that come before its next output."""
        table = self.state.table
        before: IntArray = table.num_computed[: table.size] - outlook.coming
        return before

    def _take(self, outlook: Outlook, needs: Needs, times: TurnTimes) -> Leg:
        """Take the turns of a leg: the books are then those of its end."""
        state, observer, turns = self.state, self.observer, needs.turns
        columns, before = state.table.data[: len(COLUMNS), : state.table.size].copy(), self._before()
        reported = [self._tell(step, outlook, turn, times) for turn, step in enumerate(self.under_way[:turns])]
        head, oldest_queued_s = observer.look_at(outlook.head), observer.oldest_queued_s
        last_s = state.table.last_s[: state.table.size].copy()
        num_told = outlook.times_reported(turns)
        gaps_s = self._deliver(outlook, times, num_told)
        filled = advance(state, outlook, turns, num_told)
        course = Course(outlook, columns, state.table.layout, times, needs, [], Standing.of(state.kv), [])
        self.under_way = course.steps_from(self.under_way, turns)
        turns_reported = _turns_reported(outlook, turns)
        leg = Leg(course, before, reported, head, oldest_queued_s, turns_reported, last_s, gaps_s)
        self._serve(leg, filled)
        self._count(leg, int(np.add.reduce(num_told)))
        return leg

    def _before(self) -> Before:
        observer = self.observer
        return Before(
            observer.seq,
            observer.step,
            observer.totals(),
            observer.num_waiting,
            observer.deferred(),
            observer.take_events(),
            observer.take_deferrals(),
            self.state.kv.pool.take_changes(),
        )

    def _serve(self, leg: Leg, filled: Filled) -> None:
        """Take blocks and register them; those who end give theirs back in their turn."""
        state, course, turns, pool = self.state, leg.course, leg.turns, self.state.kv.pool
        if state.loads is not None:
            self._set_out_again()
        needed_at, needed = course.needs.at.tolist(), course.needs.rows.tolist()
        filled_at, full = filled.at.tolist(), full_blocks(state, filled.rows, filled.known)
        num_taken = num_entered = 0
        ends = ends_in(course.outlook, turns)
        for turn, rows in ends:
            if turn == turns - 1:
                state.gone = []  # what is known when the last of the steps is planned
            since, num_taken = num_taken, bisect_right(needed_at, turn, num_taken)
            course.new_blocks.extend(take_blocks(state, needed[since:num_taken]))
            since, num_entered = num_entered, bisect_right(filled_at, turn, num_entered)
            enter(state, full[since:num_entered])
            if rows:
                course.endings.append(self._end(leg, turn, rows))
        pool.discard_changes()
        note_blocks(state, course.needs.rows)
        self.ended = sorted(row for _, rows in ends for row in rows)
        if self.ended:
            state.table.remove(self.ended)

    def _end(self, leg: Leg, turn: int, rows: list[int]) -> Ending:
        """These rows end in a turn; they are still to be removed."""
        state, pool = self.state, self.state.kv.pool
        pool.discard_changes()
        finishes = end_in_place(state, rows, set(), leg.course.times.turns_s.item(turn + 1))
        head = leg.head_told(turn)
        head = None if head is None else self.observer.look_again(head)
        return Ending(turn, finishes, pool.take_changes(), Standing.of(state.kv), head)

    def _tell(self, step: PlannedBatch | Foreseen, outlook: Outlook, turn: int, times: TurnTimes) -> StepUnderWay:
        """A step that was under way is told in a turn."""
        observer, table = self.observer, self.state.table
        if isinstance(step, Foreseen):
            return StepUnderWay(step, observer.look_at(step.course.outlook.head), observer.oldest_queued_s)
        planned, plan, firsts, more = step.planned, step.plan, [], Counter[str]()
        if not only_decodes(step):
            rows = (np.isnan(table.last_s[: table.size]) & (outlook.reports == turn)).nonzero()[0].tolist()
            firsts = note_first_tokens(table, rows, times.turns_s.item(turn + 1))
            more = observer.admitted(planned)
            outputs = int(np.count_nonzero(plan.samples))
            more["scheduled_tokens"] = int(np.add.reduce(plan.tokens)) - outputs
            more["input_rows"] = more["scheduled_tokens"] + self.slots * (plan.num_rows - outputs)
            land_prompts(self.state, step)
        observer.move_queue(planned)
        return StepUnderWay(step, observer.look_at(planned.head), observer.oldest_queued_s, tuple(firsts), more)

    def _deliver(self, outlook: Outlook, times: TurnTimes, reported: IntArray) -> Gaps:
        """Give rows so many outputs each; returns their gaps."""
        table, ends_s = self.state.table, times.turns_s[1:]
        before, most = self._computed_before(outlook), int(np.maximum.reduce(reported))
        return deliver(
            table, outlook, self.worker.next_ids(table.request[: table.size], before, most), reported, ends_s
        )

    def _count(self, leg: Leg, outputs: int) -> None:
        """Count what was told."""
        observer, turns, course, steps = self.observer, leg.turns, leg.course, len(leg.turns_reported)
        turns_s = course.times.turns_s
        busy_s = observer.counts["busy_s"]
        for length_s in (turns_s[1:] - turns_s[:-1]).tolist():  # one by one, as the totals add up
            busy_s += length_s
        more = [gained(steps, outputs, self.slots, self.common), *(each.gained for each in leg.reported)]
        observer.skip(steps, more, busy_s, [finish for ending in course.endings for finish in ending.finishes])
        if self.engine.stages is not None and course.times.free_s is not None:
            self.engine.stages.free_s = course.times.free_s[turns - 1]
        self.engine.skip_turns(turns, turns_s.item(-1))

    def _outlook_after(self, leg: Leg) -> Outlook | None:
        """What lies ahead of the next leg; None if there is none."""
        engine, state, outlook = self.engine, self.state, leg.course.outlook
        if not state.table.size or engine.clock_s >= self.until_s or self.steps_left < 1 or self.outputs_left < 1:
            return None
        steady = leg.turns == outlook.turns and outlook.steady
        ahead = go_on(state, outlook, leg.turns, self.ended, None) if steady and not engine.wakes_now else None
        if ahead is not None or not engine.only_plans:
            return ahead
        if state.kv.pool.num_free < state.table.size + state.limits.token_budget // state.kv.block_size:
            self._set_out_again()  # somebody may be preempted, of whom results are under way
            self.under_way = list(state.under_way)
        engine.begin_turn(decodes_next(state, outlook.lag) if outlook.steady else None)
        begun = state.under_way.pop()
        state.under_way.clear()
        self.under_way.append(begun)
        return go_on(state, outlook, leg.turns, self.ended, begun)

    def _set_out_again(self) -> None:
        """What is under way is so for the scheduler, too."""
        state = self.state
        state.under_way.clear()
        state.under_way.extend(
            step if isinstance(step, PlannedBatch) else self._batch(step) for step in self.under_way
        )

    def _batch(self, step: Foreseen) -> PlannedBatch:
        state, course, rows = self.state, step.course, step.columns()
        grown, blocks = step.grown()
        planned = PlannedStep(
            step.planned_s,
            state.limits.token_budget,
            state.limits.input_budget,
            decode_tokens=int(np.add.reduce(rows[TOKENS])),
            limiter=limiter_of(course.outlook.head),
            head=course.outlook.head,
            new_blocks={number: [block] for number, block in zip(grown.tolist(), blocks, strict=True)},
            blocks_in_use=course.blocks_in_use(step.turn),
        )
        ids = [state.requests[number].id for number in rows[NUMBER, rows[TOKENS] > 0].tolist()]
        return batch_of(ids, planned, rows, course.columns[SLOT, course.rows_in(step.turn)], course.layout)

    def _delivered(self) -> list[tuple[IntArray, float]]:
        table = self.state.table
        last_s, numbers = table.last_s[: table.size], table.request[: table.size]
        delivered = [(numbers[last_s == end_s], end_s) for end_s in np.unique(last_s[~np.isnan(last_s)]).tolist()]
        newest = self.state.under_way[-1].planned if self.state.under_way else PlannedStep(0.0)
        for preemption in newest.preemptions:
            request = self.state.requests[preemption.number]
            if request.last_token_s is not None:
                delivered.append((np.array([request.number], dtype=np.int32), request.last_token_s))
        return delivered


def _planned_s(step: PlannedBatch | Foreseen) -> float:
    return step.planned_s if isinstance(step, Foreseen) else step.planned.now_s


def _last_reported(outlook: Outlook, turns: int) -> int:
    """At most so many turns, the last of which describes a step."""
    if outlook.period == 1:
        return turns
    reported = set(outlook.reports.tolist())
    while turns and (turns - 1) % outlook.period not in reported:
        turns -= 1
    return turns


def _turns_reported(outlook: Outlook, turns: int) -> list[int]:
    """Those of the first `turns` turns that describe a step."""
    if outlook.period == 1:
        return list(range(turns))
    reports = set(outlook.reports.tolist())
    return [turn for turn in range(turns) if turn % outlook.period in reports]
