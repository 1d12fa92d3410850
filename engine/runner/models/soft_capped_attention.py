"""Attention with soft-capped scores, in torch: what Gemma 2 needs where the kernels do not run."""

from __future__ import annotations

import torch
from schedtop.engine.runner.models.attention import AttentionGroup, TorchAttention
from schedtop.engine.runner.models.kv_cache import PagedCache


def torch_attention(cache: PagedCache, soft_cap: float | None) -> TorchAttention:
    """Paged attention in torch, with a cap on the scores if the model has one."""
    return TorchAttention(cache) if soft_cap is None else CappedAttention(cache, soft_cap)


class CappedAttention(TorchAttention):
    """Scores become cap * tanh(score / cap) before the softmax (Gemma 2 report, 2024)."""

    def __init__(self, cache: PagedCache, soft_cap: float) -> None:
        super().__init__(cache)
        self._soft_cap = soft_cap

    def _attend_group(
        self,
        group: AttentionGroup,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        batch, num_queries, heads = group.num_rows, group.num_queries, query.shape[1]
        if group.mask is None:
            tokens = slice(None) if group.tokens is None else group.tokens
            keys, values = key[tokens][None], value[tokens][None]
        else:
            keys, values = (self._gather(cache[layer], group) for cache in (self.cache.keys, self.cache.values))
        per_head = heads // keys.shape[2]
        folded = query.view(batch, num_queries, -1, per_head, query.shape[2])
        scores = torch.einsum("bqhgd,bkhd->bhgqk", folded, keys).float() * scale
        scores = self._soft_cap * torch.tanh(scores / self._soft_cap)
        if group.mask is None:
            later = torch.ones(num_queries, num_queries, dtype=torch.bool, device=query.device).triu(1)
            scores.masked_fill_(later, float("-inf"))
        else:
            scores += group.mask[:, :, None]
        out = torch.einsum("bhgqk,bkhd->bqhgd", scores.softmax(-1).to(values.dtype), values)
        return out.reshape(batch * num_queries, heads, -1)
