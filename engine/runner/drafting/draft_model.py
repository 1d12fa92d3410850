"""Drafts by a small model that runs behind the served one.

Its keys and values are in its own paged cache under the same block ids, so tables, prefix hits and preemptions
are the scheduler's alone. It computes each token once its model has: a prompt's chunks as they come, then every
output. What it lacks (drafting was off, a prefix was cached meanwhile) it catches up with where a step leaves room.
"""

from __future__ import annotations

import numpy as np
from schedtop.engine.contract.knobs import BY_NAME
from schedtop.engine.handoff.plan import IntArray, Started, StepPlan
from schedtop.engine.runner.batch import flatten
from schedtop.engine.runner.drafting.drafter import Drafts, Pick, Verified
from schedtop.engine.runner.forward import Forward
from schedtop.engine.runner.sequences import Rows, SlotArray

MOST_DRAFTS = int(BY_NAME["num_speculative_tokens"].high or 0)


def scratch_columns(block_size: int) -> int:
    """Blocks that hold every draft of a row."""
    return -(-MOST_DRAFTS // block_size)


class DraftModel:
    """Drafts with `forward`, whose cache has `num_blocks` shared ids and then scratch blocks for `num_rows` rows.

    Drafts may go beyond the blocks a request holds: these positions go to scratch, and are computed again once it
    has blocks for them. A step takes at most `max_tokens` rows of input, or what the served model took and one more
    each (the draft slot). `window` is that of the served model where blocks before it are released.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        block_size: int,
        num_blocks: int,
        num_rows: int,
        max_tokens: int,
        max_model_len: int,
        window: int | None = None,
    ) -> None:
        self._forward = forward
        self._block_size = block_size
        scratch = num_blocks + np.arange(num_rows * scratch_columns(block_size), dtype=np.int32)
        self._scratch: IntArray = scratch.reshape(num_rows, -1)
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len
        self._window = window
        # Whether a block's every slot holds this model's state of the tokens that the served model has there.
        self._whole = np.zeros(num_blocks, dtype=bool)
        # By slot: tokens with state, leading blocks marked whole, and the token before the last that can come.
        self._known = np.zeros(0, dtype=np.int32)
        self._marked = np.zeros(0, dtype=np.int32)
        self._last = np.zeros(0, dtype=np.int32)

    def follow(self, plan: StepPlan, rows: Rows) -> None:
        """Take in what started, with what its cached blocks hold; new blocks hold nothing."""
        grown = len(rows.token_ids) - len(self._known)
        if grown > 0:
            self._known, self._marked, self._last = (
                np.pad(array, (0, grown)) for array in (self._known, self._marked, self._last)
            )
        if plan.started:
            slots = rows.slots_of(np.array([entry.request.number for entry in plan.started], dtype=np.int32))
            computed = dict(zip(plan.numbers.tolist(), plan.computed.tolist(), strict=True))
            for entry, slot in zip(plan.started, slots.tolist(), strict=True):
                self._start(entry, slot, computed[entry.request.number])
        for block_ids in plan.new_blocks.values():
            self._whole[block_ids] = False

    def _start(self, entry: Started, slot: int, computed: int) -> None:
        request = entry.request
        table = np.array(entry.block_table, dtype=np.int32)
        hits, new = np.split(table, [computed // self._block_size])
        self._whole[new] = False
        holds = self._whole[hits] | (hits < 0)
        self._marked[slot] = len(hits) if holds.all() else int(holds.argmin())
        self._known[slot] = self._marked[slot] * self._block_size
        self._last[slot] = min(request.num_prompt_tokens + request.max_tokens, self._max_model_len) - 1

    def propose(self, step: Verified, count: int, pick: Pick) -> Drafts | None:
        """Compute what the served model has computed and got; then draft, one forward for each place."""
        slots, samples, ends = step.slots, step.plan.samples, step.ends
        known = np.minimum(self._known[slots], ends - samples)  # what follows were rejected drafts
        self._known[slots] = known
        if not count:
            return None
        released = self._released(step.plan)
        begins = np.maximum(known, released * self._block_size)
        widths = np.where(samples, np.clip(self._last[slots] - ends, 0, count), 0)
        tables, widths = self._tables(step.rows, slots, ends, widths)
        room = step.rows.room_of(slots)
        wanted = np.where(widths > 0, ends, np.minimum(ends, room)) - begins
        counts = share(wanted, max(self._max_tokens, int(step.plan.tokens.sum()) + len(slots)))
        widths[counts < wanted] = 0
        drafts = self._draft(step, tables, begins, counts, widths, pick)
        known = np.minimum(np.where(widths > 0, ends + widths - 1, begins + counts), room)
        self._known[slots] = known
        self._mark(step.rows, slots, np.minimum(known, ends) // self._block_size, released)
        return drafts, widths

    def _released(self, plan: StepPlan) -> IntArray:
        """Leading blocks of each row that it no longer holds: another request may have them by now."""
        if self._window is None:
            return np.zeros(plan.num_rows, dtype=np.int32)
        return np.maximum(plan.computed - self._window + 1, 0) // self._block_size

    def _tables(self, rows: Rows, slots: SlotArray, ends: IntArray, widths: IntArray) -> tuple[IntArray, IntArray]:
        """Block tables with scratch behind them, and `widths`, 0 where no scratch is left for a row."""
        room, size = rows.room_of(slots), self._block_size
        lacking = np.flatnonzero((widths > 0) & (ends + widths - 1 > room))
        widths = widths.copy()
        widths[lacking[len(self._scratch) :]] = 0
        columns = -(-int((ends + widths).max()) // size) + self._scratch.shape[1]
        tables = np.zeros((len(slots), columns), dtype=np.int32)
        held = rows.blocks[slots, :columns]
        # Released blocks (-1) are before every window; where this model looks there, any block will do.
        np.maximum(held, 0, out=tables[:, : held.shape[1]])
        for row, scratch in zip(lacking.tolist(), self._scratch, strict=False):
            first = int(room[row]) // size
            tables[row, first : first + len(scratch)] = scratch
        return tables, widths

    def _draft(
        self, step: Verified, tables: IntArray, begins: IntArray, counts: IntArray, widths: IntArray, pick: Pick
    ) -> IntArray:
        """Drafts (rows, widest): row i computes `counts[i]` tokens from `begins[i]` on, then drafts `widths[i]`."""
        rows, slots, numbers, ends = step.rows, step.slots, step.plan.numbers, step.ends
        drafts = np.zeros((len(slots), max(int(widths.max()), 1)), dtype=np.int32)
        busy, going = np.flatnonzero(counts), np.flatnonzero(widths)
        if not busy.size:
            return drafts
        asking = np.cumsum(counts[busy], dtype=np.int64)[widths[busy] > 0] - 1
        logits = self._forward(flatten(rows, slots[busy], tables, busy, begins[busy], counts[busy], asking))
        for place in range(drafts.shape[1]):
            if logits is None:
                break
            at = ends[going] + place
            drafts[going, place] = pick(logits, numbers[going], at)
            stays = widths[going] > place + 1
            going, at = going[stays], at[stays]
            if not going.size:
                break
            ones = np.ones(len(going), dtype=np.int32)
            rows.write(slots[going], at, drafts[going, place : place + 1], ones)
            logits = self._forward(flatten(rows, slots[going], tables, going, at, ones, np.arange(len(going))))
        return drafts

    def _mark(self, rows: Rows, slots: SlotArray, full: IntArray, released: IntArray) -> None:
        """Blocks up to `full` of each row hold nothing but what will stay."""
        for row in np.flatnonzero(full > self._marked[slots]).tolist():
            slot = slots[row]
            blocks = rows.blocks[slot, max(self._marked[slot], released[row]) : full[row]]
            self._whole[blocks[blocks >= 0]] = True
            self._marked[slot] = full[row]


def share(wanted: IntArray, limit: int) -> IntArray:
    """What each row gets of `limit` tokens, those that want least first: nobody who kept pace waits for a laggard."""
    if int(wanted.sum()) <= limit:
        return wanted
    order = np.argsort(wanted, kind="stable")
    before = np.cumsum(wanted[order]) - wanted[order]
    given = np.zeros_like(wanted)
    given[order] = np.clip(limit - before, 0, wanted[order])
    return given
