"""One request's life, read from the kept records: its steps, its slow gaps and who made them. No drawing here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from schedtop.console import enough
from schedtop.console.blame import Blame, read_blames
from schedtop.console.history import History, Moment
from schedtop.console.latency import merge
from schedtop.console.phases import Span, Timeline, phase_of_row, totals
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
from schedtop.engine.telemetry import Arrival, Finish, Preemption, RowFlag, StepRecord, row_matrix

STALL_FACTOR = 3.0
"""A gap is slow above this many medians of the window where no SLO is given."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One step the request was running in. `gap_s` is the time since its previous delivery, None if it has none.

    `phase` is one of `phases.PHASES`; `flags` are `RowFlag` bits.
    """

    seq: int
    step: int
    start_s: float
    end_s: float
    phase: str
    tokens: int
    drafts: int
    accepted: int
    computed: int
    needed: int
    emitted: int
    blocks: int
    flags: int
    gap_s: float | None
    batch_tokens: int
    budget: int


@dataclass(slots=True)
class Life:
    """What is known of a request up to a moment. Times are on the engine's clock; None is not (yet) known.

    `spans` reach from its arrival to `until_s`: the moment, or its last token. `lost` holds its own preemptions,
    `took` those made to give it room. `blocks` are those it holds, `sharers` who else does, as (number, blocks).
    """

    number: int
    arrival: Arrival
    tracked: Tracked | None
    finish: Finish | None
    until_s: float
    visits: list[Visit] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    lost: list[tuple[StepRecord, Preemption]] = field(default_factory=list)
    took: list[tuple[StepRecord, Preemption]] = field(default_factory=list)
    blames: list[Blame] = field(default_factory=list)
    slow_s: float = math.inf
    outputs: int = 0
    last_token_s: float | None = None
    again_tokens: int = 0
    blocks: int = 0
    sharers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """False where no record tells what it did for a while."""
        return not any(span.phase == "unknown" for span in self.spans)

    @property
    def length_s(self) -> float:
        return max(0.0, self.until_s - self.arrival.arrival_s)

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
    def tpot_s(self) -> float | None:
        """As of its last token."""
        if self.finish is not None:
            return self.finish.tpot_s
        ttft_s, last_s = self.ttft_s, self.last_token_s
        if ttft_s is None or last_s is None or self.outputs < 2:
            return None
        return (last_s - self.arrival.arrival_s - ttft_s) / (self.outputs - 1)

    @property
    def preemptions(self) -> int:
        if self.finish is not None:
            return self.finish.preemptions
        return self.tracked.preemptions if self.tracked is not None else 0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed again; of a live request, as far as its steps are kept."""
        return self.finish.recomputed_tokens if self.finish is not None else self.again_tokens

    @property
    def open_gap_s(self) -> float | None:
        """Since when a live request that had its first token got no other; None before that."""
        if self.finish is not None or self.last_token_s is None:
            return None
        return self.until_s - self.last_token_s

    @property
    def open_is_slow(self) -> bool:
        return (self.open_gap_s or 0.0) > self.slow_s

    @property
    def slow_gaps(self) -> list[Visit]:
        """The steps that ended a slow gap."""
        return [visit for visit in self.visits if visit.gap_s is not None and visit.gap_s > self.slow_s]

    def split(self) -> dict[str, float]:
        """Seconds of each phase, which add up to the life's length."""
        return totals(self.spans)


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
    records = list(history.between_times(arrival.arrival_s, moment.seq))
    if finish is not None:
        records, life.until_s = _up_to_end(finish, arrival, records)
    life.slow_s = slo_s if slo_s is not None else _usual_gap(history, moment) * STALL_FACTOR
    first = history.records[0] if history.records else None
    since_arrival = first is None or first.step <= 1 or first.start_s <= arrival.arrival_s
    Walk(life).through(records, since_arrival)
    life.blames = sorted(read_blames(life, history, records), key=lambda blame: blame.seq)
    life.blocks = len(moment.state.tables.get(number, b"")) // 4
    life.sharers = sharers(moment, number)
    return life


def _up_to_end(finish: Finish, arrival: Arrival, records: list[StepRecord]) -> tuple[list[StepRecord], float]:
    """The records up to the one that tells of the end, and when the life ended: with its last token if it had one."""
    for index, record in enumerate(records):
        if record.finishes and any(item.number == finish.number for item in record.finishes):
            records = records[: index + 1]
            break
    if finish.e2e_s is not None:
        return records, arrival.arrival_s + finish.e2e_s
    return records, records[-1].end_s if records else arrival.arrival_s


def _usual_gap(history: History, moment: Moment) -> float:
    """The median ITL of the last minute; infinite of too few."""
    median = enough.quantile(merge(history.latency_columns("itl", moment, 60.0, 60)), 0.5)
    return math.inf if median is None else median


