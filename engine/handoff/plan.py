"""The two hand-offs of a step: what the scheduler planned, what the worker returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import TokenLogprob
from schedtop.engine.handoff.request import Request

IntArray = npt.NDArray[np.int32]

PLACEHOLDER = -1
"""Id of a placeholder draft: always rejected."""
OWN_DRAFT = -2
"""Id of a draft that the worker proposed in the step before and kept to itself."""


class Started(msgspec.Struct, frozen=True, eq=False):
    """A row that enters the batch in this step, new or resumed: the worker needs all of it.

    `block_table` is every block it holds, in order; a released block before the attention window is -1. `further` are
    its tables in the KV groups behind the first.
    """

    row: int
    request: Request
    block_table: list[int]
    resumed: bool
    further: Sequence[list[int]] = ()

    @property
    def token_ids(self) -> IntArray:
        """The whole sequence so far, int32."""
        return self.request.sequence()


class StepPlan(msgspec.Struct, frozen=True, eq=False):
    """One step's whole work, in scheduling order. All arrays are int32, one entry per scheduled row.

    `tokens[i]` positions of request `numbers[i]` are computed from position `computed[i]` on; the last
    `drafts[i]` of them are draft tokens (ids in `draft_token_ids[i]`, `PLACEHOLDER` or `OWN_DRAFT` among them).
    `samples[i]`: the row reaches the end of its sequence, so the worker returns outputs for it.
    `new_blocks` maps a request number to block ids appended to its table (those of `started` not included).
    `gone` are numbers whose state the worker may drop: finished, aborted or preempted since the last plan.
    `encoder_tokens`: of the images that are encoded before the step.
    """

    ids: list[str]
    numbers: IntArray
    tokens: IntArray
    drafts: IntArray
    computed: IntArray
    samples: npt.NDArray[np.bool_]
    draft_token_ids: IntArray | None
    new_blocks: dict[int, list[int]]
    started: list[Started]
    gone: list[int]
    encoder_tokens: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class StepResult:
    """What the worker returns for a plan, aligned with its rows.

    `sampled` (rows, width) int32: the outputs of each row; `num_sampled` (rows,) how many of them count: 0
    where the plan does not sample, otherwise accepted drafts + 1. `drafts`/`num_drafts`: proposals for the next
    step. `elapsed_s`: time the device took; None on a real device, whose time is measured. `texts`: output text
    that became certain in this step, by request number; `stopped`: numbers whose last output completed a stop
    string. `accepted`: drafts that the model agreed with, where that is not `num_sampled` - 1.
    `logprobs`: of the requests that asked for them, an entry for each of the row's outputs, counted or not.
    """

    sampled: IntArray
    num_sampled: IntArray
    drafts: IntArray | None = None
    num_drafts: IntArray | None = None
    elapsed_s: float | None = None
    texts: dict[int, str] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    accepted: IntArray | None = None
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)


class Worker(Protocol):
    """Executes what was admitted and returns ids; it never decides."""

    simulated: bool

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises nothing in normal operation."""
        ...
