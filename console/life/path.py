"""A request's path through the records: the steps it was in, and what it did between them. No drawing here."""

from __future__ import annotations

import math
import struct

from schedtop.console.life.phases import Spans, phase_of_row
from schedtop.console.life.request_life import RequestLife, Visit
from schedtop.console.past.state import (
    ACCEPTED,
    BLOCKS,
    COMPUTED,
    DRAFTS,
    EMITTED,
    FLAGS,
    NEEDED,
    TOKENS,
)
from schedtop.engine.contract.telemetry import ROW_FIELDS, RowFlag, StepRecord

_GAP = struct.Struct("<f")


class Walk:
    """Goes through the records once and notes in the life what they say about it.

    `phase` is what the request is doing until a record says otherwise. Time between two steps goes to the later one.
    """

    def __init__(self, life: RequestLife) -> None:
        self.life = life
        self.seq = -1
        self.end_s = life.arrival.arrival_s
        self.phase = "queue"
        self.line = Spans(life.arrival.arrival_s)
        self.delivered = 0  # spans up to the last delivery
        self.high = 0  # most tokens it had computed before a preemption
        self.ended = False
        self._open = self.line, self.phase

    def through(self, records: list[StepRecord], since_arrival: bool) -> list[StepRecord]:
        """Continue with newer records; those up to its end. `since_arrival`: the first could be the first of it."""
        self.line, self.phase = self._open
        self.line.until_s = self.life.until_s
        for place, record in enumerate(records):
            if record.seq != self.seq + 1 and not (self.seq < 0 and since_arrival):
                self._lose(record.start_s)
            self.seq, self.end_s = record.seq, record.end_s
            self._take(record)
            if self.ended:
                records = records[: place + 1]
                break
        self._open = self.line, self.phase
        return records

    def close(self) -> None:
        """Fill the time up to the life's end; records that come later continue from before that."""
        self.line, self.phase = self._open
        self.line.until_s = self.life.until_s
        self.line = self.line.copy()
        if self.seq < 0 or (self.life.finish is not None and not self.ended):
            self._lose(self.life.until_s)
        self._close()
        self.life.spans = self.line.spans

    def _lose(self, until_s: float) -> None:
        """No record describes the time up to then, but how long it queued is known."""
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
        self.ended |= any(finish.number == life.number for finish in record.finishes)
        for preemption in record.preemptions:
            if preemption.number == life.number:
                life.lost.append((record, preemption))
                self.high = max(self.high, preemption.lost_tokens)
                self._wait(_planned_s(record))
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
        """Up to the plan of a step, if the request did not run just before."""
        planned_s = _planned_s(record)
        if visit.flags & RowFlag.RESUMED and self.phase == "unknown":
            waited_s = [item.waited_s for item in record.admissions if item.number == self.life.number]
            self._wait(planned_s - sum(waited_s))
        if self.phase in ("queue", "re-queued", "unknown"):
            self.line.to(planned_s, self.phase)

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


def _planned_s(record: StepRecord) -> float:
    """A request waits until its step is planned, which may be while the one before runs."""
    return record.start_s if record.planned_s is None else record.planned_s


def _visit(life: RequestLife, record: StepRecord) -> Visit | None:
    """The request's row of a step."""
    if not record.rows:
        return None
    at, size = _place(record.rows, life.number), len(record.rows) // len(ROW_FIELDS)
    if at is None:
        return None
    row = memoryview(record.rows).cast("i")[at :: size // 4].tolist()
    (gap_s,) = _GAP.unpack_from(record.itl_s, 4 * at)
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
        batch_rows=size // 4,
    )


def _place(rows: bytes, number: int) -> int | None:
    """Which row of a step is the request's. Tens of thousands are looked through, and numpy takes ten times as long."""
    sought, last = number.to_bytes(4, "little", signed=True), len(rows) // len(ROW_FIELDS)
    at = rows.find(sought, 0, last)
    while at >= 0 and at % 4:  # the bytes of two neighbours
        at = rows.find(sought, at + 1, last)
    return at // 4 if at >= 0 else None
