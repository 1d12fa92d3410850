"""The K/V write puts every token in its slot and touches nothing else."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from schedtop.kernels import reference  # noqa: E402
from schedtop.kernels.kv_write import kv_write  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("num_heads", "head_size", "block_size"), [(2, 64, 8), (3, 80, 16), (1, 96, 32), (8, 128, 16), (5, 256, 8)]
)
def test_slots(device: Any, dtype: Any, num_heads: int, head_size: int, block_size: int) -> None:
    num_tokens, num_blocks = 23, 9
    # Keys and values arrive as slices of one projection.
    packed = torch.randn(num_tokens, 3, num_heads, head_size, device=device).to(dtype)
    key, value = packed[:, 1], packed[:, 2]
    slots = torch.randperm(num_blocks * block_size, device=device)[:num_tokens]
    slots[[3, 7]] = -1
    caches = [
        torch.full((num_blocks, block_size, num_heads, head_size), float("nan"), dtype=dtype, device=device)
        for _ in range(2)
    ]
    expected = [cache.clone() for cache in caches]
    kv_write(key, value, *caches, slots, check_values=True)
    reference.kv_write(key, value, *expected, slots)
    for cache, wanted in zip(caches, expected, strict=True):
        assert torch.equal(cache.isnan(), wanted.isnan())
        assert torch.equal(cache.nan_to_num(), wanted.nan_to_num())
    assert int((~caches[0].isnan()).sum()) == (num_tokens - 2) * num_heads * head_size


def test_interleaved_cache_and_last_slot(device: Any) -> None:
    both = torch.zeros(4, 2, 8, 2, 64, device=device)
    key, value = torch.randn(2, 1, 2, 64, device=device)
    kv_write(key, value, both[:, 0], both[:, 1], torch.tensor([31], device=device))
    assert torch.equal(both[3, 0, 7], key[0])
    assert torch.equal(both[3, 1, 7], value[0])
    assert int((both != 0).any(dim=-1).sum()) == 4


def test_only_padding(device: Any) -> None:
    cache = torch.zeros(1, 8, 1, 64, device=device)
    key = torch.randn(3, 1, 64, device=device)
    kv_write(key, key, cache, cache.clone(), torch.full((3,), -1, device=device))
    assert not cache.any()
    kv_write(key[:0], key[:0], cache, cache.clone(), torch.zeros(0, dtype=torch.int64, device=device))
