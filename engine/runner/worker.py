"""The worker of real models: executes what was admitted and returns ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from schedtop.engine.contract.telemetry import TokenLogprob
from schedtop.engine.handoff.plan import IntArray, StepPlan, StepResult
from schedtop.engine.runner.batch import Decoder, lay_out
from schedtop.engine.runner.detokenize import Texts
from schedtop.engine.runner.drafting.drafter import Drafter, PromptLookUp, Verified
from schedtop.engine.runner.forward import Forward
from schedtop.engine.runner.gpu.graphs import DecodeGraphs
from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler
from schedtop.engine.runner.next_token import Picker
from schedtop.engine.runner.sequences import Rows


class ModelWorker:
    """Runs plans on a decoder. `num_speculative_tokens` may be changed between steps.

    `info` is what `open_model` found out about the model, for those who make requests; None without it. `graphs`
    and `sampler` take over what they can; `drafter` proposes. `notices`: lines that no console has seen yet.
    """

    simulated = False

    def __init__(
        self,
        decoder: Decoder,
        block_size: int,
        device: torch.device,
        *,
        seed: int = 0,
        texts: Texts | None = None,
        num_speculative_tokens: int = 0,
        graphs: DecodeGraphs | None = None,
        sampler: KernelSampler | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.info: Any = None
        self.notices: list[str] = []
        self._forward = Forward(decoder, device, graphs)
        self._picker = Picker(seed, sampler)
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        self._drafter = drafter or PromptLookUp()
        self._rows = Rows(block_size)
        self._texts = texts

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        self._follow(plan)
        slots = self._rows.slots_of(plan.numbers)
        logits = self._forward(lay_out(plan, self._rows, slots))
        first = plan.computed + plan.tokens - plan.drafts
        outputs, num_sampled = self._pick(plan, logits, first)
        result = StepResult(outputs, num_sampled, logprobs=self._logprobs)
        if self._texts is not None:
            self._texts.extend(plan.numbers, result)
        self._picker.note(plan.numbers, outputs, result.num_sampled)
        self._rows.write(slots, first, outputs, result.num_sampled)
        step = Verified(plan, self._rows, slots, first + result.num_sampled)
        self._propose(step, result)
        return result

    def _follow(self, plan: StepPlan) -> None:
        """Bring the memory of requests up to the plan."""
        self._rows.drop(plan.gone)
        self._picker.drop(plan.gone)
        if self._texts is not None:
            self._texts.drop(plan.gone)
        for entry in plan.started:
            self._rows.start(entry)
            self._picker.start(entry.request)
            if self._texts is not None:
                self._texts.start(entry.request)
        for number, block_ids in plan.new_blocks.items():
            self._rows.append_blocks(number, block_ids)
        self._drafter.follow(plan, self._rows)

    def _pick(self, plan: StepPlan, logits: torch.Tensor | None, first: IntArray) -> tuple[IntArray, IntArray]:
        """Outputs (rows, drafts + 1) and how many of each row's count: accepted drafts and one more."""
        width = 0 if plan.draft_token_ids is None else int(plan.drafts.max(initial=0))
        outputs = np.zeros((plan.num_rows, width + 1), dtype=np.int32)
        self._logprobs = {}
        if logits is None:
            return outputs, np.zeros(plan.num_rows, dtype=np.int32)
        counts = np.where(plan.samples, plan.drafts + 1, 0) if width else plan.samples.astype(np.int32)
        rows, places = np.nonzero(np.arange(width + 1) < counts[:, None])
        outputs[rows, places] = self._picker.pick(logits, plan.numbers[rows], first[rows] + places)
        self._logprobs = self._picker.logprobs(logits, plan.numbers[rows], outputs[rows, places])
        if not width:
            return outputs, counts
        assert plan.draft_token_ids is not None
        holds = plan.draft_token_ids[:, :width] == outputs[:, :-1]
        holds &= np.arange(width) < plan.drafts[:, None]
        accepted = np.logical_and.accumulate(holds, axis=1).sum(axis=1)
        return outputs, np.where(plan.samples, accepted + 1, 0).astype(np.int32)

    def _propose(self, step: Verified, result: StepResult) -> None:
        proposed = self._drafter.propose(step, self.num_speculative_tokens, self._picker.pick)
        if proposed is not None:
            result.drafts, result.num_drafts = proposed
