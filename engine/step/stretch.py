"""A stretch: steps in which nothing but decoding happens, computed together, every figure as single steps give it.

Only a simulated device's steps are known before they run. Between the steps of a stretch there is no state to look
at: whoever needs that, as a recording does for its keyframes, takes single steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import (
    ROW_FIELDS,
    Blocks,
    Finish,
    Head,
    Limiter,
    RowFlag,
    StepRecord,
    Totals,
)
from schedtop.engine.kv.block_pool import HELD, in_order
from schedtop.engine.scheduler.books.request_table import COLUMNS, IntArray
from schedtop.engine.scheduler.decodes import Floats, Gaps, Needs, block_needs, decode, decodes_ahead, take_blocks
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.observer import packed

FEWEST_STEPS = 2
"""Fewer are as quick one by one."""
MOST_OUTPUTS = 1 << 16
"""Of one stretch: bounds its memory, and how long nobody hears of it."""

BEFORE = ROW_FIELDS.index("computed")
"""`needed` comes next."""
BLOCKS = ROW_FIELDS.index("blocks")
DECODED = {"tokens": 1, "drafts": 0, "accepted": 0, "emitted": 1, "flags": int(RowFlag.DECODE | RowFlag.SAMPLED)}
"""What a row's record says of a step that decodes one token."""


class Stretch(msgspec.Struct, frozen=True):
    """What some steps came to. A `Report` takes it in place of their records.

    `common`: what their records share; `seq`, `step`, `blocks` and `totals` are those before the first. `columns`:
    the request table then. `times_s`: the start of each step, and the end of the last. `new_blocks[i]` went to row
    `needs.rows[i]`. `itl_s`: float32 (steps, rows). All below is as the last step left it; a request finishes in no
    other.
    """

    common: StepRecord
    columns: IntArray
    times_s: Floats
    needs: Needs
    new_blocks: list[int]
    itl_s: bytes
    oldest_queued_s: float | None

    head: Head | None
    running: int
    last_blocks: Blocks
    changes: dict[int, int]
    finishes: list[Finish]
    totals: Totals

    @property
    def end_s(self) -> float:
        return self.times_s.item(-1)

    @property
    def ttft_s(self) -> tuple[tuple[int, float], ...]:
        """Nobody gets a first token."""
        return ()

    @property
    def blocks(self) -> Blocks:
        """The pool after the last step."""
        return self.last_blocks

    @property
    def blocks_in_use(self) -> int:
        """Held and shared blocks after the last scheduling: nobody frees any before."""
        return self.common.blocks.held + self.common.blocks.shared + len(self.new_blocks)

    def records(self) -> Iterator[StepRecord]:
        """The record of every step."""
        common, steps, size = self.common, self.needs.steps, self.columns.shape[1]
        busy_s, oldest_s, width = common.totals.busy_s, self.oldest_queued_s, 4 * size
        rows, times_s = self._first_rows(), self.times_s.tolist()
        ends = self.needs.at.searchsorted(np.arange(1, steps + 1)).tolist()
        for step, (start_s, end_s, end) in enumerate(zip(times_s, times_s[1:], ends, strict=False)):
            begin = ends[step - 1] if step else 0
            grown, new_blocks = self.needs.rows[begin:end], self.new_blocks[begin:end]
            rows[BLOCKS, grown] += 1
            busy_s += end_s - start_s
            blocks = _taken(common.blocks, end, (step + 1) * size)
            record = msgspec.structs.replace(
                common,
                seq=common.seq + step + 1,
                step=common.step + step + 1,
                start_s=start_s,
                end_s=end_s,
                planned_s=start_s,
                execute_s=end_s - start_s,
                rows=rows.tobytes(),
                itl_s=self.itl_s[step * width : (step + 1) * width],
                oldest_wait_s=None if oldest_s is None else end_s - oldest_s,
                blocks=blocks,
                blocks_in_use=blocks.held + blocks.shared,
                changed_blocks=packed(in_order(dict.fromkeys(new_blocks, HELD))),
                grown=np.stack([rows[0, grown], np.ones_like(grown)], axis=1).astype(np.int32).tobytes(),
                grown_blocks=packed(new_blocks),
                totals=_counted(common, step + 1, busy_s),
            )
            yield record if step < steps - 1 else self._closing(record)
            rows[BEFORE : BEFORE + 2] += 1

    def _first_rows(self) -> IntArray:
        rows = self.columns[: len(ROW_FIELDS)].copy()
        for before, now in (("computed", "num_computed"), ("needed", "num_tokens")):
            rows[ROW_FIELDS.index(before)] = self.columns[COLUMNS.index(now)]
        for name, value in DECODED.items():
            rows[ROW_FIELDS.index(name)] = value
        return rows

    def _closing(self, record: StepRecord) -> StepRecord:
        """The last step's record, after requests that it finished have left."""
        return msgspec.structs.replace(
            record,
            head=self.head,
            running=self.running,
            blocks=self.last_blocks,
            changed_blocks=packed(in_order(self.changes)),
            finishes=tuple(self.finishes),
            totals=self.totals,
        )


