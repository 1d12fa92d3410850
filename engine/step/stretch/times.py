"""When the turns of a leg will begin and end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from schedtop.engine.scheduler.books.request_table import IntArray
from schedtop.engine.scheduler.books.state import PlannedBatch
from schedtop.engine.scheduler.decodes import Floats, Outlook, only_decodes
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.stages import Stages
from schedtop.engine.step.stretch.leg import Foreseen, TurnTimes

Steps = list[PlannedBatch | Foreseen]


def elapsed_s(worker: SimWorker, outlook: Outlook, before: IntArray, under_way: Steps, turns: int) -> Floats:
    """How long the results of each turn take the device in all (0: there are none).

    `before`: tokens of each row that come before its next output.
    """
    if outlook.period > 1:
        each_s = np.zeros(turns)
        for turn in range(min(outlook.period, turns)):
            if (own := before[outlook.reports == turn]).size:
                times = len(range(turn, turns, outlook.period))
                each_s[turn :: outlook.period] = worker.decode_s(
                    len(own), int(np.add.reduce(own)) + len(own), times
                )
        return each_s
    parts, first = [], 0
    if np.count_nonzero(outlook.reports) or not all(
        isinstance(step, Foreseen) or only_decodes(step) for step in under_way
    ):
        parts.append(np.array([_under_way_s(worker, outlook, before, step) for step in under_way[:turns]]))
        first = len(parts[0])
    parts += [worker.decode_s(*same) for same in _same_rows(outlook, before, first, turns)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _under_way_s(worker: SimWorker, outlook: Outlook, before: IntArray, step: PlannedBatch | Foreseen) -> float:
    if isinstance(step, PlannedBatch):
        return worker.elapsed_s(step.plan)
    own = before[outlook.reports == 0]  # only the first step can be one
    return worker.next_decode_s(len(own), int(np.add.reduce(own)) + len(own))


def _same_rows(outlook: Outlook, before: IntArray, first: int, turns: int) -> Iterator[tuple[int, int, int]]:
    """The turns from `first` on, by the rows that are told: how many rows, their context in the first of these turns,
    and how many turns."""
    own = before - outlook.reports
    rows, context = len(own), int(np.add.reduce(own))
    ends = (outlook.last < turns - 1).nonzero()[0]
    for row in ends[outlook.last[ends].argsort()].tolist():
        stop = outlook.last.item(row) + 1
        if stop > first:
            yield rows, context + rows * (first + 1), stop - first
            first = stop
        rows, context = rows - 1, context - own.item(row)
    if turns > first:
        yield rows, context + rows * (first + 1), turns - first


def unstaged(start_s: float, each_s: Floats) -> TurnTimes:
    """Turns that follow one another."""
    turns_s = np.empty(len(each_s) + 1)
    turns_s[0], turns_s[1:] = start_s, each_s
    np.add.accumulate(turns_s, out=turns_s)
    return TurnTimes(turns_s)


def staged(start_s: float, each_s: Floats, planned_s: list[float], stages: Stages) -> TurnTimes:
    """On several stages a batch goes through them beside those before it; these were planned before."""
    ahead, planned_s = Stages(len(stages.free_s)), planned_s.copy()
    ahead.free_s = stages.free_s
    turns_s, executed_s, free_s = [start_s], [], []
    for turn, length_s in enumerate(each_s.tolist()):
        now_s = turns_s[-1]
        planned_s.append(now_s)
        end_s = taken_up_s = now_s
        if length_s:
            taken_up_s, end_s = ahead.run(planned_s[turn], length_s)
            end_s = now_s + (end_s - now_s)  # as the clock adds up
        turns_s.append(end_s)
        executed_s.append(end_s - taken_up_s)
        free_s.append(ahead.free_s)
    return TurnTimes(np.array(turns_s), executed_s, free_s)
