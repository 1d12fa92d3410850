"""The compiled attention against its definition in float64, in both of its dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.models.fused import NativeAttention
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def make_batch(query_lens: list[int], contexts: list[int], block_size: int, rng: np.random.Generator) -> InputBatch:
    """Rows of new tokens behind contexts, in blocks that lie anywhere."""
    ends = [query + context for query, context in zip(query_lens, contexts, strict=True)]
    columns = -(-max(ends) // block_size)
    blocks = rng.permutation(len(ends) * columns).astype(np.int32).reshape(len(ends), columns)
    rows = [(row, place) for row, end in enumerate(ends) for place in range(contexts[row], end)]
    slots = [int(blocks[row, place // block_size]) * block_size + place % block_size for row, place in rows]
    return InputBatch(
        token_ids=torch.zeros(len(rows), dtype=torch.int64),
        positions=torch.tensor([place for _, place in rows]),
        slot_mapping=torch.tensor(slots),
        query_start_loc=torch.tensor([0, *np.cumsum(query_lens).tolist()], dtype=torch.int32),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_table=torch.from_numpy(blocks),
        logit_tokens=None,
        query_lens=np.array(query_lens, dtype=np.int32),
        contexts=np.array(contexts, dtype=np.int32),
        blocks=blocks,
    )


def by_definition(
    query: torch.Tensor, cache: PagedCache, batch: InputBatch, scale: float, window: int | None
) -> torch.Tensor:
    """Softmax over every key a token sees, float64 [T, heads, size]."""
    out, token = torch.empty(query.shape, dtype=torch.float64), 0
    for row, count in enumerate(batch.query_lens.tolist()):
        held = [
            store[0][batch.block_table[row].long()].flatten(0, 1).double() for store in (cache.keys, cache.values)
        ]
        keys, values = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in held)
        for place in range(int(batch.contexts[row]), int(batch.contexts[row]) + count):
            first = 0 if window is None else max(0, place + 1 - window)
            scores = torch.einsum("hd,khd->hk", query[token].double(), keys[first : place + 1]) * scale
            out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[first : place + 1])
            token += 1
    return out


SHAPES = [(9, 3, 64, 16), (4, 4, 64, 8), (8, 2, 128, 16), (5, 1, 24, 5), (4, 2, 80, 16), (2, 1, 256, 256)]
"""Query heads, key heads, head size, block size."""

INSTRUCTIONS = ("avx512-bf16-fma", "avx512-bf16", "avx512", "avx2", "baseline")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("threads", [1, 2])
def test_equals_the_definition(
    lab: Any,
    dtype: torch.dtype,
    instructions: str,
    shape: tuple[int, int, int, int],
    window: int | None,
    threads: int,
) -> None:
    native = lab.pick_native(dtype, instructions)
    heads, kv_heads, size, block_size = shape
    rng = np.random.default_rng(7)
    torch.manual_seed(7)
    batch = make_batch([1, 1, 2, 8, 13, 1], [0, 37, 15, 16, 20, 95], block_size, rng)
    cache = PagedCache(CacheShape(1, block_size, kv_heads, size, dtype), batch.blocks.size, CPU)
    for store in (cache.keys[0], cache.values[0]):
        store.copy_(torch.randn(store.shape))
    # As the decoder gives it: rows of query, key and value side by side.
    qkv = torch.randn(len(batch.positions), heads + 2 * kv_heads, size).to(dtype)
    query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
    attention = NativeAttention(cache, native)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        attention.prepare(batch)
        out = attention(0, query, key, value, scale=size**-0.5, window=window)
    finally:
        torch.set_num_threads(before)
    wanted = by_definition(query, cache, batch, size**-0.5, window)
    assert (out.double() - wanted).abs().max() < TOLERANCE[dtype]
