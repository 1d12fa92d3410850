"""What a request adds to its logits and takes from them before a token is picked: bias, then penalties."""

from __future__ import annotations

import numpy as np
import torch
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.handoff.request import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Whether a request's logits are anything but the model's own."""
    plain = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1, 0, 0)
    return bool(params.logit_bias) or not plain


def penalise(logits: torch.Tensor, params: SamplingParams, token_ids: IntArray, num_prompt_tokens: int) -> None:
    """Change the `logits` [vocab], float32, of the token that follows `token_ids`, prompt and outputs, in place.

    The bias is added. A token seen before has its logit divided by the repetition penalty if positive, else multiplied
    (Keskar et al., "CTRL", 2019). A token among the outputs loses the frequency penalty for each time it is there and
    the presence penalty once (OpenAI's API reference). The order is vLLM's. Ids outside the vocabulary are passed over.
    """
    vocab = len(logits)
    bias = [(token, value) for token, value in params.logit_bias if 0 <= token < vocab]
    if bias:
        tokens, values = zip(*bias, strict=True)
        logits[list(tokens)] += torch.tensor(values, dtype=logits.dtype, device=logits.device)
    if params.repetition_penalty != 1:
        seen = torch.from_numpy(_within(token_ids, vocab)[0]).to(logits.device)
        picked, penalty = logits[seen], params.repetition_penalty
        logits[seen] = torch.where(picked < 0, picked * penalty, picked / penalty)
    if params.frequency_penalty or params.presence_penalty:
        ids, counts = _within(token_ids[num_prompt_tokens:], vocab)
        made = torch.from_numpy(ids).to(logits.device)
        logits[made] -= params.frequency_penalty * torch.from_numpy(counts).to(logits)
        logits[made] -= params.presence_penalty


def _within(token_ids: IntArray, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """The different ids of the vocabulary, int64, and how often each occurs."""
    ids, counts = np.unique(token_ids, return_counts=True)
    inside = (ids >= 0) & (ids < vocab)
    return ids[inside].astype(np.int64), counts[inside]
