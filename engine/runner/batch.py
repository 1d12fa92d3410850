"""A step's work as one flattened batch: prefill chunks and decodes of different requests side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from schedtop.engine.handoff.plan import IntArray, StepPlan
from schedtop.engine.runner.sequences import Rows, SlotArray
from schedtop.engine.runner.staging import TensorStaging

LongArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The input of one forward, T tokens of R rows, each row's tokens one after the other.

    On the device: `token_ids`, `positions`, `slot_mapping` int64 [T]; `query_start_loc` int32 [R + 1] and
    `seq_lens` int32 [R], tokens in a row's cache after this step; `block_table` int32 [R, columns];
    `logit_tokens` int64 [N], the tokens whose logits are wanted, or None for none. On the host: `query_lens`,
    `contexts` (tokens of a row before this step) and `blocks`, a copy of the table, all int32.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    logit_tokens: torch.Tensor | None
    query_lens: IntArray
    contexts: IntArray
    blocks: IntArray

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def max_query_len(self) -> int:
        return int(self.query_lens.max())

    @property
    def max_seq_len(self) -> int:
        return int((self.contexts + self.query_lens).max())


class Decoder(Protocol):
    """A model over the flattened batch."""

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none."""
        ...


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch on its way to the device, in NumPy: names and shapes as in `InputBatch`; `logit_tokens` may be empty."""

    token_ids: LongArray
    positions: LongArray
    slot_mapping: LongArray
    query_start_loc: IntArray
    seq_lens: IntArray
    blocks: IntArray
    logit_tokens: LongArray
    query_lens: IntArray
    contexts: IntArray

    def to_device(self, staging: TensorStaging) -> InputBatch:
        """The batch on the staging's device."""
        carried = (
            self.token_ids,
            self.positions,
            self.slot_mapping,
            self.query_start_loc,
            self.seq_lens,
            self.blocks,
            self.logit_tokens,
        )
        token_ids, positions, slot_mapping, query_start_loc, seq_lens, block_table, wanted = staging(carried)
        return InputBatch(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=block_table,
            logit_tokens=wanted if self.logit_tokens.size else None,
            query_lens=self.query_lens,
            contexts=self.contexts,
            blocks=self.blocks,
        )


def lay_out(plan: StepPlan, rows: Rows, slots: SlotArray) -> HostBatch:
    """The flattened batch of a plan whose rows are in `slots`. Draft tokens are written into `rows` on the way."""
    if plan.draft_token_ids is not None:
        drafts = np.maximum(plan.draft_token_ids, 0)
        rows.write(slots, plan.computed + plan.tokens - plan.drafts, drafts, plan.drafts)
    logit_tokens = _logit_tokens(plan, _starts(plan.tokens))
    return flatten(rows, slots, rows.blocks, slots, plan.computed, plan.tokens, logit_tokens)


def flatten(
    rows: Rows,
    slots: SlotArray,
    tables: IntArray,
    lines: SlotArray,
    begins: IntArray,
    counts: IntArray,
    logit_tokens: LongArray,
) -> HostBatch:
    """A batch of the `counts[i]` tokens from position `begins[i]` on of each row `slots[i]`.

    The row's block table is line `lines[i]` of `tables`.
    """
    ends = begins + counts
    start_loc = _starts(counts)
    row_of = np.repeat(np.arange(len(slots)), counts)
    positions = np.arange(start_loc[-1]) - start_loc[row_of] + begins[row_of]
    block_size = rows.block_size
    blocks = tables[lines, : -(-int(ends.max()) // block_size)]
    block_of = blocks[row_of, positions // block_size].astype(np.int64)
    return HostBatch(
        token_ids=rows.token_ids[slots[row_of], positions].astype(np.int64),
        positions=positions,
        slot_mapping=block_of * block_size + positions % block_size,
        query_start_loc=start_loc,
        seq_lens=ends,
        blocks=blocks,
        logit_tokens=logit_tokens,
        query_lens=counts,
        contexts=begins,
    )


def _starts(counts: IntArray) -> IntArray:
    """Where each row's tokens begin in the batch, and where the last one's end."""
    start_loc = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=start_loc[1:])
    return start_loc


def _logit_tokens(plan: StepPlan, start_loc: IntArray) -> SlotArray:
    """The last token of every sampling row and the drafts before it, row by row."""
    if plan.draft_token_ids is None:
        return start_loc[1:][plan.samples].astype(np.intp) - 1
    counts = np.where(plan.samples, plan.drafts + 1, 0)
    row_of = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(row_of.size) - (np.cumsum(counts) - counts)[row_of]
    wanted: SlotArray = start_loc[1:][row_of] - counts[row_of] + places
    return wanted
