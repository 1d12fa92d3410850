"""Which token follows: each request's own settings, applied to its logits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from schedtop.engine.contract.telemetry import TokenLogprob
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler
from schedtop.engine.runner.penalties import Penalties
from schedtop.engine.runner.sampler import GREEDY, RowSampling, make_draws, sample


class Picker:
    """Remembers how the requests in the batch are sampled. Without a seed of its own, one gets its number's."""

    def __init__(self, seed: int, sampler: KernelSampler | None) -> None:
        self._seed = seed
        self._sampler = sampler
        self._sampling: dict[int, RowSampling] = {}
        self._penalties = Penalties()
        self._logprobs: dict[int, int] = {}

    def start(self, request: Request) -> None:
        params = request.sampling or GREEDY
        if params.temperature > 0:
            seed = params.seed
            if seed is None:
                seed = (self._seed << 32) + request.number
            self._sampling[request.number] = RowSampling(params, seed)
        self._penalties.start(request)
        if params.logprobs is not None:
            self._logprobs[request.number] = params.logprobs

    def drop(self, numbers: Iterable[int]) -> None:
        self._penalties.drop(numbers)
        for number in numbers:
            self._logprobs.pop(number, None)
            self._sampling.pop(number, None)

    def pick(self, logits: torch.Tensor, numbers: IntArray, positions: IntArray) -> IntArray:
        """A token for each row of `logits` [M, vocab], int32: of request `numbers[i]`, for `positions[i]`.

        The rows of a request are in the order of their positions.
        """
        asked = numbers.tolist()
        changed = [place for place, number in enumerate(asked) if number in self._penalties]
        if not changed:
            return self._pick(logits, asked, positions)
        picked = np.zeros(len(asked), dtype=np.int32)
        plain = [place for place, number in enumerate(asked) if number not in self._penalties]
        if plain:
            picked[plain] = self._pick(logits[plain], [asked[place] for place in plain], positions[plain])
        said: dict[int, list[int]] = {}
        for place in changed:
            # A later row of the request counts only if the drafts before it are what is picked here.
            number, drafts = asked[place], said.setdefault(asked[place], [])
            row = self._penalties.apply(logits[place], number, drafts)[None]
            picked[place] = self._pick(row, [number], positions[place : place + 1], kernel=False)[0]
            drafts.append(int(picked[place]))
        return picked

    def logprobs(self, logits: torch.Tensor, numbers: IntArray, tokens: IntArray) -> dict[int, list[TokenLogprob]]:
        """Of each picked token, by request, for those that asked; of the model's own `logits` [M, vocab]."""
        found: dict[int, list[TokenLogprob]] = {}
        if not self._logprobs:
            return found
        for place, (number, token) in enumerate(zip(numbers.tolist(), tokens.tolist(), strict=True)):
            if (most := self._logprobs.get(number)) is None:
                continue
            row = logits[place].float().log_softmax(-1)
            values, ids = (part.tolist() for part in row.topk(most))
            entry = TokenLogprob(float(row[token]), tuple(zip(ids, values, strict=True)))
            found.setdefault(number, []).append(entry)
        return found

    def note(self, numbers: IntArray, outputs: IntArray, counts: IntArray) -> None:
        """The first `counts[i]` of `outputs[i]` became request `numbers[i]`'s."""
        self._penalties.note(numbers, outputs, counts)

    def _pick(self, logits: torch.Tensor, asked: list[int], positions: IntArray, kernel: bool = True) -> IntArray:
        if self._sampler is not None and kernel:
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


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, the first of equals: int64. NumPy is twenty times faster on a CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.float().numpy().argmax(-1))
    return logits.argmax(-1)
