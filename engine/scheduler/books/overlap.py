"""Several steps under way: the results that rows expect, and what becomes certain when they arrive.

With asynchronous scheduling a row goes on as if every result were here: `num_expected` counts an output of each step
that samples it, and all drafts of that step, until the results say which of them held.
"""

from __future__ import annotations

import numpy as np
from schedtop.engine.handoff.plan import OWN_DRAFT
from schedtop.engine.scheduler.books.request_table import ONE, ZERO, BoolArray, IntArray, RowArray
from schedtop.engine.scheduler.books.state import SchedulerState

TWO = np.array(2, dtype=np.int32)


def set_out(state: SchedulerState, samples: BoolArray, busy: slice | RowArray) -> None:
    """A step sets out: its tokens are in flight, and with asynchronous scheduling its outputs are expected."""
    table, size, config = state.table, state.table.size, state.config
    table.in_flight[:size] += table.tokens[:size]
    if not config.async_scheduling or config.pooling:
        return
    rows: slice | RowArray = slice(0, size)
    if np.count_nonzero(samples) < size or not isinstance(busy, slice):
        rows = samples.nonzero()[0] if isinstance(busy, slice) else busy[samples[busy]]
    table.num_expected[rows] += ONE + table.drafts[rows]
    table.decoding[rows] = 1
    if config.pipeline_depth > 1:
        table.next_step[rows] = state.num_planned + config.pipeline_depth
    if state.limits.num_speculative_tokens:
        table.num_spec[rows] = state.limits.num_speculative_tokens
        table.draft_ids[rows] = OWN_DRAFT
        table.has_drafts = True


def hold_back(state: SchedulerState, first: int, wanted: IntArray) -> None:
    """Asynchronous scheduling: take away what rows from `first` on need not or cannot compute before results come.

    A row whose last output is under way gets nothing; with several stages, a row is sampled once per round.
    """
    table, size, config = state.table, state.table.size, state.config
    computed = table.num_computed[first:size]
    np.minimum(wanted, config.max_model_len - (not config.pooling) - computed, out=wanted)
    under_way = table.num_expected[first:size] - table.num_tokens[first:size]
    last = computed - under_way >= table.stop_at[first:size] - TWO
    last &= under_way > ZERO
    np.copyto(wanted, ZERO, where=last)
    if config.pipeline_depth > 1:
        wanted[table.next_step[first:size] > state.num_planned] = 0


def await_results(state: SchedulerState) -> bool:
    """A lone request without a free block waits for the steps under way before it gives up its place."""
    table = state.table
    if not table.in_flight.item(0) or not table.tokens.item(0):
        return False
    table.tokens[0] = 0
    return True


def newly_known(state: SchedulerState) -> tuple[RowArray, IntArray]:
    """Asynchronous scheduling: rows that fill a block with tokens that have become known, and how many are."""
    table, size = state.table, state.table.size
    known = table.num_computed[:size] - table.num_expected[:size] + table.num_tokens[:size]
    rows = (known >= table.next_full[:size]).nonzero()[0]
    return rows, known[rows]
