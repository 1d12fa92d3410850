"""When the turns of a leg will begin and end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from schedtop.engine.scheduler.books.request_table import IntArray
from schedtop.engine.scheduler.books.state import Batch
from schedtop.engine.scheduler.decodes import Floats, Outlook, only_decodes
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.stages import Stages
from schedtop.engine.step.stretch.leg import Foreseen, Times

Steps = list[Batch | Foreseen]


def elapsed_s(
    worker: SimWorker, outlook: Outlook, before: IntArray, under_way: Steps, turns: int, enough_s: float
) -> Floats:
    """How long the results of each turn take the device in all (0: there are none); fewer turns if these last longer
    than `enough_s`.

    `before`: tokens of each row that come before its next output.
    """
    if outlook.period > 1:
        each_s = np.zeros(turns)
        for turn, rows in outlook.rounds:
            if turn < turns:
                told = len(range(turn, turns, outlook.period))
                each_s[turn :: outlook.period] = worker.decode_s(
                    len(before[rows]), int(np.add.reduce(before[rows])) + len(before[rows]), told
                )
        return each_s
    known_s: list[float] = []
    if len(outlook.rounds) > 1 or not all(isinstance(step, Foreseen) or only_decodes(step) for step in under_way):
        known_s = [_under_way_s(worker, outlook, before, step) for step in under_way[:turns]]
    parts = [np.array(known_s)]
    left_s = enough_s - sum(known_s)
    for first, stop, num_rows, kv_tokens in _same_rows(outlook, before, len(known_s), turns):
        if left_s <= 0:
            break
        # No step of these takes less than the first one.
        most = left_s / worker.next_decode_s(num_rows, kv_tokens) + 1
        parts.append(worker.decode_s(num_rows, kv_tokens, min(stop - first, int(min(most, turns)) + 1)))
        left_s -= float(parts[-1].sum())
    return np.concatenate(parts)


def _under_way_s(worker: SimWorker, outlook: Outlook, before: IntArray, step: Batch | Foreseen) -> float:
    if isinstance(step, Batch):
        return worker.elapsed_s(step.plan)
    own = before[outlook.rounds[0][1]]  # only the first step can be one
    return worker.next_decode_s(len(own), int(np.add.reduce(own)) + len(own))


def _same_rows(outlook: Outlook, before: IntArray, first: int, turns: int) -> Iterator[tuple[int, int, int, int]]:
    """The turns from `first` on in which the same rows are told: from which, up to which, how many rows, and their
    context in the first of them."""
    order = outlook.last.argsort()
    context = int(np.add.reduce(before - outlook.tells))
    rows, ends = (
        len(order),
        zip(outlook.last[order].tolist(), (before - outlook.tells)[order].tolist(), strict=True),
    )
    for last, own in ends:
        stop = min(last + 1, turns)
        if stop > first:
            yield first, stop, rows, context + rows * (first + 1)
            first = stop
        rows, context = rows - 1, context - own


def unstaged(start_s: float, each_s: Floats) -> Times:
    """Turns that follow one another."""
    turns_s = np.empty(len(each_s) + 1)
    turns_s[0], turns_s[1:] = start_s, each_s
    np.add.accumulate(turns_s, out=turns_s)
    return Times(turns_s)


def staged(start_s: float, each_s: Floats, planned_s: list[float], stages: Stages) -> Times:
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
    return Times(np.array(turns_s), executed_s, free_s)
