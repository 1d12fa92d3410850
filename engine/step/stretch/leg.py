"""A leg of a stretch: turns with the same rows. Requests arrive before its first turn and end in its last."""

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
from schedtop.engine.scheduler.books.request_table import COLUMNS, IntArray
from schedtop.engine.scheduler.books.state import Batch
from schedtop.engine.scheduler.decodes import DECODED, Floats, Gaps, Needs, Outlook
from schedtop.engine.step.observer import Events

TOKENS, COMPUTED, NEEDED, BLOCKS, FLAGS = (
    ROW_FIELDS.index(name) for name in ("tokens", "computed", "needed", "blocks", "flags")
)


class Times(msgspec.Struct, frozen=True):
    """`turns_s`: the start of each turn, and the end of the last. Several stages say how long results were in the
    device (`executed_s`, with waits between stages), and when they were through with those of each turn (`free_s`)."""

    turns_s: Floats
    executed_s: list[float] | None = None
    free_s: list[tuple[float, ...]] | None = None

    def until(self, turns: int) -> Times:
        """Of the first `turns` turns."""
        return Times(self.turns_s[: turns + 1], self.executed_s, self.free_s)

    def executed_in(self, turn: int) -> float:
        """How long the results of a turn were in the device."""
        if self.executed_s is not None:
            return self.executed_s[turn]
        return self.turns_s.item(turn + 1) - self.turns_s.item(turn)


class Course(msgspec.Struct, frozen=True):
    """What the turns of a leg plan. `columns` is the request table before them, `layout` where its rows were.

    `new_blocks[i]` goes to row `needs.rows[i]`; `held` blocks are in use before.
    """

    outlook: Outlook
    columns: IntArray
    layout: int
    times: Times
    needs: Needs
    new_blocks: list[int]
    held: int

    def blocks_in_use(self, turn: int) -> int:
        """Once the step of a turn was planned."""
        return self.held + int(self.needs.at.searchsorted(turn + 1))

    def steps_from(self, under_way: list[Batch | Foreseen], first: int) -> list[Batch | Foreseen]:
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
        return rows


class Told(msgspec.Struct, frozen=True):
    """A step that was under way when a leg began, as its record tells it. `gained`: by totals, besides decodes."""

    step: Batch | Foreseen
    head: Head | None
    oldest_queued_s: float | None
    first_tokens: tuple[tuple[int, float], ...] = ()
    gained: dict[str, int] = {}

    @property
    def num_rows(self) -> int:
        """Rows of the record."""
        columns = self.step.course.columns if isinstance(self.step, Foreseen) else self.step.columns
        return len(columns[0])


class Before(msgspec.Struct, frozen=True):
    """The state before the first turn, with which the leg's records begin.

    `changed`: blocks that changed since the last record, and their class.
    """

    seq: int
    step: int
    totals: Totals
    blocks: Blocks
    waiting: int
    deferred: tuple[tuple[str, int], ...]
    events: Events
    deferrals: tuple[Deferral, ...]
    changed: dict[int, int]


class After(msgspec.Struct, frozen=True):
    """The state after the last turn; `changed` as in `Before`."""

    totals: Totals
    blocks: Blocks
    running: int
    head: Head | None
    changed: dict[int, int]
    finishes: list[Finish]


class Leg(msgspec.Struct, frozen=True):
    """The result of some turns.

    `told`: the steps under way before, which are reported in the first turns, one each. `turns_told`: the turns that
    report a step. `gaps_s` (turns, rows) is NaN where a row was not told. `head` and `oldest_queued_s`: of all
    steps planned in the leg.
    """

    course: Course
    before: Before
    told: list[Told]
    head: Head | None
    oldest_queued_s: float | None
    turns_told: list[int]
    gaps_s: Gaps
    after: After

    @property
    def turns(self) -> int:
        return self.course.needs.turns

    def step_told(self, turn: int) -> Batch | Foreseen:
        """The step that is told in a turn: planned in an earlier one, or before all."""
        return (
            self.told[turn].step if turn < len(self.told) else Foreseen(self.course, turn - self.course.outlook.lag)
        )

    def num_rows(self, turn: int) -> int:
        """Rows of the record of the step that is told in a turn."""
        return self.told[turn].num_rows if turn < len(self.told) else len(self.course.columns[0])


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
