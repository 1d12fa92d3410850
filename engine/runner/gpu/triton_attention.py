"""Paged attention on this project's kernels."""

from __future__ import annotations

import torch
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.models.kv_cache import PagedCache

TOKENS_PER_TILE = 64
"""About how many tokens of a prefill one program attends."""


class TritonAttention:
    """Writes keys and values to their slots and attends, two launches per layer, nothing waited for.

    `soft_cap`: scores become soft_cap * tanh(score / soft_cap).
    """

    def __init__(self, cache: PagedCache, soft_cap: float | None = None) -> None:
        self.cache = cache
        self._soft_cap = soft_cap
        device = cache.keys[0].device
        cuda = device.type == "cuda"
        self._num_sms = torch.cuda.get_device_properties(device).multi_processor_count if cuda else 1
        self._batch: InputBatch | None = None
        self._max_query_len = self._max_seq_len = 0
        self._num_splits: int | None = None

    def prepare(self, batch: InputBatch) -> None:
        self._batch = batch
        self._max_query_len, self._max_seq_len = batch.max_query_len, batch.max_seq_len
        self._num_splits = None if self._max_query_len == 1 else self._splits_of_mixed(batch)

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
        from schedtop.kernels.kv_write import kv_write
        from schedtop.kernels.paged_attention import paged_attention

        batch = self._batch
        assert batch is not None, "prepare comes before the first layer"
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        kv_write(key, value, keys, values, batch.slot_mapping)
        return paged_attention(
            query,
            keys,
            values,
            batch.block_table,
            batch.query_start_loc,
            batch.seq_lens,
            max_query_len=self._max_query_len,
            max_seq_len=self._max_seq_len,
            scale=scale,
            window=window,
            soft_cap=self._soft_cap,
            num_splits=self._num_splits,
        )

    def _splits_of_mixed(self, batch: InputBatch) -> int:
        """A power of two: every other number would be one more compilation in the midst of serving."""
        from schedtop.kernels.tiling import choose_num_splits

        tiles = batch.num_tokens // TOKENS_PER_TILE + len(batch.query_lens)
        splits = choose_num_splits(tiles * self.cache.shape.num_kv_heads, self._max_seq_len, self._num_sms)
        return 1 << (splits.bit_length() - 1)