class Walk:
    """Goes through the records once and notes in the life what they tell of it.

    `phase` is what the request is doing until a record tells otherwise. Time between two steps goes to the later one.
    """

    def __init__(self, life: Life) -> None:
        self.life = life
        self.line = Timeline(life.arrival.arrival_s, life.until_s)
        self.phase = "queue"
        self.delivered = 0  # spans up to the last delivery
        self.high = 0  # most tokens it had computed before a preemption
        life.spans = self.line.spans

    def through(self, records: list[StepRecord], since_arrival: bool) -> None:
        """`since_arrival`: the first record is the first that could tell of it."""
        expected = records[0].seq if records and since_arrival else None
        for record in records:
            if record.seq != expected:
                self._lose(record.start_s)
            expected = record.seq + 1
            self._take(record)
        if not self._is_told(records):
            self._lose(self.life.until_s)
        self._close()

    def _is_told(self, records: list[StepRecord]) -> bool:
        """Whether the records reach up to the end of what is shown."""
        number = self.life.number
        ended = any(finish.number == number for record in records[-1:] for finish in record.finishes)
        return bool(records) if self.life.finish is None else ended

    def _lose(self, until_s: float) -> None:
        """No record tells of the time up to then, but how long it queued is known."""
        life = self.life
        if self.phase == "queue":
            queue_s, tracked = life.queue_s, life.tracked
            never_ran = tracked is None or (tracked.waiting and not tracked.preemptions)
            queued_s = queue_s if queue_s is not None else math.inf if never_ran else 0.0
            left_s = life.arrival.arrival_s + queued_s
            self.line.to(min(until_s, left_s), "queue")
            if until_s <= left_s:
                return
        self.line.to(until_s, "unknown")
        self.phase = "unknown"

    def _take(self, record: StepRecord) -> None:
        life = self.life
        for preemption in record.preemptions:
            if preemption.number == life.number:
                life.lost.append((record, preemption))
                self.high = max(self.high, preemption.lost_tokens)
                self._wait(record.start_s)
            elif preemption.for_number == life.number:
                life.took.append((record, preemption))
        visit = _visit(life, record)
        if visit is not None:
            life.visits.append(visit)
            self._begin(visit, record)
            self._run(visit)

    def _wait(self, since_s: float) -> None:
        if self.phase != "re-queued":
            self.line.to(since_s, self.phase)
            self.phase = "re-queued"

    def _begin(self, visit: Visit, record: StepRecord) -> None:
        """Up to the start of a step, if the request did not run just before."""
        if visit.flags & RowFlag.RESUMED and self.phase == "unknown":
            waited_s = [item.waited_s for item in record.admissions if item.number == self.life.number]
            self._wait(visit.start_s - sum(waited_s))
        if self.phase in ("queue", "re-queued", "unknown"):
            self.line.to(visit.start_s, self.phase)

    def _run(self, visit: Visit) -> None:
        life = self.life
        self.line.to(visit.end_s, visit.phase)
        self.phase = visit.phase
        life.again_tokens += max(0, min(self.high, visit.computed + visit.tokens) - visit.computed)
        if visit.emitted:
            if visit.gap_s is not None and visit.gap_s > life.slow_s:
                self.line.stall(self.delivered, life.slow_s)
            self.delivered = len(self.line.spans)
            life.last_token_s = visit.end_s

    def _close(self) -> None:
        """From the last record to the end."""
        life, tracked = self.life, self.life.tracked
        last = life.visits[-1] if life.visits else None
        if last is not None:
            life.outputs = last.needed + last.emitted - life.arrival.prompt_tokens
        elif tracked is not None:
            life.outputs = tracked.output_tokens
        if tracked is not None:
            life.last_token_s = tracked.last_token_s if life.last_token_s is None else life.last_token_s
            if tracked.waiting and tracked.preemptions:
                self._wait(tracked.queued_since_s)
        self.line.to(life.until_s, self.phase)
        if life.open_is_slow:
            self.line.stall(self.delivered, life.slow_s)


def _visit(life: Life, record: StepRecord) -> Visit | None:
    """The request's row of a step."""
    if not record.rows:
        return None
    rows = row_matrix(record)
    found = np.flatnonzero(rows[NUMBER] == life.number)
    if not len(found):
        return None
    index = int(found[0])
    row = rows[:, index].tolist()
    gap_s = float(np.frombuffer(record.itl_s, dtype=np.float32)[index])
    decode = bool(row[FLAGS] & RowFlag.DECODE)
    return Visit(
        seq=record.seq,
        step=record.step,
        start_s=record.start_s,
        end_s=record.end_s,
        phase=phase_of_row(row[TOKENS], decode, row[NEEDED], life.arrival.prompt_tokens),
        tokens=row[TOKENS],
        drafts=row[DRAFTS],
        accepted=row[ACCEPTED],
        computed=row[COMPUTED],
        needed=row[NEEDED],
        emitted=row[EMITTED],
        blocks=row[BLOCKS],
        flags=row[FLAGS],
        gap_s=None if math.isnan(gap_s) else gap_s,
        batch_tokens=record.scheduled_tokens,
        budget=record.token_budget,
    )


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
