"""The worker of real models: executes what was admitted and returns ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from schedtop.engine.plan import IntArray, Started, StepPlan, StepResult
from schedtop.engine.runner.batch import Decoder, lay_out
from schedtop.engine.runner.drafter import look_up
from schedtop.engine.runner.graphs import DecodeGraphs
from schedtop.engine.runner.kernel_sampler import KernelSampler
from schedtop.engine.runner.rows import Rows, SlotArray
from schedtop.engine.runner.sampler import GREEDY, RowSampling, make_draws, sample
from schedtop.engine.runner.staging import Staging
from schedtop.engine.runner.texts import Texts


class ModelWorker:
    """Runs plans on a decoder. `num_speculative_tokens` may be changed between steps.

    `info` is what `open_model` found out about the model, for those who make requests; None without it. `graphs`
    and `sampler` take over what they can. `notices`: lines that a console has yet to be told.
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
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.info: Any = None
        self.notices: list[str] = []
        self._decoder = decoder
        self._graphs = graphs
        self._sampler = sampler
        self._staging = Staging(device)
        self._seed = seed
        self._rows = Rows(block_size)
        self._sampling: dict[int, RowSampling] = {}
        self._texts = texts

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        self._follow(plan)
        slots = self._rows.slots_of(plan.numbers)
        host = lay_out(plan, self._rows, slots)
        logits = None if self._graphs is None else self._graphs.run(host)
        if logits is None:
            logits = self._decoder.forward(host.to_device(self._staging))
        first = plan.computed + plan.tokens - plan.drafts
        outputs, num_sampled = self._pick(plan, logits, first)
        result = StepResult(outputs, num_sampled)
        if self._texts is not None:
            self._texts.extend(plan.numbers, result)
        self._rows.write(slots, first, outputs, result.num_sampled)
        if self.num_speculative_tokens:
            self._propose(result, slots, first + result.num_sampled)
        return result

    def _follow(self, plan: StepPlan) -> None:
        """Bring the memory of requests up to the plan."""
        self._rows.drop(plan.gone)
        for number in plan.gone:
            self._sampling.pop(number, None)
        if self._texts is not None:
            self._texts.drop(plan.gone)
        for entry in plan.started:
            self._start(entry)
        for number, block_ids in plan.new_blocks.items():
            self._rows.append_blocks(number, block_ids)

    def _start(self, entry: Started) -> None:
        request = entry.request
        self._rows.start(entry)
        params = request.sampling or GREEDY
        if params.temperature > 0:
            seed = params.seed
            if seed is None:
                seed = (self._seed << 32) + request.number
            self._sampling[request.number] = RowSampling(params, seed)
        if self._texts is not None:
            self._texts.start(request)

    def _pick(self, plan: StepPlan, logits: torch.Tensor | None, first: IntArray) -> tuple[IntArray, IntArray]:
        """Outputs (rows, drafts + 1) and how many of each row's count: accepted drafts and one more."""
        width = 0 if plan.draft_token_ids is None else int(plan.drafts.max(initial=0))
        outputs = np.zeros((plan.num_rows, width + 1), dtype=np.int32)
        if logits is None:
            return outputs, np.zeros(plan.num_rows, dtype=np.int32)
        counts = np.where(plan.samples, plan.drafts + 1, 0) if width else plan.samples.astype(np.int32)
        rows, places = np.nonzero(np.arange(width + 1) < counts[:, None])
        outputs[rows, places] = self._pick_tokens(plan, logits, rows, first[rows] + places)
        if not width:
            return outputs, counts
        assert plan.draft_token_ids is not None
        holds = plan.draft_token_ids[:, :width] == outputs[:, :-1]
        holds &= np.arange(width) < plan.drafts[:, None]
        accepted = np.logical_and.accumulate(holds, axis=1).sum(axis=1)
        return outputs, np.where(plan.samples, accepted + 1, 0).astype(np.int32)

    def _pick_tokens(self, plan: StepPlan, logits: torch.Tensor, rows: SlotArray, positions: IntArray) -> IntArray:
        """The token of each row of logits; `rows` are rows of the plan, `positions` where the tokens will stand."""
        numbers = plan.numbers[rows].tolist()
        if self._sampler is not None:
            settings = [self._sampling.get(number) for number in numbers]
            tokens = self._sampler.pick(logits, settings, positions)
            if tokens is not None:
                return tokens
        picked = greedy(logits)
        if self._sampling:
            drawn = [place for place, number in enumerate(numbers) if number in self._sampling]
            if drawn:
                chosen = [self._sampling[numbers[place]] for place in drawn]
                draws = make_draws([c.params for c in chosen], [c.seed for c in chosen], positions[drawn])
                where = torch.tensor(drawn, device=logits.device)
                picked[where] = sample(logits[where], draws)
        return picked.cpu().numpy().astype(np.int32)

    def _propose(self, result: StepResult, slots: SlotArray, ends: IntArray) -> None:
        count = self.num_speculative_tokens
        drafts = np.zeros((len(slots), count), dtype=np.int32)
        num_drafts = np.zeros(len(slots), dtype=np.int32)
        for row in np.flatnonzero(result.num_sampled).tolist():
            found = look_up(self._rows.token_ids[slots[row], : ends[row]], count)
            drafts[row, : len(found)] = found
            num_drafts[row] = len(found)
        result.drafts, result.num_drafts = drafts, num_drafts


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, the first of equals: int64. NumPy is twenty times faster on a CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.float().numpy().argmax(-1))
    return logits.argmax(-1)
