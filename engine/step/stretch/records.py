"""The records of a leg's steps, as single steps give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import ROW_FIELDS, RowFlag, StepRecord, Totals
from schedtop.engine.kv.block_pool import HELD, in_order
from schedtop.engine.scheduler.books.request_table import IntArray
from schedtop.engine.scheduler.books.state import PlannedBatch
from schedtop.engine.step.describe import growth, packed
from schedtop.engine.step.observer import counted_as
from schedtop.engine.step.stretch.leg import Foreseen, Leg, StepUnderWay, gained, limiter_of

NUMBER, TOKENS, EMITTED, FLAGS = (ROW_FIELDS.index(name) for name in ("request", "tokens", "emitted", "flags"))


def records_of_leg(leg: Leg, common: StepRecord, slots: int) -> Iterator[StepRecord]:
    """The record of every step that is told in a leg. `common`: what all of a stretch share."""
    course, before, turns_s = leg.course, leg.before, leg.course.times.turns_s.tolist()
    busy_s, outputs, since, more = before.totals.busy_s, 0, 0, Counter[str]()
    changed, endings = dict(before.changed), {ending.turn: ending for ending in course.endings}
    for count, turn in enumerate(leg.turns_reported, 1):
        start_s, end_s = turns_s[turn : turn + 2]
        step = leg.step_reported(turn)
        rows, record = _planned(step, common)
        tokens, num_busy = int(np.add.reduce(rows[TOKENS])), int(np.count_nonzero(rows[TOKENS]))
        busy_s, outputs = busy_s + (end_s - start_s), outputs + int(np.count_nonzero(rows[EMITTED]))
        reported = (
            leg.reported[turn] if turn < len(leg.reported) else StepUnderWay(step, leg.head, leg.oldest_queued_s)
        )
        more.update(reported.gained)
        changed |= dict.fromkeys(course.new_blocks[course.blocks_grown(since, turn)], HELD)
        since = turn + 1
        record = msgspec.structs.replace(
            record,
            seq=before.seq + count,
            step=before.step + count,
            start_s=start_s,
            end_s=end_s,
            execute_s=course.times.executed_in(turn),
            scheduled_tokens=tokens,
            input_rows=tokens + num_busy * slots,
            rows=rows.tobytes(),
            itl_s=_gaps_of(rows, leg, turn),
            ttft_s=reported.first_tokens,
            running=int(np.count_nonzero(course.rows_in(turn + 1))),
            waiting=before.waiting,
            deferred=before.deferred,
            oldest_wait_s=None if reported.oldest_queued_s is None else end_s - reported.oldest_queued_s,
            head=reported.head,
            blocks=leg.blocks_at(turn, common.blocks.watermark),
        )
        if count == 1:
            record = _opening(record, leg)
        if (ending := endings.get(turn)) is not None:
            more.update(map(counted_as, ending.finishes))
            changed |= ending.changed
            record = msgspec.structs.replace(record, head=ending.head, finishes=tuple(ending.finishes))
        yield msgspec.structs.replace(
            record,
            changed_blocks=packed(in_order(changed)),
            totals=_totals_after(leg, gained(count, outputs, slots, common), more, busy_s),
        )
        changed = {}


def _planned(step: PlannedBatch | Foreseen, common: StepRecord) -> tuple[IntArray, StepRecord]:
    """The rows of a step, and what of its record was known when it was planned."""
    return _begun(step, common) if isinstance(step, PlannedBatch) else _foreseen(step, common)


def _foreseen(step: Foreseen, common: StepRecord) -> tuple[IntArray, StepRecord]:
    course, rows = step.course, step.columns()
    rows[EMITTED] = rows[TOKENS]
    grown, blocks = step.grown()
    return rows, msgspec.structs.replace(
        common,
        planned_s=step.planned_s,
        decode_tokens=int(np.add.reduce(rows[TOKENS])),
        limiter=limiter_of(course.outlook.head).value,
        blocks_in_use=course.blocks_in_use(step.turn),
        grown=np.stack([grown, np.ones_like(grown)], axis=1).tobytes(),
        grown_blocks=packed(blocks),
    )


def _begun(batch: PlannedBatch, common: StepRecord) -> tuple[IntArray, StepRecord]:
    planned, rows = batch.planned, batch.columns.copy()
    rows[EMITTED] = rows[FLAGS] & RowFlag.SAMPLED > 0
    grown, grown_blocks, grown_groups = growth(planned, set())
    return rows, msgspec.structs.replace(
        common,
        planned_s=planned.now_s,
        decode_tokens=planned.decode_tokens,
        prefill_tokens=int(np.add.reduce(rows[TOKENS])) - planned.decode_tokens,
        limiter=planned.limiter.value,
        admissions=tuple(planned.admissions),
        blocks_in_use=planned.blocks_in_use,
        grown=grown,
        grown_blocks=grown_blocks,
        grown_groups=grown_groups,
    )


def _gaps_of(rows: IntArray, leg: Leg, turn: int) -> bytes:
    """Those of a step's rows, which may have been others than the leg's when it was planned."""
    gaps_s = dict(zip(leg.course.columns[NUMBER].tolist(), leg.gaps_in(turn), strict=True))
    own_s = [gaps_s.get(number, np.nan) for number in rows[NUMBER].tolist()]
    return np.where(rows[TOKENS] > 0, own_s, np.nan).astype(np.float32).tobytes()


def _totals_after(leg: Leg, decoded: dict[str, int], more: Counter[str], busy_s: float) -> Totals:
    totals, both = leg.before.totals, Counter(decoded) + more
    return msgspec.structs.replace(
        totals, busy_s=busy_s, **{name: getattr(totals, name) + count for name, count in both.items()}
    )


def _opening(record: StepRecord, leg: Leg) -> StepRecord:
    """The first step's record, with what happened before it."""
    events = leg.before.events
    return msgspec.structs.replace(
        record,
        arrivals=tuple(events.arrivals),
        refusals=tuple(events.refusals),
        paused_by=events.paused_by,
        deferrals=leg.before.deferrals,
    )