def _taken(blocks: Blocks, count: int, outputs: int) -> Blocks:
    """The pool after so many blocks more were taken, and outputs stored."""
    evicted = max(count - blocks.empty, 0)
    return msgspec.structs.replace(
        blocks,
        held=blocks.held + count,
        cached_free=blocks.cached_free - evicted,
        empty=blocks.empty - (count - evicted),
        stored_tokens=blocks.stored_tokens + outputs,
    )


def _counted(common: StepRecord, steps: int, busy_s: float) -> Totals:
    """The totals after so many steps."""
    totals, outputs = common.totals, steps * common.scheduled_tokens
    return msgspec.structs.replace(
        totals,
        steps=totals.steps + steps,
        scheduled_tokens=totals.scheduled_tokens + outputs,
        output_tokens=totals.output_tokens + outputs,
        token_budget=totals.token_budget + steps * common.token_budget,
        input_rows=totals.input_rows + steps * common.input_rows,
        input_budget=totals.input_budget + steps * common.input_budget,
        busy_s=busy_s,
    )


def records_of(done: StepRecord | Stretch) -> Iterable[StepRecord]:
    """A record, or each of a stretch."""
    return done.records() if isinstance(done, Stretch) else (done,)


def run_stretch(engine: Engine, until_s: float = math.inf, most_steps: int = MOST_OUTPUTS) -> Stretch | None:
    """Take the next steps that start before `until_s` and do nothing but decode; None, and nothing done, if few do."""
    worker, state, observer = engine.worker, engine.scheduler.state, engine.observer
    if not isinstance(worker, SimWorker) or engine.paused or observer.has_events:
        return None
    outlook = decodes_ahead(state)
    if outlook is None:
        return None
    table, size = state.table, state.table.size
    wake_s = engine.next_wake_s()
    times_s = _times_s(
        engine.clock_s,
        worker.decode_s(table.num_computed[:size], min(outlook.steps, most_steps, MOST_OUTPUTS // size)),
        until_s if wake_s is None else min(until_s, wake_s),
    )
    if len(times_s) <= FEWEST_STEPS:
        return None
    needs = block_needs(state, len(times_s) - 1)
    if needs.steps < FEWEST_STEPS:
        return None
    return _run(engine, worker, needs, times_s[: needs.steps + 1], outlook.head)


def _times_s(now_s: float, elapsed_s: Floats, until_s: float) -> Floats:
    """When steps of these lengths start, as many as start before `until_s`, and when the last of them ends."""
    times_s = np.empty(len(elapsed_s) + 1)
    times_s[0] = now_s
    times_s[1:] = elapsed_s
    np.add.accumulate(times_s, out=times_s)
    return times_s[: int(times_s[:-1].searchsorted(until_s)) + 1]


def _run(engine: Engine, worker: SimWorker, needs: Needs, times_s: Floats, head: Head | None) -> Stretch:
    state, observer = engine.scheduler.state, engine.observer
    table, size, steps = state.table, state.table.size, needs.steps
    common = observer.blank_record(engine.knobs_version)
    common = msgspec.structs.replace(
        common,
        executed=True,
        scheduled_tokens=size,
        decode_tokens=size,
        input_rows=size * (1 + state.config.draft_slots),
        limiter=(Limiter.NONE if head is None else Limiter(head.reason)).value,
        head=observer.look_at(head),
    )
    columns = table.data[: len(COLUMNS), :size].copy()
    new_blocks = take_blocks(state, needs)
    offsets: IntArray = np.arange(1, steps + 1, dtype=np.int32)[:, None]
    sampled = worker.token_ids(table.request[:size], table.num_computed[:size] + offsets)
    lengths_s = times_s[1:] - times_s[:-1]
    gaps_s: Gaps = np.empty((steps, size), dtype=np.float32)
    gaps_s[:] = lengths_s[:, None]
    gaps_s[0] = times_s[1] - table.last_s[:size]
    busy_s = common.totals.busy_s
    for length_s in lengths_s.tolist():  # one by one, as the totals add up: any other order rounds otherwise
        busy_s += length_s
    end_s = times_s.item(-1)
    finishes = decode(state, sampled, gaps_s, end_s)
    observer.skip(steps, _counted(common, steps, busy_s), finishes)
    engine.skip_to(end_s)
    return Stretch(
        common=common,
        columns=columns,
        times_s=times_s,
        needs=needs,
        new_blocks=new_blocks,
        itl_s=gaps_s.tobytes(),
        oldest_queued_s=observer.oldest_queued_s,
        head=observer.look_at(head),
        running=table.size,
        last_blocks=observer.blocks(),
        changes=state.kv.pool.take_changes(),
        finishes=finishes,
        totals=observer.totals(),
    )
