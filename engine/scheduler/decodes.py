"""Turns in which nothing but decoding happens: how many lie ahead, and many of them at once.

A turn plans a step and applies the results of the oldest one under way; steps that do not overlap are planned and
applied in the same turn. What is under way in the beginning may end prompts, too, and the first turn's step may be
among it: then that turn only applies. What comes of many turns is what the running pass and `settle` make of them one
by one. Blocks may be taken and registered out of turn, each group in its own order: nobody looks in the cache
meanwhile, and those who end give theirs back in their turn.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS, Head, Limiter, RowFlag
from schedtop.engine.handoff.plan import StepPlan
from schedtop.engine.scheduler.books.request_table import IntArray, RequestTable, RowArray
from schedtop.engine.scheduler.books.state import Limits, PlannedBatch, PlannedStep, SchedulerState
from schedtop.engine.scheduler.late_results import Present, find_present
from schedtop.engine.scheduler.passes.admission import AdmissionPass
from schedtop.engine.scheduler.passes.deferral import deferred_head

Floats = npt.NDArray[np.float64]
Gaps = npt.NDArray[np.float32]

NUMBER, TOKENS, DRAFTS, BEFORE, FLAGS = (
    ROW_FIELDS.index(name) for name in ("request", "tokens", "drafts", "computed", "flags")
)
DECODED = int(RowFlag.DECODE | RowFlag.SAMPLED)


class Outlook(msgspec.Struct, frozen=True):
    """What lies ahead if nobody arrives or intervenes and blocks last: `turns` turns in which rows decode.

    `num_under_way` steps are under way. Row i is planned in turn `plans[i]` and again every `period` turns, `left[i]`
    times at most, and told in turn `reports[i]` and every `period` turns, one token each time, up to turn `last[i]`, in
    which it ends; `coming[i]` of these were planned before. Where somebody waits, nobody ends before the last turn:
    `head` waits all the while, for its reason. `ahead`: rows are planned before their results are here. A step is told
    `lag` turns after it was planned. If it is not `steady`, there is one turn, whose step is planned, and the scheduler
    has to plan the next one: somebody may start, computes a prompt still, or was held back.
    """

    turns: int
    period: int
    lag: int
    num_under_way: int
    plans: IntArray
    reports: IntArray
    coming: IntArray
    left: IntArray
    last: IntArray
    ahead: bool
    head: Head | None
    steady: bool = True

    @property
    def first(self) -> int:
        """The first turn whose step is not yet planned."""
        return self.num_under_way - self.lag

    def times_planned(self, turns: int) -> IntArray:
        """How often each row is planned in the first `turns` turns."""
        if self.period == 1:
            return np.minimum(max(turns - self.first, 0), self.left)
        return np.minimum((turns - self.plans + (self.period - 1)) // self.period, self.left)

    def times_reported(self, turns: int) -> IntArray:
        """How often each row is reported in the first `turns` turns."""
        ahead: IntArray = np.minimum(turns, self.last + 1) - self.reports
        return ahead if self.period == 1 else (ahead + (self.period - 1)) // self.period


class Filled(NamedTuple):
    """Blocks that rows fill: row `rows[i]` one in turn `at[i]`, with `known[i]` tokens, in that order."""

    at: RowArray
    rows: RowArray
    known: IntArray


class Needs(msgspec.Struct, frozen=True):
    """Blocks that rows need in the next `turns` turns: row `rows[i]` one in turn `at[i]` (from 0), in that order."""

    turns: int
    at: RowArray
    rows: RowArray


def decodes_ahead(state: SchedulerState) -> Outlook | None:
    """What lies ahead between two turns; None if the next one does not decode one token of every row, or does more."""
    table, size = state.table, state.table.size
    if not size or state.config.pooling or not state.kv.at_once:
        return None
    if table.has_drafts or state.limits.num_speculative_tokens:
        return None
    presents = _presents(state)
    if presents is None:
        return None
    reports, coming = _results(size, presents)
    if np.count_nonzero(coming if state.config.async_scheduling else table.decoding[:size] | coming) < size:
        return None
    return _look_ahead(state, len(presents), reports, coming)


def decodes_next(state: SchedulerState, lag: int) -> IntArray:
    """What the rows of a leg compute in the turn after it, `lag` steps being under way, if all are planned in each."""
    table, size = state.table, state.table.size
    tokens: IntArray = (table.num_tokens[:size] + lag < table.stop_at[:size]).astype(np.int32)
    return tokens


def go_on(
    state: SchedulerState, outlook: Outlook, turns: int, ended: list[int], begun: PlannedBatch | None
) -> Outlook | None:
    """What lies ahead after so many turns, in the last of which these rows ended; `begun` was planned with newcomers.

    None as of `decodes_ahead`.
    """
    size, lag = state.table.size, outlook.lag
    if not size:
        return None
    if outlook.period > 1:
        reported = outlook.times_reported(turns)
        reports = outlook.reports + outlook.period * reported - turns
        coming = outlook.coming + outlook.times_planned(turns) - reported
        if ended:
            stays = np.ones(len(reports), dtype=bool)
            stays[ended] = False
            reports, coming = reports[stays], coming[stays]
        return _look_ahead(state, lag, reports, coming)
    if begun is None:
        return _look_ahead(state, lag, np.zeros(size, dtype=np.int32), np.full(size, lag, dtype=np.int32))
    if not is_plain(begun, state.limits):
        return None
    samples: IntArray = np.zeros(size, dtype=np.int32)
    samples[begun.busy] = begun.plan.samples
    coming = state.table.num_expected[:size] - state.table.num_tokens[:size] if lag else samples
    reports = np.where(coming > samples, 0, np.where(samples, lag, 1)).astype(np.int32)
    return _look_ahead(state, lag + 1, reports, coming)


def _look_ahead(state: SchedulerState, num_under_way: int, reports: IntArray, coming: IntArray) -> Outlook | None:
    table, limits, config, size = state.table, state.limits, state.config, state.table.size
    if table.num_with_stops or (state.encoder is not None and state.encoder.is_holding):
        return None
    ahead, period, lag = config.async_scheduling, config.pipeline_depth, config.max_concurrent_batches - 1
    most, plans = size, reports
    if period > 1:
        plans = reports if ahead else (reports + 1) % period
        most = int(np.bincount(plans).max())
    to_come = table.stop_at[:size] - table.num_tokens[:size]
    left, last = to_come - coming, reports + period * (to_come - 1)
    head = deferred_head(state)
    steady = most <= limits.token_budget and most * (1 + config.draft_slots) <= limits.input_budget
    if steady and state.waiting.ready:
        table.tokens[:size] = 1 if period == 1 else plans == np.bincount(plans).argmax()
        # Only limits hold still: blocks run out, and the reason with them.
        head = AdmissionPass(state, PlannedStep(0.0)).stop_before_look()
        steady = head is not None and (not num_under_way or head.reason is Limiter.SEQUENCE_CAP)
    if steady and period == 1 and num_under_way > lag:
        left_out = (reports + coming < num_under_way) | (coming == 0)
        steady = not np.count_nonzero(left_out & (left > 0))
    if not steady and (num_under_way <= lag or np.minimum.reduce(reports)):
        return None
    goes_on = period == 1 and head is None and state.loads is None
    turns = 1 + int((np.maximum if goes_on else np.minimum).reduce(last)) if steady else 1
    return Outlook(turns, period, lag, num_under_way, plans, reports, coming, left, last, ahead, head, steady)


def _presents(state: SchedulerState) -> list[Present] | None:
    """Where the rows of the steps under way are now; None if there are too few, or one has more to tell than tokens."""
    table, config, presents = state.table, state.config, []
    if len(state.under_way) < config.max_concurrent_batches - 1:
        return None
    several = config.pipeline_depth > 1 or state.loads is not None
    for batch in state.under_way:
        if not is_plain(batch, state.limits) or np.count_nonzero(batch.plan.samples) < batch.plan.num_rows:
            return None
        if not (only_decodes(batch) if several else batch.plan.num_rows):
            return None
        present = find_present(table, batch)
        if present.late:
            return None
        presents.append(present)
    return presents


def _results(size: int, presents: list[Present]) -> tuple[IntArray, IntArray]:
    """In which turn each row's next result is told, and how many are under way."""
    reports: IntArray = np.full(size, len(presents), dtype=np.int32)
    coming: IntArray = np.zeros(size, dtype=np.int32)
    for turn in range(len(presents) - 1, -1, -1):
        rows = presents[turn].rows
        reports[rows] = turn
        coming[rows] += 1
    return reports, coming


