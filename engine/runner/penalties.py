"""Logits changed by what a request has said before: biases, then repetition, frequency and presence penalties."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.sampler import GREEDY


class _History:
    """What one request was asked and has said. `prompt` is token ids, int64."""

    def __init__(self, request: Request, params: SamplingParams) -> None:
        self.params = params
        self.prompt = torch.from_numpy(request.prompt_token_ids.astype("int64"))
        self.outputs = list(request.output_token_ids)


class Penalties:
    """The requests in the batch that have any. A token depends on its request's own history alone."""

    def __init__(self) -> None:
        self._open: dict[int, _History] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def start(self, request: Request) -> None:
        """Take a request in, new or resumed; one without penalties is not remembered."""
        params = request.sampling or GREEDY
        if params.penalised:
            self._open[request.number] = _History(request, params)

    def drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._open.pop(number, None)

    def note(self, numbers: IntArray, outputs: IntArray, counts: IntArray) -> None:
        """The first `counts[i]` of `outputs[i]` were said by request `numbers[i]`."""
        if not self._open:
            return
        for row, number in enumerate(numbers.tolist()):
            if number in self._open:
                self._open[number].outputs += outputs[row, : counts[row]].tolist()

    def apply(self, logits: torch.Tensor, number: int, drafts: list[int]) -> torch.Tensor:
        """Request `number`'s `logits` [vocab] changed, float32 [vocab]; `drafts` count as said, too.

        As transformers' `SequenceBiasLogitsProcessor` for single tokens and its `RepetitionPenaltyLogitsProcessor`,
        then OpenAI's frequency and presence penalties, which look at outputs alone; in vLLM's order.
        """
        history, row = self._open[number], logits.float().clone()
        params, device = history.params, logits.device
        for token_id, bias in params.logit_bias:
            row[token_id] += bias
        said = torch.tensor(history.outputs + drafts, dtype=torch.int64)
        if params.repetition_penalty != 1.0:
            seen = torch.unique(torch.cat([history.prompt, said])).to(device)
            scores = row[seen]
            row[seen] = torch.where(
                scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty
            )
        if params.frequency_penalty or params.presence_penalty:
            counts = torch.bincount(said, minlength=len(row)).to(device)
            row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        return row
