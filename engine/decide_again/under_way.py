"""Restores a snapshot's steps under way: planned as they were, their results still to come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from schedtop.engine.contract.telemetry import ROW_FIELDS, Arrival, Limiter, RowFlag, Snapshot, UnderWay
from schedtop.engine.handoff.plan import OWN_DRAFT, PLACEHOLDER, IntArray, Started, StepPlan
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import PlannedBatch, PlannedStep, SchedulerState
from schedtop.engine.step.engine import Engine

NUMBER, TOKENS, DRAFTS, BEFORE, FLAGS = (
    ROW_FIELDS.index(name) for name in ("request", "tokens", "drafts", "computed", "flags")
)
PADDED = int(RowFlag.NEW | RowFlag.RESUMED)
"""Drafts of rows that enter are padding."""


Tables = dict[int, list[list[int]]]
"""The block tables of each request, one per KV group."""


def set_out_again(
    engine: Engine, snapshot: Snapshot, requests: Mapping[int, Request], make: Callable[[Arrival], Request]
) -> None:
    """Put the snapshot's steps under way, once its `requests` are where they were.

    `make` gives those that were admitted and have ended since.
    """
    state = engine.scheduler.state
    state.num_planned = len(snapshot.under_way)
    tables = {number: list(map(list, state.kv.tables(request))) for number, request in requests.items()}
    for order, step in reversed(list(enumerate(snapshot.under_way, 1))):
        columns = np.frombuffer(step.rows, dtype=np.int32).reshape(len(ROW_FIELDS), -1).copy()
        gone = {arrival.number: make(arrival) for arrival in step.gone}
        tables |= {number: [[] for _ in state.config.groups()] for number in gone}
        planned = _planned(step, {**requests, **gone}, tables)
        if not state.kv.several:
            planned.group_growth = {}
        batch = _batch(state, planned, columns, requests, step.encoder_tokens)
        state.under_way.appendleft(batch)
        _expect(state, batch, order)
        for number in batch.plan.numbers.tolist():
            request = requests.get(number)
            if request is not None and request.deferred is Limiter.STALE_OUTPUT:
                request.num_late += 1
    if snapshot.under_way and state.config.async_scheduling and state.limits.num_speculative_tokens:
        table = state.table
        rows = table.decoding[: table.size].nonzero()[0]
        table.num_spec[rows] = state.limits.num_speculative_tokens
        table.draft_ids[rows] = OWN_DRAFT
        table.has_drafts = True
    engine.take_over(snapshot.stages_free_s)


def _planned(step: UnderWay, requests: Mapping[int, Request], tables: Tables) -> PlannedStep:
    """The plan, its blocks being the newest that a request has: those of later steps have been taken off `tables`."""
    new_blocks, growth = {}, {}
    for number, count in step.grown.items():
        pieces = _take_off(tables.get(number, []), step.grown_groups.get(number, (count,)))
        new_blocks[number] = [block for piece in pieces for block in piece]
        growth[number] = tuple(map(len, pieces))
    started = []
    for row, entry in enumerate(step.admissions):
        if (request := requests.get(entry.number)) is not None:
            table, *further = tables.pop(entry.number)
            started.append(Started(row, request, table, entry.resumed, further))
            if not entry.resumed:
                request.cached_tokens = entry.cached_tokens
    return PlannedStep(
        step.planned_s,
        step.token_budget,
        step.input_budget,
        recomputed_tokens=step.recomputed_tokens,
        limiter=Limiter(step.limiter),
        preemptions=list(step.preemptions),
        admissions=list(step.admissions),
        started=started,
        new_blocks=new_blocks,
        ended=list(step.ended),
        head=step.head,
        blocks_in_use=step.blocks_in_use,
        group_growth=growth,
    )


def _take_off(tables: list[list[int]], counts: Sequence[int]) -> list[list[int]]:
    """Remove this many blocks from the end of each table."""
    pieces = []
    for table, count in zip(tables, counts, strict=False):
        cut = max(len(table) - count, 0)
        pieces.append(table[cut:])
        del table[cut:]
    return pieces


def _batch(
    state: SchedulerState,
    planned: PlannedStep,
    columns: IntArray,
    requests: Mapping[int, Request],
    encoder_tokens: int,
) -> PlannedBatch:
    table = state.table
    busy = columns[TOKENS].nonzero()[0]
    rows = columns[:, busy]
    planned.decode_tokens = int(np.count_nonzero(rows[FLAGS] & RowFlag.DECODE))
    numbers = rows[NUMBER].tolist()
    slot_of = dict(zip(table.request[: table.size].tolist(), table.slot[: table.size].tolist(), strict=True))
    drafts = None
    if width := int(rows[DRAFTS].max(initial=0)):
        drafts = np.full((len(numbers), width), OWN_DRAFT, dtype=np.int32)
        drafts[(rows[FLAGS] & PADDED) > 0] = PLACEHOLDER
    plan = StepPlan(
        ids=[requests[number].id if number in requests else "" for number in numbers],
        numbers=rows[NUMBER],
        tokens=rows[TOKENS],
        drafts=rows[DRAFTS],
        computed=rows[BEFORE],
        samples=(rows[FLAGS] & RowFlag.SAMPLED) > 0,
        draft_token_ids=drafts,
        new_blocks=planned.new_blocks,
        started=planned.started,
        gone=[],
        encoder_tokens=encoder_tokens,
    )
    slots = np.array([slot_of.get(number, 0) for number in numbers], dtype=np.int32)
    # No table has this layout: the rows are looked for, as after every change of it.
    return PlannedBatch(plan, planned, columns, busy, slots, layout=-1)


def _expect(state: SchedulerState, batch: PlannedBatch, order: int) -> None:
    """What running rows expect of the `order`-th step under way."""
    table, plan, config = state.table, batch.plan, state.config
    rows = table.rows_of(plan.numbers, batch.slots)
    here = rows >= 0
    table.in_flight[rows[here]] += plan.tokens[here]
    if not config.async_scheduling or config.pooling:
        return
    sampled = here & plan.samples
    rows = rows[sampled]
    table.num_expected[rows] += 1 + plan.drafts[sampled]
    table.decoding[rows] = 1
    table.next_step[rows] = np.maximum(table.next_step[rows], order + config.pipeline_depth)
