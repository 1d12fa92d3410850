"""The result of a stretch: its records, and what a report reads instead of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from schedtop.engine.contract.telemetry import (
    Admission,
    Arrival,
    Blocks,
    Finish,
    Preemption,
    Refusal,
    StepRecord,
    Totals,
)
from schedtop.engine.scheduler.books.request_table import IntArray
from schedtop.engine.scheduler.books.state import PlannedBatch
from schedtop.engine.step.stretch.leg import Leg, num_rows
from schedtop.engine.step.stretch.records import records_of_leg


class Requests(msgspec.Struct, frozen=True):
    """Arrivals, admissions and ends in a step's record; the fields are a `StepRecord`'s.

    `num_rows`: rows of the record.
    """

    num_rows: int
    arrivals: tuple[Arrival, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    admissions: tuple[Admission, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    ttft_s: tuple[tuple[int, float], ...] = ()
    finishes: tuple[Finish, ...] = ()


class Stretch(msgspec.Struct, frozen=True):
    """The result of many turns. A `Report` takes it instead of their records.

    `common`: what all records share. `slots`: input rows for the drafts of a request. `delivered`: requests that are
    still there, and when they got their newest outputs. `totals` and `running` are those of the last record.
    """

    common: StepRecord
    slots: int
    legs: list[Leg]
    delivered: list[tuple[IntArray, float]]
    totals: Totals
    running: int

    @property
    def end_s(self) -> float:
        return self.legs[-1].course.times.turns_s.item(-1)

    @property
    def waiting(self) -> int:
        return self.legs[-1].before.waiting

    @property
    def blocks(self) -> Blocks:
        """The pool after the last step."""
        leg = self.legs[-1]
        return leg.blocks_at(leg.turns - 1, self.common.blocks.watermark)

    @property
    def blocks_in_use(self) -> int:
        """The most blocks in use after scheduling a reported step; decodes free nothing before they end."""
        most, unreported = 0, self.legs[-1].course.outlook.lag
        for leg in reversed(self.legs):
            reported = leg.turns - 1 - unreported  # the last turn whose step is reported
            fullest = [ending.turn for ending in leg.course.endings if ending.turn < reported]
            if reported >= 0:
                most = max(most, *(leg.course.blocks_in_use(turn) for turn in [*fullest, reported]), 0)
            unreported = max(unreported - leg.turns, 0)
            for step in [reported.step for reported in leg.reported]:
                if isinstance(step, PlannedBatch) and step.plan.num_rows:
                    most = max(most, step.planned.blocks_in_use)
        return most

    def requests(self) -> Iterator[Requests]:
        """Arrivals, admissions and ends by step; steps without any are left out.

        Arrivals may come with the first step that admits: nothing about them depends on a step.
        """
        for leg in self.legs:
            arrivals, refusals = tuple(leg.before.events.arrivals), tuple(leg.before.events.refusals)
            for reported in leg.reported:
                admissions = (
                    tuple(reported.step.planned.admissions) if isinstance(reported.step, PlannedBatch) else ()
                )
                if admissions or reported.first_tokens:
                    yield Requests(reported.num_rows, arrivals, refusals, admissions, ttft_s=reported.first_tokens)
                    arrivals, refusals = (), ()
            for ending in leg.course.endings:
                yield Requests(
                    num_rows(leg.step_reported(ending.turn)), arrivals, refusals, finishes=tuple(ending.finishes)
                )
                arrivals, refusals = (), ()
            if arrivals or refusals:
                yield Requests(0, arrivals, refusals)

    def records(self) -> Iterator[StepRecord]:
        """The record of every step."""
        for leg in self.legs:
            yield from records_of_leg(leg, self.common, self.slots)


def records_of(done: StepRecord | Stretch) -> Iterable[StepRecord]:
    """A record, or each of a stretch."""
    return done.records() if isinstance(done, Stretch) else (done,)
