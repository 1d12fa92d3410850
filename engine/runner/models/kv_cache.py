"""The paged K/V cache of a model: one pair of tensors per layer, indexed by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a block of the cache holds in every layer."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        per_token = 2 * self.num_kv_heads * self.head_size * self.dtype.itemsize
        return self.num_layers * self.block_size * per_token


class PagedCache:
    """`keys[layer]` and `values[layer]`: [num_blocks, block_size, num_kv_heads, head_size].

    Zeroed, so that a block nobody wrote to holds finite numbers: attention masks it but still multiplies by it.
    """

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_size)

        def layers() -> list[torch.Tensor]:
            return [torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(shape.num_layers)]

        self.keys = layers()
        self.values = layers()
