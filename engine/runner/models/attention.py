"""Paged attention: the interface every decoder calls, and the answer in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.models.kv_cache import PagedCache
from schedtop.engine.runner.sequences import SlotArray

SHORT_QUERY = 16
"""Rows with at most this many tokens (decodes and their drafts) are attended together, padded; others alone."""

GROUP_COST_TOKENS = 256
"""Padding, in keys, that costs about as much as attending one more group on its own."""


class Attention(Protocol):
    """Stores keys and values in the paged cache and attends to them. `prepare` comes once before each forward."""

    def prepare(self, batch: InputBatch) -> None: ...

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """`query` [T, heads, head_size], `key` and `value` [T, kv_heads, head_size] to [T, heads, head_size].

        A token sees its row's tokens up to itself, the last `window` of them if given.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """B rows padded to Q queries and `num_blocks` blocks of keys each.

    `tokens` picks the queries: int64 [B * Q] (a padding query repeats its row's last), a slice, or None for all;
    `blocks` int64 [B * num_blocks]; `mask` [B, 1, Q, keys] is added to the scores, None where nothing is hidden
    but by causality among the row's own new tokens (then there is one row and no earlier context).
    """

    num_rows: int
    num_queries: int
    tokens: torch.Tensor | slice | None
    blocks: torch.Tensor
    mask: torch.Tensor | None


class TorchAttention:
    """Gathers each group's blocks and calls `scaled_dot_product_attention`; runs on every device."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache = cache
        self._flat = [
            (keys.flatten(0, 1), values.flatten(0, 1))
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self._batch: InputBatch | None = None
        self._groups: dict[int | None, list[AttentionGroup]] = {}

    def prepare(self, batch: InputBatch) -> None:
        self._batch = batch
        self._groups = {}

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        batch = self._batch
        assert batch is not None, "prepare comes before the first layer"
        flat_keys, flat_values = self._flat[layer]
        flat_keys.index_copy_(0, batch.slot_mapping, key)
        flat_values.index_copy_(0, batch.slot_mapping, value)
        return self.attend(layer, query, key, value, scale=scale, window=window)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """As a call, with keys and values in the cache already."""
        assert self._batch is not None
        if window not in self._groups:
            self._groups[window] = make_groups(self._batch, self.cache, window)
        groups = self._groups[window]
        if groups[0].tokens is None:
            return self._attend_group(groups[0], layer, query, key, value, scale)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._attend_groups(groups, layer, query, key, value, scale, out)
        return out

    def _attend_groups(
        self,
        groups: list[AttentionGroup],
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        out: torch.Tensor,
    ) -> None:
        for group in groups:
            tokens = slice(None) if group.tokens is None else group.tokens
            out[tokens] = self._attend_group(group, layer, query[tokens], key, value, scale)

    def _attend_group(
        self,
        group: AttentionGroup,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """`query` [B * Q, heads, head_size] to the same shape."""
        if group.mask is None:
            tokens = slice(None) if group.tokens is None else group.tokens
            return _attend_alone(query, key[tokens], value[tokens], None, scale)
        keys = self._gather(self.cache.keys[layer], group)
        values = self._gather(self.cache.values[layer], group)
        if group.num_rows == 1 and group.num_queries > SHORT_QUERY:
            return _attend_alone(query, keys[0], values[0], group.mask[0, 0], scale)
        return _attend_padded(query, keys, values, group, scale)

    def _gather(self, cache: torch.Tensor, group: AttentionGroup) -> torch.Tensor:
        """The group's blocks as [B, keys, kv_heads, head_size]."""
        picked = cache.index_select(0, group.blocks)
        return picked.view(group.num_rows, -1, *cache.shape[2:])


def _attend_alone(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """One row: [Q, heads, size] over [keys, kv_heads, size]; kv heads are the batch, so keys are not repeated."""
    num_queries, heads, size = query.shape
    num_keys, kv_heads, _ = key.shape
    per_head = heads // kv_heads
    out = torch.nn.functional.scaled_dot_product_attention(
        query.view(num_queries, kv_heads, per_head, size).permute(1, 2, 0, 3),
        key.permute(1, 0, 2)[:, None].expand(kv_heads, per_head, num_keys, size),
        value.permute(1, 0, 2)[:, None].expand(kv_heads, per_head, num_keys, size),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3).reshape(num_queries, heads, size)


def _attend_padded(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: AttentionGroup, scale: float
) -> torch.Tensor:
    """B rows of Q queries; the query heads of a kv head become further queries of it."""
    batch, num_queries = group.num_rows, group.num_queries
    _, heads, size = query.shape
    kv_heads = keys.shape[2]
    per_head = heads // kv_heads
    folded = query.view(batch, num_queries, kv_heads, per_head, size).transpose(1, 2)
    mask = group.mask
    assert mask is not None
    if num_queries > 1:
        mask = mask[:, :, :, None].expand(-1, -1, -1, per_head, -1).flatten(2, 3)
    out = torch.nn.functional.scaled_dot_product_attention(
        folded.reshape(batch, kv_heads, num_queries * per_head, size),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
        scale=scale,
    )
    unfolded = out.view(batch, kv_heads, num_queries, per_head, size).transpose(1, 2)
    return unfolded.reshape(batch * num_queries, heads, size)


def make_groups(batch: InputBatch, cache: PagedCache, window: int | None) -> list[AttentionGroup]:
    """Every row of the batch in one group each: short rows together by similar context, long ones alone."""
    block_size = cache.shape.block_size
    first_block = np.zeros_like(batch.contexts)
    if window is not None:
        first_block = np.maximum(batch.contexts - window + 1, 0) // block_size
    num_blocks = -(-(batch.contexts + batch.query_lens) // block_size) - first_block
    rows = np.flatnonzero(batch.query_lens <= SHORT_QUERY)
    parts = _split_by_length(rows, num_blocks, GROUP_COST_TOKENS // block_size)
    parts += list(np.flatnonzero(batch.query_lens > SHORT_QUERY)[:, None])
    whole = len(parts) == 1
    return [_make_group(batch, cache, part, first_block, num_blocks, window, whole) for part in parts]


def _split_by_length(rows: SlotArray, num_blocks: IntArray, cost_blocks: int) -> list[SlotArray]:
    """`rows` in parts, cut where the padding saved outweighs one more part; order within a part is kept."""
    if not rows.size:
        return []
    order = rows[np.argsort(num_blocks[rows], kind="stable")[::-1]]
    parts, begin, wasted = [], 0, 0
    for place, row in enumerate(order.tolist()):
        wasted += int(num_blocks[order[begin]] - num_blocks[row])
        if wasted > cost_blocks:
            parts.append(np.sort(order[begin:place]))
            begin, wasted = place, 0
    parts.append(np.sort(order[begin:]))
    return parts


def _make_group(
    batch: InputBatch,
    cache: PagedCache,
    rows: SlotArray,
    first_block: IntArray,
    num_blocks: IntArray,
    window: int | None,
    whole: bool,
) -> AttentionGroup:
    block_size, device = cache.shape.block_size, batch.token_ids.device
    lens, contexts = batch.query_lens[rows], batch.contexts[rows]
    num_queries = int(lens.max())
    offsets = np.minimum(np.arange(num_queries), lens[:, None] - 1)
    starts = np.cumsum(batch.query_lens) - batch.query_lens
    tokens = starts[rows][:, None] + offsets
    picked: torch.Tensor | slice | None = None
    if len(rows) == 1:
        picked = slice(int(tokens[0, 0]), int(tokens[0, -1]) + 1)
    elif not whole or tokens.size != batch.num_tokens:
        picked = torch.from_numpy(tokens.reshape(-1).astype(np.int64)).to(device)
    columns = first_block[rows][:, None] + np.arange(int(num_blocks[rows].max()))
    # Columns past a row's end and released blocks (-1) are masked; any block's finite contents will do there.
    blocks = batch.blocks[rows[:, None], np.minimum(columns, batch.blocks.shape[1] - 1)]
    mask = None
    if len(rows) > 1 or num_queries <= SHORT_QUERY or contexts[0] > 0 or (window or num_queries) < num_queries:
        places = (columns[:, :, None] * block_size + np.arange(block_size)).reshape(len(rows), 1, -1)
        asked = (contexts[:, None] + offsets)[:, :, None]
        hidden = places > asked
        if window is not None:
            hidden |= places <= asked - window
        mask = torch.zeros(hidden[:, None].shape, dtype=cache.shape.dtype, device=device)
        mask.masked_fill_(torch.from_numpy(hidden[:, None]).to(device), float("-inf"))
    return AttentionGroup(
        num_rows=len(rows),
        num_queries=num_queries,
        tokens=picked,
        blocks=torch.from_numpy(np.maximum(blocks, 0).reshape(-1).astype(np.int64)).to(device),
        mask=mask,
    )
