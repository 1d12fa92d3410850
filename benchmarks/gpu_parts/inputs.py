# mypy: allow-untyped-calls
"""Random inputs: rows over a paged cache, and sampling settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass
class Pool:
    """A paged cache of random keys and values, and a supply of its blocks in random order."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor

    @classmethod
    def random(
        cls, tokens: int, kv_heads: int, head_size: int, dtype: torch.dtype, device: torch.device, block_size: int
    ) -> Pool:
        shape = (tokens // block_size, block_size, kv_heads, head_size)
        caches = [torch.empty(shape, dtype=dtype, device=device).normal_() for _ in range(2)]
        return cls(caches[0], caches[1])

    def batch(self, query_lens: Sequence[int], seq_lens: Sequence[int], heads: int) -> PagedBatch:
        """Rows on random blocks, no block twice."""
        device, dtype = self.k_cache.device, self.k_cache.dtype
        num_blocks, block_size, _, head_size = self.k_cache.shape
        needed = [-(-length // block_size) for length in seq_lens]
        order = torch.randperm(num_blocks, device=device).int()
        table = torch.zeros(len(seq_lens), max(needed), dtype=torch.int32, device=device)
        for row, start in enumerate(itertools.accumulate(needed[:-1], initial=0)):
            table[row, : needed[row]] = order[start : start + needed[row]]
        query = torch.randn(sum(query_lens), heads, head_size, device=device).to(dtype)
        starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32, device=device)
        lengths = torch.tensor(seq_lens, dtype=torch.int32, device=device)
        tensors = (query, self.k_cache, self.v_cache, table, starts, lengths)
        return PagedBatch(tensors, torch.empty_like(query), max(query_lens), max(seq_lens))


@dataclass
class PagedBatch:
    """The tensors of an attention call, in the wrapper's order, and their host-side bounds."""

    tensors: tuple[torch.Tensor, ...]
    out: torch.Tensor
    max_query_len: int
    max_seq_len: int

    def attend(self, **options: Any) -> torch.Tensor:
        from schedtop.kernels.paged_attention import paged_attention

        return paged_attention(
            *self.tensors,
            max_query_len=self.max_query_len,
            max_seq_len=self.max_seq_len,
            scale=self.out.shape[-1] ** -0.5,
            out=self.out,
            **options,
        )

    def call(self, **options: Any) -> Callable[[], object]:
        return lambda: self.attend(**options)


def sampling_params(rows: int, device: torch.device, *, mixed: bool) -> Any:
    """Greedy rows, or every kind of row in turn."""
    from schedtop.kernels.sampling_params import SamplingTensors

    turn = torch.arange(rows)
    zeros = torch.zeros(rows)
    params = SamplingTensors(
        temperature=torch.tensor([0.0, 0.7, 1.0, 1.3])[turn % 4] if mixed else zeros,
        top_k=torch.tensor([0, 50, 5])[turn % 3].int() if mixed else zeros.int(),
        top_p=torch.tensor([1.0, 0.9, 0.5, 0.95, 1.0])[turn % 5] if mixed else zeros + 1,
        min_p=torch.tensor([0.0, 0.0, 0.05])[turn % 3] if mixed else zeros,
        seeds=torch.randint(0, 2**62, (rows,)),
        positions=turn + 5,
    )
    return moved_params(params, device)


def moved_params(params: Any, device: torch.device) -> Any:
    return replace(params, **{name: tensor.to(device) for name, tensor in vars(params).items()})
