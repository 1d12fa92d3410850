"""A leg of a stretch: turns before whose first requests arrive. Within it, rows only decode and end."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import (
    ROW_FIELDS,
    Blocks,
    Deferral,
    Finish,
    Head,
    Limiter,
    StepRecord,
    Totals,
)
from schedtop.engine.kv.manager import KVManager
from schedtop.engine.scheduler.books.request_table import COLUMNS, BoolArray, IntArray
from schedtop.engine.scheduler.books.state import PlannedBatch
from schedtop.engine.scheduler.decodes import DECODED, Floats, Gaps, Needs, Outlook
from schedtop.engine.step.observer import PendingEvents

TOKENS, COMPUTED, NEEDED, BLOCKS, FLAGS = (
    ROW_FIELDS.index(name) for name in ("tokens", "computed", "needed", "blocks", "flags")
)


class TurnTimes(msgspec.Struct, frozen=True):
    """`turns_s`: the start of each turn, and the end of the last. Several stages say how long results were in the
    device (`executed_s`, with waits between stages), and when they were through with those of each turn (`free_s`)."""

    turns_s: Floats
    executed_s: list[float] | None = None
    free_s: list[tuple[float, ...]] | None = None

    def until(self, turns: int) -> TurnTimes:
        """Of the first `turns` turns."""
        return TurnTimes(self.turns_s[: turns + 1], self.executed_s, self.free_s)

    def executed_in(self, turn: int) -> float:
        """How long the results of a turn were in the device."""
        if self.executed_s is not None:
            return self.executed_s[turn]
        return self.turns_s.item(turn + 1) - self.turns_s.item(turn)


class Standing(NamedTuple):
    """The pool's blocks by class, and how many tokens of shared ones are counted more than once."""

    held: int
    shared: int
    cached_free: int
    empty: int
    doubled: int

    @classmethod
    def of(cls, kv: KVManager) -> Standing:
        pool = kv.pool
        free, cached, shared = pool.num_free, pool.num_cached_free, pool.num_shared
        return cls(pool.num_blocks - free - shared, shared, cached, free - cached, -kv.stored_tokens(0, 0))

    def less(self, count: int) -> Standing:
        """After so many blocks were taken: empty ones first."""
        evicted = max(count - self.empty, 0)
        empty = self.empty - (count - evicted)
        return Standing(self.held + count, self.shared, self.cached_free - evicted, empty, self.doubled)


class Ending(NamedTuple):
    """What ends in a turn, and how the pool and the head of the queue are then; `changed` as in `Before`."""

    turn: int
    finishes: list[Finish]
    changed: dict[int, int]
    standing: Standing
    head: Head | None


class Course(msgspec.Struct, frozen=True):
    """What the turns of a leg plan, and who ends. `columns` is the request table before them, `layout` where its rows
    were, `standing` the pool's.

    `new_blocks[i]` goes to row `needs.rows[i]`.
    """

    outlook: Outlook
    columns: IntArray
    layout: int
    times: TurnTimes
    needs: Needs
    new_blocks: list[int]
    standing: Standing
    endings: list[Ending]

    def standing_at(self, turn: int, ended: int) -> Standing:
        """The pool once the step of a turn was planned, and those who end up to turn `ended` have ended."""
        standing, since = self.standing, 0
        for ending in self.endings:
            if ending.turn <= ended:
                standing, since = ending.standing, ending.turn + 1
        new = self.blocks_grown(since, turn)
        return standing.less(new.stop - new.start)

    def blocks_in_use(self, turn: int) -> int:
        """Once the step of a turn was planned."""
        standing = self.standing_at(turn, turn - 1)
        return standing.held + standing.shared

    def rows_in(self, turn: int) -> BoolArray:
        """Which rows are there when the step of a turn is planned."""
        return self.outlook.last >= turn

    def steps_from(self, under_way: list[PlannedBatch | Foreseen], first: int) -> list[PlannedBatch | Foreseen]:
        """The steps that are told from a turn on; these were under way before."""
        lag = self.outlook.lag
        later = range(max(first - lag, self.outlook.first), self.needs.turns)
        return [*under_way[first:], *(Foreseen(self, turn) for turn in later)]

    def blocks_grown(self, first: int, last: int) -> slice:
        """Which of `new_blocks` the steps of some turns take."""
        begin, end = self.needs.at.searchsorted((first, last + 1)).tolist()
        return slice(begin, end)


