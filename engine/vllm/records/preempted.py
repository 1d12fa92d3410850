"""Which request was preempted for which."""

from __future__ import annotations

from schedtop.engine.contract.telemetry import Preemption
from schedtop.engine.vllm.events import PreemptSeen, Scheduled
from schedtop.engine.vllm.records.requests import COMPUTED, ENTERED, NUMBER, STOP_AT, ServerRequests
from schedtop.engine.vllm.records.tables import new_tables

LOOP_LENGTH = 3
"""Preemptions of one request, with nothing finishing in between, that make a loop."""


def give_way(
    lives: ServerRequests, seen: Scheduled, place: int, now_s: float, by_priority: bool, num_blocks: int
) -> Preemption | None:
    """Put the preempted request at `place` of a schedule back into the queue; None if it has ended."""
    victim = seen.preempted[place]
    life = lives.by_id.get(victim.id)
    if life is None:
        return None
    lost = int(lives.columns[COMPUTED, life.slot]) if victim.computed_tokens < 0 else victim.computed_tokens
    taker, columns = _taker(seen, victim), lives.columns  # it may have ended in the meantime
    slot = lives.slots([taker])[0] if lives.knows(taker) else life.slot
    # A lower priority goes first, though the step may have planned it already: unless all of it is under way.
    before = by_priority and columns[ENTERED, life.slot] < columns[ENTERED, slot]
    expected = victim.expected_tokens
    is_whole = expected and lost + 2 - expected >= columns[STOP_AT, life.slot]
    was_planned = bool(before and not is_whole)
    lives.put_back(life, lost, now_s)
    return Preemption(
        number=life.number,
        count=life.preemptions,
        lost_tokens=lost,
        freed_blocks=victim.free_after - victim.free_before,
        usage_before=1 - victim.free_before / num_blocks,
        usage_after=1 - victim.free_after / num_blocks,
        for_number=int(columns[NUMBER, slot]),
        was_planned=was_planned,
        loop=life.loop_length >= LOOP_LENGTH,
    )


def _taker(seen: Scheduled, victim: PreemptSeen) -> str:
    """The request that got blocks next; if none did, the one that wanted them was itself the last to be preempted."""
    if victim.num_given < len(seen.given):
        first = seen.given[victim.num_given] - 1
        tables = new_tables(seen.output)
        taken = (name for name, groups in tables if any(ids[:1] == [first] for ids in groups))
        return next(taken, seen.preempted[-1].id)
    return seen.preempted[-1].id
