"""What the lean decoder does between its matrix products: in torch, or in one compiled pass each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

import torch
from schedtop.engine.runner.attention import SHORT_QUERY, TorchAttention
from schedtop.engine.runner.batch import Batch
from schedtop.engine.runner.cache import PagedCache
from schedtop.engine.runner.native import MAX_BLOCK_SIZE, MAX_HEAD_SIZE, MAX_SHARED_HEADS


class Operations(Protocol):
    """[T, ...] in, [T, ...] out; sums in float32."""

    def add_norm(
        self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + more` (just `x` if there is no more), and that over its root mean square, times `weight`."""
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

    def __init__(self, library: ctypes.CDLL) -> None:
        self._add_norm, self._rotate, self._silu_mul = library.add_norm, library.rotate, library.silu_mul

    def add_norm(
        self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = x.shape
        out = torch.empty_like(x)
        total = x if more is None else torch.empty_like(x)
        other = None if more is None else more.data_ptr()
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


class NativeAttention(TorchAttention):
    """Decodes and their drafts read the paged cache in place, without gathering or padding."""

    def __init__(self, cache: PagedCache, library: ctypes.CDLL) -> None:
        super().__init__(cache)
        self._native = library.attend
        self._tokens = self._rows = torch.empty(0)
        self._all_short = False

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        lens = torch.from_numpy(batch.query_lens)
        row_of = torch.repeat_interleave(torch.arange(len(lens), dtype=torch.int32), lens)
        short = (lens <= SHORT_QUERY)[row_of]
        self._all_short = bool(short.all())
        self._tokens = short.nonzero()[:, 0]
        self._rows = row_of[short]
        self._table = torch.from_numpy(batch.blocks)

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
        batch = self._batch
        assert batch is not None
        out = torch.empty(query.shape, dtype=query.dtype)
        if not self._all_short:
            self._attend_groups(self._long_groups(batch, window), layer, query, key, value, scale, out)
        if self._tokens.shape[0]:
            keys = self.cache.keys[layer]
            _, block_size, kv_heads, size = keys.shape
            self._native(
                query.data_ptr(),
                keys.data_ptr(),
                self.cache.values[layer].data_ptr(),
                out.data_ptr(),
                self._table.data_ptr(),
                self._tokens.data_ptr(),
                self._rows.data_ptr(),
                batch.positions.data_ptr(),
                self._tokens.shape[0],
                query.stride(0),
                self._table.shape[1],
                query.shape[1],
                kv_heads,
                size,
                block_size,
                window or 0,
                scale,
                torch.get_num_threads(),
            )
        return out


def can_attend(cache: PagedCache, num_heads: int) -> bool:
    """Whether the compiled attention has room for a model's heads and blocks."""
    shape = cache.shape
    return (
        shape.head_size <= MAX_HEAD_SIZE
        and num_heads // shape.num_kv_heads <= MAX_SHARED_HEADS
        and shape.block_size <= MAX_BLOCK_SIZE
    )
