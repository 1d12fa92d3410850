"""When the turns of a leg will begin and end."""

from __future__ import annotations

import numpy as np
from schedtop.engine.scheduler.books.request_table import IntArray
from schedtop.engine.scheduler.books.state import Batch
from schedtop.engine.scheduler.decodes import Floats, Outlook, only_decodes
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.stages import Stages
from schedtop.engine.step.stretch.leg import Foreseen, Times

Steps = list[Batch | Foreseen]


def elapsed_s(worker: SimWorker, outlook: Outlook, before: IntArray, under_way: Steps, turns: int) -> Floats:
    """How long the results of each turn take the device in all (0: there are none).

    `before`: tokens of each row that come before its next output.
    """
    if outlook.period > 1:
        each_s = np.zeros(turns)
        for turn, rows in outlook.rounds:
            if turn < turns:
                each_s[turn :: outlook.period] = worker.decode_s(
                    before[rows], len(range(turn, turns, outlook.period))
                )
        return each_s
    if len(outlook.rounds) == 1 and all(isinstance(step, Foreseen) or only_decodes(step) for step in under_way):
        return worker.decode_s(before, turns)
    known_s = [
        worker.next_decode_s(before[outlook.rounds[0][1]])
        if isinstance(step, Foreseen)  # which only the first of them is
        else worker.elapsed_s(step.plan)
        for step in under_way
    ]
    if turns <= len(known_s):
        return np.array(known_s[:turns])
    return np.concatenate([known_s, worker.decode_s(before + outlook.coming, turns - len(known_s))])


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