class Foreseen(NamedTuple):
    """The step of nothing but decoding that is planned in a turn of a leg."""

    course: Course
    turn: int

    @property
    def planned_s(self) -> float:
        return self.course.times.turns_s.item(self.turn)

    def columns(self) -> IntArray:
        """The record rows, without results."""
        course, turn = self.course, self.turn
        columns, outlook, needs = course.columns, course.outlook, course.needs
        rows = columns[: len(ROW_FIELDS)].copy()
        before = outlook.times_planned(turn)
        busy = outlook.times_planned(turn + 1) - before
        rows[TOKENS], rows[FLAGS] = busy, busy * DECODED
        rows[COMPUTED] = columns[COLUMNS.index("num_computed")] + before
        rows[NEEDED] = rows[COMPUTED] + (1 if outlook.ahead else busy)
        grown = needs.rows[: needs.at.searchsorted(turn + 1)]
        rows[BLOCKS] += np.bincount(grown, minlength=rows.shape[1]).astype(np.int32)
        return rows[:, course.rows_in(turn)]

    def grown(self) -> tuple[IntArray, list[int]]:
        """The requests that get a block each in this step, and these."""
        course, new = self.course, self.course.blocks_grown(self.turn, self.turn)
        return course.columns[0, course.needs.rows[new]], course.new_blocks[new]


class StepUnderWay(msgspec.Struct, frozen=True):
    """A step that was under way when a leg began, as its record tells it. `gained`: by totals, besides decodes."""

    step: PlannedBatch | Foreseen
    head: Head | None
    oldest_queued_s: float | None
    first_tokens: tuple[tuple[int, float], ...] = ()
    gained: dict[str, int] = {}

    @property
    def num_rows(self) -> int:
        """Rows of the record."""
        return num_rows(self.step)


class Before(msgspec.Struct, frozen=True):
    """The state before the first turn, with which the leg's records begin.

    `changed`: blocks that changed since the last record, and their class.
    """

    seq: int
    step: int
    totals: Totals
    waiting: int
    deferred: tuple[tuple[str, int], ...]
    events: PendingEvents
    deferrals: tuple[Deferral, ...]
    changed: dict[int, int]


class Leg(msgspec.Struct, frozen=True):
    """The result of some turns.

    `reported`: the steps under way before, which are reported in the first turns, one each. `turns_reported`: the turns
    that report a step. `head` and `oldest_queued_s`: of all steps planned in the leg. `last_s`: when each row was told
    last before; `gaps_s`: of all outputs, NaN where there was none.
    """

    course: Course
    before: Before
    reported: list[StepUnderWay]
    head: Head | None
    oldest_queued_s: float | None
    turns_reported: list[int]
    last_s: Floats
    gaps_s: Gaps

    @property
    def turns(self) -> int:
        return self.course.needs.turns

    def gaps_in(self, turn: int) -> Gaps:
        """Those of each row in a turn, NaN where it was not told."""
        outlook, ends_s = self.course.outlook, self.course.times.turns_s[1:]
        before_s = np.where(outlook.reports == turn, self.last_s, ends_s[max(turn - outlook.period, 0)])
        reported = outlook.times_reported(turn + 1) > np.maximum(outlook.times_reported(turn), 0)
        return np.where(reported, ends_s[turn] - before_s, np.nan).astype(np.float32)

    def told_numbers(self) -> IntArray:
        """The request of each of `gaps_s`."""
        reported = self.course.outlook.times_reported(self.turns)
        numbers = np.broadcast_to(self.course.columns[0], (int(reported.max()), len(reported)))
        return numbers[np.arange(len(numbers))[:, None] < reported]

    def blocks_at(self, turn: int, watermark: int) -> Blocks:
        """The pool after a turn."""
        course = self.course
        pool, there = course.standing_at(turn, turn), course.rows_in(turn + 1)
        computed = course.columns[COLUMNS.index("num_computed")] + course.outlook.times_planned(turn + 1)
        return Blocks(
            held=pool.held,
            shared=pool.shared,
            cached_free=pool.cached_free,
            empty=pool.empty,
            stored_tokens=int(np.add.reduce(computed[there])) - pool.doubled,
            watermark=watermark,
        )

    def head_told(self, turn: int) -> Head | None:
        """The head of the step that is told in a turn."""
        return self.reported[turn].head if turn < len(self.reported) else self.head

    def step_reported(self, turn: int) -> PlannedBatch | Foreseen:
        """The step that is told in a turn: planned in an earlier one, or before all."""
        return (
            self.reported[turn].step
            if turn < len(self.reported)
            else Foreseen(self.course, turn - self.course.outlook.lag)
        )


def num_rows(step: PlannedBatch | Foreseen) -> int:
    """Rows of a step's record."""
    if isinstance(step, Foreseen):
        return int(np.count_nonzero(step.course.rows_in(step.turn)))
    return len(step.columns[0])


def limiter_of(head: Head | None) -> Limiter:
    """What holds back while `head` waits."""
    return Limiter.NONE if head is None else Limiter(head.reason)


def gained(steps: int, outputs: int, slots: int, common: StepRecord) -> dict[str, int]:
    """What totals gain by so many steps of decoding, and outputs. `slots`: input rows for the drafts of a request."""
    return {
        "steps": steps,
        "scheduled_tokens": outputs,
        "output_tokens": outputs,
        "token_budget": steps * common.token_budget,
        "input_rows": outputs * (1 + slots),
        "input_budget": steps * common.input_budget,
    }
