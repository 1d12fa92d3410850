"""A request's slow gaps and their causes, and the steps in which it delayed others. No drawing here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from schedtop.console.drawing import text
from schedtop.console.life.request_life import Blame, RequestLife, Visit
from schedtop.console.past.past import Past
from schedtop.console.past.state import FLAGS, NUMBER, TOKENS
from schedtop.engine.contract.reading import IntArray, row_matrix
from schedtop.engine.contract.telemetry import Limiter, Preemption, RowFlag, StepRecord

MOST_COUNTED = 512
"""Steps examined for which requests got the tokens."""


class Blamer:
    """Reads the blames of a life as it continues."""

    def __init__(self, life: RequestLife) -> None:
        self.life = life
        self._found: list[Blame] = []
        self._num_visits = 0
        self._num_took = 0
        self._delivered = -1  # the visit that brought the last token
        self._first_seq: int | None = None

    def through(self, history: Past, records: list[StepRecord]) -> None:
        """Continue with the records that came since, after the life did."""
        life = self.life
        if self._first_seq is None and records:
            self._first_seq = records[0].seq
        places = {record.seq: place for place, record in enumerate(records)}
        for index in range(self._num_visits, len(life.visits)):
            visit = life.visits[index]
            if visit.gap_s is not None and visit.gap_s > life.slow_s:
                words = self._why(history, records, index, visit.seq)
                self._found.append(Blame(visit.seq, visit.step, visit.gap_s, words))
            if visit.emitted:
                self._delivered = index
            self._found += _harm(life, visit, records[places[visit.seq]])
        self._found += (_taken(history, *item) for item in life.took[self._num_took :])
        self._num_visits, self._num_took = len(life.visits), len(life.took)

    def close(self, history: Past, last: int) -> None:
        """Put the blames into the life, with that of a gap that is open at seq `last`."""
        life, blames = self.life, self._found.copy()
        if life.open_is_slow:
            words = self._why(history, [], len(life.visits) - 1, last)
            blames.append(Blame(last, life.step, life.open_gap_s or 0.0, f"no token since: {words}"))
        life.blames = sorted(blames, key=lambda blame: blame.seq)

    def _why(self, history: Past, records: list[StepRecord], last_visit: int, last: int) -> str:
        """What made the time since the last delivery long, up to a visit and a seq."""
        visits = self.life.visits[self._delivered + 1 : last_visit + 1]
        starved = {visit.seq for visit in visits if visit.phase == "starved"}
        return _cause(self.life, history, self._since_delivery(history, records, last), starved)

    def _since_delivery(self, history: Past, records: list[StepRecord], last: int) -> list[StepRecord]:
        """The kept records after the one that brought the last token, up to seq `last`."""
        visits = self.life.visits
        first = visits[self._delivered].seq + 1 if self._delivered >= 0 else self._first_seq or 0
        if not records or first < records[0].seq:
            return list(history.between(first, last))
        return records[bisect_left(records, first, key=_seq) : bisect_left(records, last + 1, key=_seq)]


def _seq(record: StepRecord) -> int:
    return record.seq


def _taken(history: Past, record: StepRecord, preemption: Preemption) -> Blame:
    lost = text.plural(preemption.lost_tokens, "token")
    again = "swapped out" if preemption.swapped else "to compute again"
    words = f"took the room of {history.name(preemption.number)}: {lost} {again}"
    return Blame(record.seq, record.step, record.end_s - record.start_s, words, caused=True)


def _cause(life: RequestLife, history: Past, span: list[StepRecord], starved: set[int]) -> str:
    """What happened between two deliveries, the strongest cause first. `starved`: seqs of steps that gave nothing."""
    for record, preemption in life.lost:
        if span and span[0].seq <= record.seq <= span[-1].seq:
            by, lost = history.name(preemption.for_number), text.plural(preemption.lost_tokens, "token")
            gone = "swapped out" if preemption.swapped else "thrown away"
            return f"preempted for {by} at step {record.step}: {lost} {gone}"
    if not span:
        return "its steps are no longer kept"
    still_s = max((b.start_s - a.end_s for a, b in pairwise(span)), default=0.0)
    longest = max(span, key=lambda record: record.end_s - record.start_s)
    if still_s > longest.end_s - longest.start_s:
        return f"no step ran for {text.ms_unit(still_s)}"
    without = [record for record in span if record.seq in starved]
    if without:
        return _budget_cause(history, without)
    return _step_cause(life, history, longest)


def _budget_cause(history: Past, records: list[StepRecord]) -> str:
    """Which requests got the tokens of steps that gave this one none."""
    rows = np.concatenate([row_matrix(record) for record in records[-MOST_COUNTED:]], axis=1)
    numbers, places = np.unique(rows[NUMBER], return_inverse=True)
    tokens_of = np.bincount(places, weights=rows[TOKENS]).astype(np.int64).tolist()
    who = [(number, tokens) for number, tokens in zip(numbers.tolist(), tokens_of, strict=True) if tokens]
    who.sort(key=lambda pair: -pair[1])
    named = [f"{history.name(number)} ({text.plural(tokens, 'token')})" for number, tokens in who[:2]]
    more = [f"{len(who) - 2} more"] if len(who) > 2 else []
    last = records[-1]
    by_input = last.limiter == Limiter.INPUT_BUDGET
    budget = f"input budget of {last.input_budget}" if by_input else f"budget of {last.token_budget}"
    steps = text.plural(len(records), "step")
    return f"{steps} gave it no token: the {budget} went to {', '.join(named + more) or 'nobody'}"


def _step_cause(life: RequestLife, history: Past, record: StepRecord) -> str:
    """Which requests' tokens made a step long."""
    took = f"step {record.step} took {text.ms_unit(record.end_s - record.start_s)}"
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


def _harm(life: RequestLife, visit: Visit, record: StepRecord) -> Iterator[Blame]:
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
