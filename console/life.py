"""One request's life, read from the kept records: its steps, its slow gaps and who made them. No drawing here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from schedtop.console import enough, text
from schedtop.console.history import History, Moment
from schedtop.console.latency import merge
from schedtop.console.state import (
    ACCEPTED,
    BLOCKS,
    COMPUTED,
    DRAFTS,
    EMITTED,
    FLAGS,
    NEEDED,
    NUMBER,
    TOKENS,
    Tracked,
)
from schedtop.engine.telemetry import Arrival, Finish, IntArray, Preemption, RowFlag, StepRecord, row_matrix

STALL_FACTOR = 3.0
"""A gap is slow above this many medians of the window where no SLO is given."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One step the request was in. `gap_s` is the time since its previous delivery, None where there is none."""

    seq: int
    step: int
    start_s: float
    end_s: float
    tokens: int
    drafts: int
    accepted: int
    computed: int
    needed: int
    emitted: int
    blocks: int
    decode: bool
    gap_s: float | None
    batch_tokens: int
    budget: int


@dataclass(frozen=True, slots=True)
class Blame:
    """A slow gap and what made it long, or a step in which this request made others wait."""

    seq: int
    step: int
    seconds: float
    words: str
    caused: bool = False


@dataclass(slots=True)
class Life:
    """What is known of a request up to a moment. Times are on the engine's clock; None is not (yet) known.

    `lost` holds its own preemptions, `took` those made to give it room; `complete` is False when its first steps
    are no longer kept.
    """

    number: int
    arrival: Arrival
    tracked: Tracked | None
    finish: Finish | None
    until_s: float
    visits: list[Visit] = field(default_factory=list)
    lost: list[tuple[StepRecord, Preemption]] = field(default_factory=list)
    took: list[tuple[StepRecord, Preemption]] = field(default_factory=list)
    blames: list[Blame] = field(default_factory=list)
    complete: bool = True
    slow_s: float = math.inf

    @property
    def queue_s(self) -> float | None:
        if self.finish is not None:
            return self.finish.queue_s
        if self.tracked is None or self.tracked.first_scheduled_s is None:
            return None
        return self.tracked.first_scheduled_s - self.arrival.arrival_s

    @property
    def ttft_s(self) -> float | None:
        if self.finish is not None:
            return self.finish.ttft_s
        return self.tracked.ttft_s if self.tracked is not None else None

    @property
    def requeued_s(self) -> float:
        if self.finish is not None:
            return self.finish.requeued_s
        if self.tracked is None:
            return 0.0
        waits = self.tracked.waiting and self.tracked.preemptions
        return self.tracked.requeued_s + (self.until_s - self.tracked.queued_since_s if waits else 0.0)

    @property
    def preemptions(self) -> int:
        if self.finish is not None:
            return self.finish.preemptions
        return self.tracked.preemptions if self.tracked is not None else 0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed again; for a live request, what its preemptions threw away."""
        if self.finish is not None:
            return self.finish.recomputed_tokens
        return sum(preemption.lost_tokens for _, preemption in self.lost)

    @property
    def slow_gaps(self) -> list[Visit]:
        return [visit for visit in self.visits if visit.gap_s is not None and visit.gap_s > self.slow_s]

    def split(self) -> list[tuple[str, float]]:
        """The life so far as named parts in order, which add up to its length."""
        age_s = self.until_s - self.arrival.arrival_s
        queue_s = self.queue_s
        if queue_s is None:
            return [("queue", max(0.0, age_s))]
        ttft_s = self.ttft_s
        requeued_s = self.requeued_s
        prefill_s = (age_s if ttft_s is None else ttft_s) - queue_s
        decode_s = 0.0 if ttft_s is None else age_s - ttft_s
        before = min(requeued_s, self._requeued_before_first_token())
        return [
            ("queue", queue_s),
            ("prefill", max(0.0, prefill_s - before)),
            ("decode", max(0.0, decode_s - (requeued_s - before))),
            ("re-queued", requeued_s),
        ]

    def _requeued_before_first_token(self) -> float:
        """How much of the re-queued time lies before the first token."""
        ttft_s = self.ttft_s
        if ttft_s is None:
            return math.inf
        first_s = self.arrival.arrival_s + ttft_s
        waits = [
            max(0.0, min(after.start_s, first_s) - before.end_s)
            for before, after in pairwise(self.visits)
            if any(before.seq < record.seq <= after.seq for record, _ in self.lost)
        ]
        return sum(waits)


def read_life(history: History, moment: Moment, number: int, slo_s: float | None = None) -> Life | None:
    """The life of a request up to `moment`; None if nothing is known of it."""
    tracked = moment.state.requests.get(number)
    ended = history.finished.get(number)
    if tracked is None and ended is None:
        return None
    arrival = tracked.arrival if tracked is not None else ended[0] if ended is not None else None
    assert arrival is not None
    finish = ended[1] if tracked is None and ended is not None else None
    life = Life(number, arrival, tracked, finish, moment.clock_s)
    if finish is not None and finish.e2e_s is not None:
        life.until_s = arrival.arrival_s + finish.e2e_s
    records = list(history.between_times(arrival.arrival_s, moment.seq))
    first = history.records[0] if history.records else None
    life.complete = first is None or first.step <= 1 or first.start_s <= arrival.arrival_s
    for record in records:
        _visit(life, record)
    life.slow_s = slo_s if slo_s is not None else _usual_gap(history, moment) * STALL_FACTOR
    life.blames = sorted(_blames(life, history, records), key=lambda blame: blame.seq)
    return life


def _usual_gap(history: History, moment: Moment) -> float:
    """The median ITL of the last minute; infinite of too few."""
    median = enough.quantile(merge(history.latency_columns("itl", moment, 60.0, 60)), 0.5)
    return math.inf if median is None else median


def _visit(life: Life, record: StepRecord) -> None:
    for preemption in record.preemptions:
        if preemption.number == life.number:
            life.lost.append((record, preemption))
        if preemption.for_number == life.number and preemption.number != life.number:
            life.took.append((record, preemption))
    if not record.rows:
        return
    rows = row_matrix(record)
    found = np.flatnonzero(rows[NUMBER] == life.number)
    if not len(found):
        return
    index = int(found[0])
    row = rows[:, index].tolist()
    gap_s = float(np.frombuffer(record.itl_s, dtype=np.float32)[index])
    life.visits.append(
        Visit(
            seq=record.seq,
            step=record.step,
            start_s=record.start_s,
            end_s=record.end_s,
            tokens=row[TOKENS],
            drafts=row[DRAFTS],
            accepted=row[ACCEPTED],
            computed=row[COMPUTED],
            needed=row[NEEDED],
            emitted=row[EMITTED],
            blocks=row[BLOCKS],
            decode=bool(row[FLAGS] & RowFlag.DECODE),
            gap_s=None if math.isnan(gap_s) else gap_s,
            batch_tokens=record.scheduled_tokens,
            budget=record.token_budget,
        )
    )


def _blames(life: Life, history: History, records: list[StepRecord]) -> Iterator[Blame]:
    by_seq = {record.seq: index for index, record in enumerate(records)}
    delivered = -1
    for visit in life.visits:
        index = by_seq[visit.seq]
        if visit.gap_s is not None and visit.gap_s > life.slow_s and delivered >= 0:
            words = _why(life, history, records[delivered + 1 : index + 1])
            yield Blame(visit.seq, visit.step, visit.gap_s, words)
        if visit.emitted:
            delivered = index
        yield from _harm(life, visit, records[index])
    for record, preemption in life.took:
        lost = text.plural(preemption.lost_tokens, "token")
        words = f"took the room of {history.name(preemption.number)}: {lost} to compute again"
        yield Blame(record.seq, record.step, record.end_s - record.start_s, words, caused=True)


def _why(life: Life, history: History, span: list[StepRecord]) -> str:
    """What happened between two deliveries, the strongest cause first."""
    for record, preemption in life.lost:
        if span and span[0].seq <= record.seq <= span[-1].seq:
            by, lost = history.name(preemption.for_number), text.plural(preemption.lost_tokens, "token")
            return f"preempted for {by} at step {record.step}: {lost} computed again"
    if not span:
        return "its steps are no longer kept"
    still_s = max((b.start_s - a.end_s for a, b in pairwise(span)), default=0.0)
    longest = max(span, key=lambda record: record.end_s - record.start_s)
    if still_s > longest.end_s - longest.start_s:
        return f"no step ran for {text.ms(still_s)} ms"
    starved = sum(_starved(record, life.number) for record in span)
    if starved:
        return f"{text.plural(starved, 'step')} gave it no token: the budget went to others"
    return _step_cause(life, history, longest)


def _starved(record: StepRecord, number: int) -> bool:
    rows = row_matrix(record)
    return bool(((rows[NUMBER] == number) & (rows[TOKENS] == 0)).any())


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
    if visit.decode or visit.tokens < 2:
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


def sharers(moment: Moment, number: int) -> list[tuple[int, int]]:
    """Who else holds blocks of this request, as (number, blocks), the most first."""
    tables = moment.state.tables
    mine = tables.get(number)
    if not mine or not len(moment.state.classes):
        return []
    held = np.zeros(len(moment.state.classes), dtype=bool)
    blocks = np.frombuffer(mine, dtype=np.int32)
    held[blocks[blocks >= 0]] = True
    found = []
    for other, table in tables.items():
        if other != number:
            theirs = np.frombuffer(table, dtype=np.int32)
            common = int(held[theirs[theirs >= 0]].sum())
            if common:
                found.append((other, common))
    return sorted(found, key=lambda pair: -pair[1])