def is_plain(batch: PlannedBatch, limits: Limits) -> bool:
    """Whether a step gives a row one token at most and sends nobody away, planned under the present budgets."""
    planned, plan = batch.planned, batch.plan
    if (planned.token_budget, planned.input_budget) != (limits.token_budget, limits.input_budget):
        return False
    if planned.preemptions or planned.ended or planned.recomputed_tokens:
        return False
    return plan.draft_token_ids is None and not plan.encoder_tokens


def only_decodes(batch: PlannedBatch) -> bool:
    """Whether a plain step had but one token to compute of each row."""
    return batch.planned.decode_tokens == batch.plan.num_rows


def block_needs(state: SchedulerState, outlook: Outlook, turns: int) -> Needs:
    """Blocks for the next `turns` turns, or for fewer if the pool has too few."""
    table, kv, size = state.table, state.kv, state.table.size
    first = table.room[:size] - table.num_computed[:size]
    nth, rows = _crossings(first, outlook.times_planned(turns), kv.block_size, turns)
    at, rows = _in_turn(outlook, nth, rows)
    needs, free = Needs(turns, at, rows), kv.pool.num_free
    return needs if len(at) <= free else until(needs, int(at[free]))


def until(needs: Needs, turns: int) -> Needs:
    """Those of the first `turns` turns."""
    if turns == needs.turns:
        return needs
    count = int(needs.at.searchsorted(turns))
    return Needs(turns, needs.at[:count], needs.rows[:count])


