"""Slow gaps of a request and what made them long, and the steps in which it made others wait. No drawing here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from schedtop.console import text
from schedtop.console.history import History
from schedtop.console.state import FLAGS, NUMBER, TOKENS
from schedtop.engine.telemetry import IntArray, Limiter, RowFlag, StepRecord, row_matrix

if TYPE_CHECKING:
    from schedtop.console.life import Life, Visit

MOST_COUNTED = 512
"""Steps looked at for who got the tokens."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A slow gap and what made it long, or a step in which this request made others wait."""

    seq: int
    step: int
    seconds: float
    words: str
    caused: bool = False


def read_blames(life: Life, history: History, records: list[StepRecord]) -> Iterator[Blame]:
    """All of a life, not in order; `records` are those of it."""
    by_seq = {record.seq: index for index, record in enumerate(records)}
    starved = {visit.seq for visit in life.visits if visit.phase == "starved"}
    delivered = -1
    for visit in life.visits:
        index = by_seq[visit.seq]
        if visit.gap_s is not None and visit.gap_s > life.slow_s:
            words = _why(life, history, records[delivered + 1 : index + 1], starved)
            yield Blame(visit.seq, visit.step, visit.gap_s, words)
        if visit.emitted:
            delivered = index
        yield from _harm(life, visit, records[index])
    if life.open_is_slow and records:
        newest, words = records[-1], _why(life, history, records[delivered + 1 :], starved)
        yield Blame(newest.seq, newest.step, life.open_gap_s or 0.0, f"no token since: {words}")
    for record, preemption in life.took:
        lost = text.plural(preemption.lost_tokens, "token")
        words = f"took the room of {history.name(preemption.number)}: {lost} to compute again"
        yield Blame(record.seq, record.step, record.end_s - record.start_s, words, caused=True)


def _why(life: Life, history: History, span: list[StepRecord], starved: set[int]) -> str:
    """What happened between two deliveries, the strongest cause first. `starved`: seqs of steps that gave nothing."""
    for record, preemption in life.lost:
        if span and span[0].seq <= record.seq <= span[-1].seq:
            by, lost = history.name(preemption.for_number), text.plural(preemption.lost_tokens, "token")
            return f"preempted for {by} at step {record.step}: {lost} thrown away"
    if not span:
        return "its steps are no longer kept"
    still_s = max((b.start_s - a.end_s for a, b in pairwise(span)), default=0.0)
    longest = max(span, key=lambda record: record.end_s - record.start_s)
    if still_s > longest.end_s - longest.start_s:
        return f"no step ran for {text.ms(still_s)} ms"
    without = [record for record in span if record.seq in starved]
    if without:
        return _budget_cause(history, without)
    return _step_cause(life, history, longest)


def _budget_cause(history: History, records: list[StepRecord]) -> str:
    """Who got the tokens of steps that gave the request none."""
    got: Counter[int] = Counter()
    for record in records[-MOST_COUNTED:]:
        rows = row_matrix(record)
        got.update(dict(zip(rows[NUMBER].tolist(), rows[TOKENS].tolist(), strict=True)))
    who = [(number, tokens) for number, tokens in got.most_common() if tokens]
    named = [f"{history.name(number)} ({text.plural(tokens, 'token')})" for number, tokens in who[:2]]
    more = [f"{len(who) - 2} more"] if len(who) > 2 else []
    last = records[-1]
    by_input = last.limiter == Limiter.INPUT_BUDGET
    budget = f"input budget of {last.input_budget}" if by_input else f"budget of {last.token_budget}"
    steps = text.plural(len(records), "step")
    return f"{steps} gave it no token: the {budget} went to {', '.join(named + more) or 'nobody'}"


def _step_cause(life: Life, history: History, record: StepRecord) -> str:
    """Whose tokens made a step long."""
    took = f"step {record.step} took {text.ms(record.end_s - record.start_s)} ms"
    chunks = _chunks(row_matrix(record), life.number)[:2]
    if not chunks:
        return f"{took} for {text.plural(record.running, 'decode')} alone: the device, not the batch"
    named = ", ".join(
        f"{history.name(number)} ({text.plural(tokens, 'prompt token')})" for number, tokens in chunks
    )
    return f"{took} of {text.plural(record.scheduled_tokens, 'token')}: {named}"


def _chunks(rows: IntArray, other_than: int) -> list[tuple[int, int]]:
    """Prompt chunks of a step as (number, tokens), the largest first."""
    mask = ((rows[FLAGS] & RowFlag.DECODE) == 0) & (rows[TOKENS] > 0) & (rows[NUMBER] != other_than)
    numbers, tokens = rows[NUMBER][mask].tolist(), rows[TOKENS][mask].tolist()
    return sorted(zip(numbers, tokens, strict=True), key=lambda chunk: -chunk[1])


def _harm(life: Life, visit: Visit, record: StepRecord) -> Iterator[Blame]:
    """A step whose largest prompt chunk was this request's, if it made others' gaps slow."""
    if visit.phase == "decode" or visit.tokens < 2:
        return
    rows = row_matrix(record)
    largest = _chunks(rows, -1)
    if not largest or largest[0][0] != life.number:
        return
    gaps = np.frombuffer(record.itl_s, dtype=np.float32)
    slow = gaps[(gaps > life.slow_s) & (rows[NUMBER] != life.number)]
    if len(slow):
        words = f"its {visit.tokens} prompt tokens held up {text.plural(len(slow), 'gap')} of others"
        yield Blame(visit.seq, visit.step, float(slow.max()), words, caused=True)
