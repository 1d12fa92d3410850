"""The end of planning: the step is frozen into columns of its own, and every row advances by what it was given."""

from __future__ import annotations

import numpy as np
from schedtop.engine.contract.telemetry import ROW_FIELDS, RowFlag
from schedtop.engine.handoff.plan import StepPlan
from schedtop.engine.scheduler.books.overlap import set_out
from schedtop.engine.scheduler.books.request_table import (
    BoolArray,
    IntArray,
    RequestTable,
    RowArray,
)
from schedtop.engine.scheduler.books.state import PlannedBatch, PlannedStep, SchedulerState

NEW, RESUMED, SAMPLED = int(RowFlag.NEW), int(RowFlag.RESUMED), np.array(RowFlag.SAMPLED, dtype=np.int32)
NUMBER, TOKENS, DRAFTS, BEFORE = (ROW_FIELDS.index(name) for name in ("request", "tokens", "drafts", "computed"))


def seal(state: SchedulerState, planned: PlannedStep) -> PlannedBatch:
    """The planned step, ready to be executed."""
    table, size = state.table, state.table.size
    tokens = table.tokens[:size]
    computed = table.num_computed[:size]
    table.computed[:size] = computed
    table.needed[:size] = table.num_expected[:size]
    computed += tokens
    samples = computed >= table.num_expected[:size]
    all_busy = np.count_nonzero(tokens) == size
    busy: slice | RowArray = slice(0, size) if all_busy else tokens.nonzero()[0]
    planned.decode_tokens = int(np.count_nonzero(table.decoding[busy]))
    _flag_rows(table, planned, samples, busy)
    table.drafts[:size] = 0
    draft_token_ids = _take_drafts(table, busy) if table.has_drafts else None
    if table.recomputing:
        planned.recomputed_tokens = _count_recomputed(table)
    columns = table.data[: len(ROW_FIELDS), :size].copy()
    if state.overlaps:
        set_out(state, samples, busy)
    rows = columns if isinstance(busy, slice) else columns.take(busy, axis=1)
    gone, state.gone = state.gone, []
    plan = StepPlan(
        ids=table.ids.copy() if isinstance(busy, slice) else [table.ids[row] for row in busy.tolist()],
        numbers=rows[NUMBER],
        tokens=rows[TOKENS],
        drafts=rows[DRAFTS],
        computed=rows[BEFORE],
        samples=samples if all_busy else samples[busy],
        draft_token_ids=draft_token_ids,
        new_blocks=planned.new_blocks,
        started=planned.started,
        gone=gone,
        encoder_tokens=0 if state.encoder is None else state.encoder.budget - state.encoder.left,
    )
    return PlannedBatch(plan, planned, columns, busy, table.slot[busy].copy(), table.layout)


def _take_drafts(table: RequestTable, busy: slice | RowArray) -> IntArray | None:
    """Note the drafts that the step schedules (what lies past a row's tokens); its other ones are dropped."""
    size = table.size
    drafts = table.drafts[:size]
    np.maximum(table.num_computed[:size] - table.num_expected[:size], 0, out=drafts)
    table.num_spec[busy] = 0
    table.has_drafts = not isinstance(busy, slice) and bool(table.num_spec[:size].any())
    width = int(np.maximum.reduce(drafts, initial=0))
    return table.draft_ids[busy, :width].copy() if width else None


def _flag_rows(table: RequestTable, planned: PlannedStep, samples: BoolArray, busy: slice | RowArray) -> None:
    size = table.size
    flags = table.flags[:size]
    if isinstance(busy, slice):
        np.multiply(samples, SAMPLED, out=flags)
        flags += table.decoding[:size]  # DECODE is bit 1, as `decoding` is
        np.logical_not(samples, out=table.mid_prompt[:size])
    else:
        flags[:] = 0
        flags[busy] = samples[busy] * SAMPLED + table.decoding[busy]
        table.mid_prompt[busy] = ~samples[busy]
    for started in planned.started:
        flags[started.row] += RESUMED if started.resumed else NEW


def _count_recomputed(table: RequestTable) -> int:
    """Tokens of this step that lie below the highest position a row had computed before a preemption."""
    total = 0
    rows = (table.computed[: table.size] < table.high_water[: table.size]).nonzero()[0].tolist()
    for row in rows:
        again = min(table.high_water.item(row) - table.computed.item(row), table.tokens.item(row))
        table.requests[row].recomputed_tokens += again
        total += again
    table.recomputing = bool(rows) or table.ahead  # results may move rows back
    return total
