"""What the lean decoder does between its matrix products: in torch, or in one compiled pass each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.runner.batch import InputBatch, LongArray
from schedtop.engine.runner.models.kv_cache import PagedCache
from schedtop.engine.runner.models.native import MAX_BLOCK_SIZE, MAX_HEAD_SIZE, MAX_SHARED_HEADS, Native

SHORT_QUERY = 8
"""Rows with at most this many tokens are attended token by token, longer ones in tiles."""

TILE_ROWS = 96
"""Query rows of a tile: tokens times the heads that share a key head."""


class Operations(Protocol):
    """[T, ...] in, [T, ...] out; sums in float32."""

    def add_norm(
        self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + more` (just `x` if `more` is None), and that over its root mean square, times `weight`."""
        ...

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotary positions of `x` [T, heads, size], which may be overwritten; `cos`, `sin` [T, 1, size], the first
        half of `sin` negated."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Activation of the first half of [T, 2 * width], times the second."""
        ...


class TorchOperations:
    """Works on every device, with any activation."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._activation = activation

    def add_norm(
        self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x if more is None else x + more
        wide = total.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        return total, weight * (wide * scale).to(x.dtype)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return self._activation(gate).mul_(up)


class NativeOperations:
    """The compiled ones, for the CPU; the activation is SiLU. Inputs are dense but for the rows of `rotate`'s."""

    def __init__(self, native: Native) -> None:
        self._add_norm, self._rotate, self._silu_mul = native.add_norm, native.rotate, native.silu_mul

    def add_norm(
        self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = x.shape
        out = torch.empty_like(x)
        total = x if more is None else torch.empty_like(x)
        other = 0 if more is None else more.data_ptr()
        threads = torch.get_num_threads()
        self._add_norm(
            x.data_ptr(), other, weight.data_ptr(), total.data_ptr(), out.data_ptr(), rows, width, eps, threads
        )
        return total, out

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, heads, size = x.shape
        threads = torch.get_num_threads()
        self._rotate(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), rows, x.stride(0), heads, size, threads)
        return x

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width))
        self._silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, width, torch.get_num_threads())
        return out


class NativeAttention:
    """Reads the paged cache in place, without gathering or padding."""

    def __init__(self, cache: PagedCache, native: Native) -> None:
        self.cache = cache
        self.instructions = native.instructions
        self._attend, self._attend_tiles = native.attend, native.attend_tiles
        self._flat = [
            (keys.flatten(0, 1), values.flatten(0, 1))
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self._work: AttentionWork | None = None

    def prepare(self, batch: InputBatch) -> None:
        self._work = divide(batch)

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
        work, (flat_keys, flat_values) = self._work, self._flat[layer]
        assert work is not None, "prepare comes before the first layer"
        flat_keys.index_copy_(0, work.batch.slot_mapping, key)
        flat_values.index_copy_(0, work.batch.slot_mapping, value)
        out = torch.empty(query.shape, dtype=query.dtype)
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        _, block_size, kv_heads, size = keys.shape
        where = [tensor.data_ptr() for tensor in (query, keys, values, out, work.table)]
        heads = query.shape[1]
        shape = (query.stride(0), work.table.shape[1], heads, kv_heads, size, block_size, window or 0, scale)
        threads = torch.get_num_threads()
        batch_positions = work.batch.positions.data_ptr()
        if len(work.tokens):
            short = (work.tokens.ctypes.data, work.rows.ctypes.data, batch_positions, len(work.tokens))
            self._attend(*where, *short, *shape, threads)
        if len(work.spans):
            begins, counts, rows = work.tiles(max(1, TILE_ROWS * kv_heads // heads))
            tiles = (begins.ctypes.data, rows.ctypes.data, batch_positions, counts.ctypes.data, len(begins))
            self._attend_tiles(*where, *tiles, *shape, threads)
        return out


class AttentionWork:
    """A batch as the compiled attention takes it: single tokens of short rows, spans of long ones.

    `tokens` int64 and `rows` int32 name the short rows' tokens; `spans` are (row, first token, tokens).
    """

    def __init__(
        self, batch: InputBatch, tokens: LongArray, rows: IntArray, spans: list[tuple[int, int, int]]
    ) -> None:
        self.batch, self.tokens, self.rows, self.spans = batch, tokens, rows, spans
        self.table = torch.from_numpy(batch.blocks)
        self._tiles: tuple[LongArray, LongArray, IntArray] | None = None

    def tiles(self, height: int) -> tuple[LongArray, LongArray, IntArray]:
        """The spans cut into at most `height` tokens: first tokens, counts and rows. The same for every layer."""
        if self._tiles is None:
            cut = [
                (begin, min(height, first + count - begin), row)
                for row, first, count in self.spans
                for begin in range(first, first + count, height)
            ]
            begins, counts, rows = zip(*cut, strict=True)
            self._tiles = (np.array(begins), np.array(counts), np.array(rows, dtype=np.int32))
        return self._tiles


def divide(batch: InputBatch) -> AttentionWork:
    """Short rows by token, the others whole."""
    lens = batch.query_lens
    starts = np.cumsum(lens) - lens
    row_of = np.repeat(np.arange(len(lens), dtype=np.int32), lens)
    tokens = np.flatnonzero((lens <= SHORT_QUERY)[row_of])
    long = np.flatnonzero(lens > SHORT_QUERY).tolist()
    return AttentionWork(batch, tokens, row_of[tokens], [(row, int(starts[row]), int(lens[row])) for row in long])


def can_attend(cache: PagedCache, num_heads: int) -> bool:
    """Whether the compiled attention has room for a model's heads and blocks."""
    shape = cache.shape
    return (
        shape.head_size <= MAX_HEAD_SIZE
        and num_heads // shape.num_kv_heads <= MAX_SHARED_HEADS
        and shape.block_size <= MAX_BLOCK_SIZE
    )
