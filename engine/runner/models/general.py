"""The general route: any decoder of transformers, run through its attention interface."""

from __future__ import annotations

from typing import Any

import torch
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.models.attention import Attention
from transformers import AttentionInterface, PreTrainedModel

ATTENTION_NAME = "schedtop_paged"


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    paged_attention: Attention,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer: [1, heads, T, size] in, [1, T, heads, size] out."""
    out = paged_attention(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0].transpose(0, 1).contiguous(),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=scaling,
        window=sliding_window,
    )
    return out[None], None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


class GeneralDecoder:
    """A transformers model over the flattened batch; its own modules do all but attention."""

    def __init__(self, model: PreTrainedModel, attention: Attention) -> None:
        self._model = model
        self.attention = attention
        model.set_attn_implementation(ATTENTION_NAME)

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none."""
        self.attention.prepare(batch)
        wanted = batch.logit_tokens
        inner = self._model if wanted is not None else self._model.base_model
        keep = {} if wanted is None else {"logits_to_keep": wanted}
        outputs = inner(
            input_ids=batch.token_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            paged_attention=self.attention,
            **keep,
        )
        return None if wanted is None else outputs.logits[0]
