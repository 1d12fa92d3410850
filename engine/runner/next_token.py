"""Which token follows: each request's own settings, applied to its logits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler
from schedtop.engine.runner.penalties import has_penalties, penalise
from schedtop.engine.runner.sampler import GREEDY, RowSampling, make_draws, sample
from schedtop.engine.runner.sequences import Rows


class Picker:
    """Remembers how the requests in the batch are sampled. Without a seed of its own, one gets its number's."""

    def __init__(self, seed: int, sampler: KernelSampler | None) -> None:
        self._seed = seed
        self._sampler = sampler
        self._sampling: dict[int, RowSampling] = {}
        self._penalised: dict[int, Request] = {}

    def start(self, request: Request) -> None:
        params = request.sampling or GREEDY
        if params.temperature > 0:
            seed = params.seed
            if seed is None:
                seed = (self._seed << 32) + request.number
            self._sampling[request.number] = RowSampling(params, seed)
        if has_penalties(params):
            self._penalised[request.number] = request

    def drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._sampling.pop(number, None)
            self._penalised.pop(number, None)

    def pick(
        self, logits: torch.Tensor, numbers: IntArray, positions: IntArray, rows: Rows | None = None
    ) -> IntArray:
        """A token for each row of `logits` [M, vocab], int32: of request `numbers[i]`, to stand at `positions[i]`.

        `rows` has the tokens before it, which penalties need; drafts go without.
        """
        asked = numbers.tolist()
        if rows is not None and not self._penalised.keys().isdisjoint(asked):
            logits = self._with_penalties(logits, numbers, positions, rows)
        if self._sampler is not None:
            settings = [self._sampling.get(number) for number in asked]
            tokens = self._sampler.pick(logits, settings, positions)
            if tokens is not None:
                return tokens
        picked = greedy(logits)
        if self._sampling:
            drawn = [place for place, number in enumerate(asked) if number in self._sampling]
            if drawn:
                chosen = [self._sampling[asked[place]] for place in drawn]
                draws = make_draws([c.params for c in chosen], [c.seed for c in chosen], positions[drawn])
                where = torch.tensor(drawn, device=logits.device)
                picked[where] = sample(logits[where], draws)
        return picked.cpu().numpy().astype(np.int32)

    def _with_penalties(
        self, logits: torch.Tensor, numbers: IntArray, positions: IntArray, rows: Rows
    ) -> torch.Tensor:
        """A copy in float32: recorded graphs own the logits they give."""
        changed = logits.to(torch.float32, copy=True)
        slots = rows.slots_of(numbers)
        for place, number in enumerate(numbers.tolist()):
            request = self._penalised.get(number)
            if request is not None and request.sampling is not None:
                token_ids = rows.token_ids[slots[place], : positions[place]]
                penalise(changed[place], request.sampling, token_ids, request.num_prompt_tokens)
        return changed


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, the first of equals: int64. NumPy is twenty times faster on a CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.float().numpy().argmax(-1))
    return logits.argmax(-1)
