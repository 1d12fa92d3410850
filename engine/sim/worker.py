"""The simulated worker: made-up tokens, a time from the device's cost, and drafts that sometimes match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.handoff.plan import OWN_DRAFT, IntArray, StepPlan, StepResult
from schedtop.engine.sim.features import StepCost, StepFeatures, step_features

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]

# Odd multipliers without common structure: numbers and positions spread over all 2**32 values. uint32 arrays wrap
# silently, which is meant.
_NUMBER = np.uint32(0x9E3779B1)
_POSITION = np.uint32(0x85EBCA77)
_MIX = np.uint32(0x7FEB352D)


class SimWorker:
    """Executes plans in simulated time; keeps no state of requests.

    The token at position p of request n depends on (seed, n, p) alone, so speculation, preemption and chunking
    never change an output. The drafter knows the coming tokens and spoils each with probability
    1 - `acceptance`, by (seed, n, p) too; a draft is accepted if it is the token the model gives.
    Encoding images takes what the device's cost says (`encode_s`), and no time where it says nothing.
    `num_speculative_tokens` may be changed between steps. With `keeps_drafts` it does not send its drafts back: a plan
    names them `OWN_DRAFT`. `wake_s` is what the first step of an idle engine takes longer.
    """

    simulated = True

    def __init__(
        self,
        cost: StepCost,
        vocab_size: int,
        seed: int = 0,
        acceptance: float = 0.7,
        num_speculative_tokens: int = 0,
        keeps_drafts: bool = False,
    ) -> None:
        self.cost = cost
        self.wake_s: float = getattr(cost, "wake_s", 0.0)
        self._encode_s: Callable[[int], float] | None = getattr(cost, "encode_s", None)
        self.keeps_drafts = keeps_drafts
        self.num_speculative_tokens = num_speculative_tokens
        self._vocab = np.uint32(vocab_size)
        self._token_salt = np.uint32(seed * 0xC2B2AE3D & 0xFFFFFFFF)
        self._draft_salt = np.uint32((seed * 0x27D4EB2F + 0x165667B1) & 0xFFFFFFFF)
        self._good_below = round(acceptance * 2**32)

    def execute(self, plan: StepPlan) -> StepResult:
        """Outputs, drafts and the step's seconds. All arrays are new."""
        elapsed_s = self.elapsed_s(plan)
        first = plan.computed + plan.tokens  # position of each row's first output
        if plan.draft_token_ids is None:
            sampled = self.token_ids(plan.numbers, first)[:, None]
            num_sampled = plan.samples.astype(np.int32)
        else:
            first -= plan.drafts
            width = int(plan.drafts.max(initial=0))  # the plan's matrix may be wider than any of its rows
            drafted = plan.draft_token_ids[:, :width]
            if self.keeps_drafts:
                drafted = np.where(drafted == OWN_DRAFT, self._propose(plan.numbers, first, width), drafted)
            sampled, accepted = self._verify(plan.numbers, first, plan.drafts, drafted)
            num_sampled = np.where(plan.samples, accepted + 1, 0).astype(np.int32)
        result = StepResult(sampled, num_sampled, elapsed_s=elapsed_s)
        if self.num_speculative_tokens and not self.keeps_drafts:
            result.drafts = self._propose(plan.numbers, first + num_sampled, self.num_speculative_tokens)
            result.num_drafts = np.where(num_sampled > 0, np.int32(self.num_speculative_tokens), np.int32(0))
        return result

    def elapsed_s(self, plan: StepPlan) -> float:
        """Seconds that a plan takes."""
        elapsed_s = float(self.cost.step_s(step_features(plan.tokens, plan.computed)))
        if plan.encoder_tokens and self._encode_s is not None:
            elapsed_s += self._encode_s(plan.encoder_tokens)
        return elapsed_s

    def decode_s(self, rows: int, kv_tokens: int, steps: int) -> Floats:
        """Seconds of each of `steps` steps in which so many rows decode one token; `kv_tokens`: the first one's."""
        each: Any = kv_tokens + rows * np.arange(steps)  # of all the steps at once
        elapsed_s: Floats = np.zeros(steps)
        elapsed_s += self.cost.step_s(StepFeatures(rows, 0, each, rows))
        return elapsed_s

    def next_decode_s(self, rows: int, kv_tokens: int) -> float:
        """Seconds of a step in which so many rows decode one token, with their context."""
        return float(self.cost.step_s(StepFeatures(rows, 0, kv_tokens, rows)))

    def token_ids(self, numbers: IntArray, positions: IntArray) -> IntArray:
        """The model's tokens at `positions` of requests `numbers` (int32, shapes that broadcast)."""
        return (self._spread(numbers, positions, self._token_salt) % self._vocab).view(np.int32)

    def next_ids(self, numbers: IntArray, before: IntArray, steps: int) -> IntArray:
        """The model's next tokens (steps, requests) behind so many."""
        offsets = np.arange(1, steps + 1, dtype=np.uint32)[:, None] * _POSITION
        ids: IntArray = ((self._spread(numbers, before, self._token_salt) + offsets) % self._vocab).view(np.int32)
        return ids

    def _verify(
        self, numbers: IntArray, first: IntArray, drafts: IntArray, draft_token_ids: IntArray
    ) -> tuple[IntArray, npt.NDArray[np.intp]]:
        """Outputs (rows, width + 1) if all drafts held, and how many of each row's do, up to the first that fails.

        A placeholder (-1) is not a token's id, so it fails.
        """
        offsets = np.arange(draft_token_ids.shape[1] + 1, dtype=np.int32)
        outputs = self.token_ids(numbers[:, None], first[:, None] + offsets)
        holds = (draft_token_ids == outputs[:, :-1]) & (offsets[:-1] < drafts[:, None])
        return outputs, np.logical_and.accumulate(holds, axis=1).sum(axis=1)

    def _propose(self, numbers: IntArray, first: IntArray, count: int) -> IntArray:
        """Drafts (rows, `count`) for the positions from `first` on."""
        numbers = numbers[:, None]
        offsets: IntArray = np.arange(count, dtype=np.int32)
        positions = first[:, None] + offsets
        chance = self._spread(numbers, positions, self._draft_salt)
        chance = (chance ^ chance >> np.uint32(16)) * _MIX
        chance ^= chance >> np.uint32(15)
        spoiled = chance >= self._good_below
        ids = self.token_ids(numbers, positions).view(np.uint32)
        return ((ids + spoiled) % self._vocab).view(np.int32)

    @staticmethod
    def _spread(numbers: IntArray, positions: IntArray, salt: np.uint32) -> Words:
        return numbers.view(np.uint32) * _NUMBER + positions.view(np.uint32) * _POSITION + salt