def _crossings(first: IntArray, counts: IntArray, every: int, most: int) -> tuple[RowArray, RowArray]:
    """What happens to row i with its decodes `first[i]`, `first[i] + every`, … below `counts[i]`: decodes and rows.

    No count is above `most`.
    """
    if most <= every:
        rows = (first < counts).nonzero()[0]
        return first[rows].astype(np.intp), rows
    nth = first[:, None] + np.arange(0, most, every)
    rows, times = (nth < counts[:, None]).nonzero()
    return nth[rows, times], rows


def _in_turn(outlook: Outlook, nth: RowArray, rows: RowArray) -> tuple[RowArray, RowArray]:
    """The turns in which the `nth` decodes of rows are planned, and the rows, in order."""
    at = _planned_in(outlook, nth, rows)
    order = at.argsort(kind="stable")
    return at[order], rows[order]


def _planned_in(outlook: Outlook, nth: RowArray, rows: RowArray) -> RowArray:
    return outlook.first + nth if outlook.period == 1 else outlook.plans[rows] + outlook.period * nth


def take_blocks(state: SchedulerState, rows: list[int]) -> list[int]:
    """Give each of the rows a block, in this order; `note_blocks` counts them."""
    blocks, requests = state.kv.pool.take(len(rows)), state.table.requests
    assert blocks is not None, "more blocks than the pool had"
    for row, block in zip(rows, blocks, strict=True):
        requests[row].block_ids.append(block)
    return blocks


def note_blocks(state: SchedulerState, rows: RowArray) -> None:
    """Each of the rows got a block."""
    table, size = state.table, state.table.size
    counts = np.bincount(rows, minlength=size)
    table.blocks[:size] += counts
    table.room[:size] += counts * state.kv.block_size


