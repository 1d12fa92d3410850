"""Steps in which nothing but decoding happens: how many lie ahead, and many of them at once.

What comes of them is what the running pass and `settle` make of them one by one. Blocks may be taken and registered
out of turn, each group in its own order: nobody looks in the cache meanwhile, and nothing is freed.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import Finish, Head
from schedtop.engine.scheduler.books.register import register
from schedtop.engine.scheduler.books.request_table import IntArray, RowArray
from schedtop.engine.scheduler.books.state import PlannedStep, State
from schedtop.engine.scheduler.passes.admission import AdmissionPass
from schedtop.engine.scheduler.passes.deferral import deferred_head
from schedtop.engine.scheduler.settle import finish

Floats = npt.NDArray[np.float64]
Gaps = npt.NDArray[np.float32]


class Outlook(msgspec.Struct, frozen=True):
    """Each of the next `steps` steps decodes one token per row if nobody arrives or intervenes and blocks last.

    A request ends with the last of them. `head` waits all the while, for its reason.
    """

    steps: int
    head: Head | None


class Needs(msgspec.Struct, frozen=True):
    """Blocks that rows need in the next `steps` steps: row `rows[i]` one in step `at[i]` (from 0), in that order."""

    steps: int
    at: RowArray
    rows: RowArray


def decodes_ahead(state: State) -> Outlook | None:
    """What lies ahead between two steps; None if the next one does not decode one token of every row, or does more."""
    table, limits, size = state.table, state.limits, state.table.size
    if state.overlaps:
        return None
    if not size or np.count_nonzero(table.decoding[:size]) < size:
        return None
    if table.has_drafts or limits.num_speculative_tokens or table.num_with_stops or not state.kv.at_once:
        return None
    if state.encoder is not None and state.encoder.is_holding:
        return None
    if size > limits.token_budget or size * (1 + state.config.draft_slots) > limits.input_budget:
        return None
    head = deferred_head(state)
    if state.waiting.ready:
        table.tokens[:size] = 1
        # Only limits hold still: blocks run out, and the reason with them.
        head = AdmissionPass(state, PlannedStep(0.0)).stop_before_look()
        if head is None:
            return None
    return Outlook(int(np.minimum.reduce(table.stop_at[:size] - table.num_tokens[:size])), head)


def block_needs(state: State, steps: int) -> Needs:
    """Blocks for the next `steps` decodes of every row, or for fewer steps if the pool has too few."""
    table, kv, size = state.table, state.kv, state.table.size
    at, rows = _crossings(table.room[:size] - table.num_computed[:size], steps, kv.block_size)
    free = kv.pool.num_free
    if len(at) > free:
        steps = int(at[free])
        count = int(np.searchsorted(at, steps))
        at, rows = at[:count], rows[:count]
    return Needs(steps, at, rows)


def _crossings(first: IntArray, steps: int, every: int) -> tuple[RowArray, RowArray]:
    """What happens to row i in steps `first[i]`, `first[i] + every`, … below `steps`: steps and rows, in order."""
    if steps <= every:
        rows = (first < steps).nonzero()[0]
        at = first[rows].astype(np.intp)
    else:
        counts = np.maximum(steps - first + (every - 1), 0) // every
        rows = np.repeat(np.arange(len(first)), counts)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = first[rows] + every * nth
    order = at.argsort(kind="stable")
    return at[order], rows[order]


def take_blocks(state: State, needs: Needs) -> list[int]:
    """Give the rows what `block_needs` found, one block each; the pool's changes are then those of the last step."""
    table, pool, size = state.table, state.kv.pool, state.table.size
    num_early = int(needs.at.searchsorted(needs.steps - 1))
    blocks = pool.take(num_early)
    pool.discard_changes()
    late = pool.take(len(needs.at) - num_early)
    assert blocks is not None and late is not None, "more blocks than the pool had"
    blocks += late
    requests = table.requests
    for row, block in zip(needs.rows.tolist(), blocks, strict=True):
        requests[row].block_ids.append(block)
    counts = np.bincount(needs.rows, minlength=size)
    table.blocks[:size] += counts
    table.room[:size] += counts * state.kv.block_size
    return blocks


def decode(state: State, sampled: IntArray, gaps_s: Gaps, end_s: float) -> list[Finish]:
    """Give every row its outputs, `gaps_s` apart, both (steps, rows); `end_s`: when the last were delivered.

    Blocks for them have been taken.
    """
    table, (steps, size) = state.table, sampled.shape
    computed = table.num_computed[:size]
    at, rows = _crossings(table.next_full[:size] - computed - 1, steps, state.kv.block_size)
    known = computed[rows] + at + 1
    computed += steps
    table.append_steps(sampled, gaps_s)
    table.last_s[:size] = end_s
    register(state, rows, known)
    state.gone = []  # as far as it was known when the last of the steps was planned
    ends = (table.num_tokens[:size] >= table.stop_at[:size]).nonzero()[0].tolist()
    return finish(state, ends, set(), end_s) if ends else []
