"""Who drafts, and drafts by prompt look-up: what followed the last time the sequence ended like this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from schedtop.engine.handoff.plan import IntArray, StepPlan
from schedtop.engine.runner.sequences import Rows, SlotArray

LONGEST_MATCH = 4
SHORTEST_MATCH = 2

Pick = Callable[[torch.Tensor, IntArray, IntArray], IntArray]
"""Tokens for logits, request numbers and positions; see `Picker.pick`."""

Drafts = tuple[IntArray, IntArray]
"""Drafts (rows, most drafts) and how many each row has, as `StepResult` takes them."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A step whose outputs are known: row i of the plan is in `slots[i]` of `rows`, with `ends[i]` tokens now."""

    plan: StepPlan
    rows: Rows
    slots: SlotArray
    ends: IntArray


class Drafter(Protocol):
    """Proposes what may follow. Drafts never change an output: they only save steps where they hold."""

    def follow(self, plan: StepPlan, rows: Rows) -> None:
        """Requests and blocks came and went; `rows` knows already."""
        ...

    def propose(self, step: Verified, count: int, pick: Pick) -> Drafts | None:
        """Up to `count` drafts for each row that got an output. Called once per step, for no drafts too."""
        ...


class PromptLookUp:
    """Drafts from the sequence itself; remembers nothing."""

    def follow(self, plan: StepPlan, rows: Rows) -> None:
        pass

    def propose(self, step: Verified, count: int, pick: Pick) -> Drafts | None:
        """See `look_up`."""
        if not count:
            return None
        drafts = np.zeros((len(step.slots), count), dtype=np.int32)
        num_drafts = np.zeros(len(step.slots), dtype=np.int32)
        for row in np.flatnonzero(step.plan.samples).tolist():
            found = look_up(step.rows.token_ids[step.slots[row], : step.ends[row]], count)
            drafts[row, : len(found)] = found
            num_drafts[row] = len(found)
        return drafts, num_drafts


def look_up(token_ids: IntArray, count: int) -> IntArray:
    """Up to `count` tokens that may follow `token_ids`: int32, empty where no ending was seen before.

    The longest ending of `LONGEST_MATCH` down to `SHORTEST_MATCH` tokens that occurs earlier decides, its latest
    occurrence first (Saxena, "Prompt Lookup Decoding", 2023).
    """
    size = len(token_ids)
    if count < 1 or size <= SHORTEST_MATCH:
        return token_ids[:0]
    ends = np.flatnonzero(token_ids[: size - 1] == token_ids[-1])
    best = ends[:0]
    for back in range(1, LONGEST_MATCH):
        ends = ends[ends >= back]
        ends = ends[token_ids[ends - back] == token_ids[size - 1 - back]] if size > back else ends[:0]
        if not ends.size:
            break
        if back + 1 >= SHORTEST_MATCH:
            best = ends
    if not best.size:
        return token_ids[:0]
    begin = int(best[-1]) + 1
    return token_ids[begin : begin + count]