def deliver(table: RequestTable, outlook: Outlook, sampled: IntArray, reported: IntArray, ends_s: Floats) -> Gaps:
    """Give rows their next outputs (times, rows), the first `reported` of each row; turns end at `ends_s`.

    Returns their gaps, NaN where there was none.
    """
    period, size = outlook.period, table.size
    since_s = ends_s.copy()
    since_s[period:] -= ends_s[:-period]
    gaps_s = since_s.take(outlook.reports + period * np.arange(len(sampled))[:, None], mode="clip")
    gaps_s[0] = ends_s.take(outlook.reports, mode="clip") - table.last_s[:size]
    newest_s = ends_s.take(outlook.reports + period * (reported - 1), mode="clip")
    table.last_s[:size] = (
        newest_s if np.minimum.reduce(reported) else np.where(reported, newest_s, table.last_s[:size])
    )
    return table.append_steps(sampled, gaps_s.astype(np.float32), reported)


def advance(state: SchedulerState, outlook: Outlook, turns: int, reported: IntArray) -> Filled:
    """Count what so many turns planned and told (`reported` of each row); outputs are delivered.

    Returns the blocks that they fill.
    """
    table, size, ahead = state.table, state.table.size, outlook.ahead
    planned = outlook.times_planned(turns)
    computed = table.num_computed[:size]
    # Planned ahead, a block is registered once its last output is told, else when the step that fills it is planned.
    times = reported if ahead else planned
    known = table.num_tokens[:size] - reported if ahead else computed + 1
    # A row that computes its prompt still is behind what is known of it; it is not told.
    behind = np.maximum(table.next_full[:size] - known, 0)
    nth, rows = _crossings(behind, times, state.kv.block_size, turns)
    at = outlook.reports[rows] + outlook.period * nth if ahead else _planned_in(outlook, nth, rows)
    order = at.argsort(kind="stable")
    at, rows = at[order], rows[order]
    known = known[rows] + nth[order]
    computed += planned
    if outlook.lag:
        table.in_flight[:size] += planned - reported
    if ahead:
        table.num_expected[:size] += planned
    if ahead and outlook.period > 1:
        newest = outlook.plans + outlook.period * (planned - 1)
        np.copyto(table.next_step[:size], state.num_planned + 1 + newest + outlook.period, where=planned > 0)
    state.num_planned += turns - outlook.first
    return Filled(at, rows, known)


def land_prompts(state: SchedulerState, batch: PlannedBatch) -> None:
    """A step is told that computes prompts: of a row it may compute more than the one token that `advance` counts."""
    table, present = state.table, find_present(state.table, batch)
    samples = present.of(batch.plan.samples.astype(np.int32))
    table.decoding[present.rows] |= samples
    if state.overlaps:
        table.in_flight[present.rows] -= present.of(batch.plan.tokens) - samples


def batch_of(ids: list[str], planned: PlannedStep, columns: IntArray, slots: IntArray, layout: int) -> PlannedBatch:
    """The step of nothing but decoding that was planned with these columns; `ids` are its busy rows'."""
    size, tokens = columns.shape[1], columns[TOKENS]
    busy: slice | RowArray = slice(0, size) if len(ids) == size else tokens.nonzero()[0]
    rows = columns[:, busy]
    plan = StepPlan(
        ids=ids,
        numbers=rows[NUMBER],
        tokens=rows[TOKENS],
        drafts=rows[DRAFTS],
        computed=rows[BEFORE],
        samples=np.ones(rows.shape[1], dtype=bool),
        draft_token_ids=None,
        new_blocks=planned.new_blocks,
        started=planned.started,
        gone=[],
    )
    return PlannedBatch(plan, planned, columns, busy, slots[busy], layout)


def ends_in(outlook: Outlook, turns: int) -> list[tuple[int, list[int]]]:
    """The turns among the first `turns` in which rows end, and these rows; the last turn in any case."""
    ends: dict[int, list[int]] = {turns - 1: []}
    for row in (outlook.last < turns).nonzero()[0].tolist():
        ends.setdefault(outlook.last.item(row), []).append(row)
    return sorted(ends.items())
