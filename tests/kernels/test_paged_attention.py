"""Paged attention against a float64 reference; whatever must not be read is NaN."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.thorough import pick

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from schedtop.kernels import reference  # noqa: E402
from schedtop.kernels.paged_attention import paged_attention  # noqa: E402
from schedtop.kernels.tiling import Tiling  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded")

ErrorOf = Callable[[Any, Any], float]
BOUNDS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 5e-6}
SMALL = Tiling(tile_m=16, tile_n=16, num_warps=4, num_stages=1)


@dataclass
class Batch:
    """A paged batch; `arguments` are the tensors in the order of the wrapper's signature."""

    arguments: list[Any]
    query_lens: list[int]
    seq_lens: list[int]
    scale: float

    def run(self, **options: Any) -> Any:
        out = torch.full_like(self.arguments[0], float("nan"))
        return paged_attention(
            *self.arguments,
            max_query_len=max(self.query_lens),
            max_seq_len=max(self.seq_lens),
            scale=self.scale,
            out=out,
            check_values=True,
            **options,
        )

    def expected(self, **options: Any) -> Any:
        return reference.paged_attention(*self.arguments, scale=self.scale, **options)

    def error(self, error_of: ErrorOf, **options: Any) -> float:
        shared = {name: value for name, value in options.items() if name in ("window", "soft_cap")}
        num_tokens = sum(self.query_lens)
        return error_of(self.run(**options)[:num_tokens], self.expected(**shared)[:num_tokens])


def make_batch(
    device: Any,
    rows: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 64,
    block_size: int = 16,
    dtype: Any = None,
    window: int | None = None,
    padding_tokens: int = 0,
) -> Batch:
    """Rows are (query_len, seq_len). Slots that no query may see are NaN; unused table entries are invalid."""
    dtype = dtype or torch.float32
    query_lens, seq_lens = [row[0] for row in rows], [row[1] for row in rows]
    needed = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(needed) + 3
    free = torch.randperm(num_blocks).tolist()
    shape = (num_blocks, block_size, heads[1], head_size)
    caches = [torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2)]
    table = torch.full((len(rows), max(needed) + 1), 2**30, dtype=torch.int32, device=device)
    for row, (query_len, seq_len) in enumerate(rows):
        blocks = torch.tensor([free.pop() for _ in range(needed[row])], dtype=torch.int64, device=device)
        table[row, : len(blocks)] = blocks.int()
        first_seen = 0 if window is None else max(seq_len - query_len - window + 1, 0)
        positions = torch.arange(first_seen, seq_len, device=device)
        for cache in caches:
            fresh = torch.randn(len(positions), *shape[2:], dtype=torch.float32, device=device)
            cache[blocks[positions // block_size], positions % block_size] = fresh.to(dtype)
    query = torch.randn(sum(query_lens) + padding_tokens, heads[0], head_size, device=device).to(dtype)
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32, device=device)
    lengths = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    return Batch([query, *caches, table, starts, lengths], query_lens, seq_lens, head_size**-0.5)


MIXED = [(1, 1), (9, 9), (1, 64), (0, 0), (21, 70), (1, 33)]
KINDS = [(case, *pair) for case, pair in enumerate(itertools.product((64, 80, 96, 128, 256), BOUNDS))]


@pytest.mark.parametrize(("case", "head_size", "dtype_name"), pick(KINDS[::2], thorough=KINDS))
def test_every_head_size_and_dtype(
    device: Any, relative_error: ErrorOf, case: int, head_size: int, dtype_name: str
) -> None:
    block_size = (8, 16, 32)[(case + case // 3) % 3]
    batch = make_batch(device, MIXED, head_size=head_size, block_size=block_size, dtype=getattr(torch, dtype_name))
    assert batch.error(relative_error) < BOUNDS[dtype_name]


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("around", pick([16, 64], thorough=[16, 32, 64, 128]))
def test_lengths_around_full_blocks_and_tiles(
    device: Any, relative_error: ErrorOf, block_size: int, around: int
) -> None:
    rows = [(1, around - 1), (1, around), (1, around + 1), (around // 4, around), (around // 4, around + 1)]
    batch = make_batch(device, rows, heads=(2, 1), block_size=block_size)
    assert batch.error(relative_error, tiling=SMALL) < BOUNDS["float32"]


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (8, 2), (7, 1), (14, 2), (16, 1), (4, 4)])
def test_groups_of_query_heads(device: Any, relative_error: ErrorOf, heads: tuple[int, int]) -> None:
    batch = make_batch(device, [(5, 30), (1, 17)], heads=heads)
    assert batch.error(relative_error, tiling=SMALL) < BOUNDS["float32"]


@pytest.mark.parametrize(
    ("window", "num_splits"),
    [*((window, 1) for window in (1, 2, 15, 16, 17, 32, 40, 1000)), (1, 3), (17, 3), (40, 3)],
)
def test_window_edges(device: Any, relative_error: ErrorOf, window: int, num_splits: int) -> None:
    batch = make_batch(device, [(1, 1), (1, 16), (1, 90), (20, 20), (25, 77)], heads=(2, 1), window=window)
    error = batch.error(relative_error, window=window, tiling=SMALL, num_splits=num_splits)
    assert error < BOUNDS["float32"]


@pytest.mark.parametrize("soft_cap", [0.5, 50.0])
@pytest.mark.parametrize("window", [None, 24])
def test_soft_cap(device: Any, relative_error: ErrorOf, soft_cap: float, window: int | None) -> None:
    batch = make_batch(device, MIXED, window=window)
    assert batch.error(relative_error, soft_cap=soft_cap, window=window, num_splits=1) < BOUNDS["float32"]


def test_soft_cap_holds_where_the_exponential_overflows(device: Any, relative_error: ErrorOf) -> None:
    batch = make_batch(device, [(1, 40)])
    batch.arguments[0] *= 1000
    assert batch.error(relative_error, soft_cap=2.0) < BOUNDS["float32"]


@pytest.mark.parametrize("num_splits", [2, 3, 32])
def test_split_keys(device: Any, relative_error: ErrorOf, num_splits: int) -> None:
    rows = [(1, 16), (1, 300), (0, 0), (1, 97)]
    batch = make_batch(device, rows, heads=(4, 1), dtype=torch.float16)
    assert batch.error(relative_error, num_splits=num_splits) < BOUNDS["float16"]


def test_split_keys_of_a_mixed_batch(device: Any, relative_error: ErrorOf) -> None:
    batch = make_batch(device, MIXED, head_size=80)
    assert batch.error(relative_error, num_splits=3, tiling=SMALL) < BOUNDS["float32"]


def test_many_short_rows_share_no_tile(device: Any, relative_error: ErrorOf) -> None:
    query_lens = torch.randint(0, 7, (33,)).tolist()
    query_lens[0] = 19
    rows = [(length, length + int(torch.randint(0, 30, ()))) for length in query_lens]
    batch = make_batch(device, rows, heads=(8, 1))
    assert batch.error(relative_error, tiling=SMALL, num_splits=1) < BOUNDS["float32"]


def test_thousands_of_tokens(device: Any, relative_error: ErrorOf) -> None:
    decode = make_batch(device, [(1, 5003), (1, 2500)], heads=(2, 1), dtype=torch.bfloat16)
    assert decode.error(relative_error) < BOUNDS["bfloat16"]
    chunk = make_batch(device, [(40, 2500)], heads=(2, 1), dtype=torch.float16)
    assert chunk.error(relative_error) < BOUNDS["float16"]
    wide = make_batch(device, [(270, 2100)], heads=(1, 1), dtype=torch.float16)
    assert wide.error(relative_error, tiling=Tiling(256, 256, 8, 1)) < BOUNDS["float16"]


def test_rows_may_share_blocks(device: Any, relative_error: ErrorOf) -> None:
    batch = make_batch(device, [(1, 48), (1, 50), (7, 55)])
    table = batch.arguments[3]
    table[1, :3] = table[0, :3]
    table[2, :3] = table[0, :3]
    assert batch.error(relative_error, tiling=SMALL) < BOUNDS["float32"]


@pytest.mark.parametrize("num_splits", [1, 4])
def test_padding_is_left_alone_and_empty_rows_give_zeros(
    device: Any, relative_error: ErrorOf, num_splits: int
) -> None:
    batch = make_batch(device, [(1, 40), (1, 0), (1, 20), (0, 0), (0, 0)], padding_tokens=4)
    out = batch.run(num_splits=num_splits)
    assert relative_error(out[:3], batch.expected()[:3]) < BOUNDS["float32"]
    assert bool((out[1] == 0).all())
    assert bool(out[3:].isnan().all())


def test_strided_query_and_cache(device: Any, relative_error: ErrorOf) -> None:
    batch = make_batch(device, [(3, 20), (1, 9)])
    query, k_cache, v_cache = batch.arguments[:3]
    packed = torch.cat((query, torch.full_like(query, float("nan"))), dim=1)
    both = torch.stack((k_cache, v_cache), dim=1)
    batch.arguments[:3] = [packed[:, : query.shape[1]], both[:, 0], both[:, 1]]
    assert batch.error(relative_error) < BOUNDS["float32"]


def test_no_rows_and_no_tokens(device: Any) -> None:
    query, k_cache, v_cache, table, starts, lengths = make_batch(device, [(1, 5)]).arguments
    limits = {"max_query_len": 1, "max_seq_len": 5, "scale": 1.0, "check_values": True}
    out = paged_attention(query[:0], k_cache, v_cache, table[:0], starts[:1], lengths[:0], **limits)
    assert out.shape == (0, *query.shape[1:])


def test_a_graph_sized_bound_changes_nothing(device: Any) -> None:
    batch = make_batch(device, [(1, 40), (1, 7)])
    limits = {"max_query_len": 1, "scale": batch.scale, "num_splits": 2}
    short, long = (paged_attention(*batch.arguments, max_seq_len=bound, **limits) for bound in (40, 4096))
    assert torch.equal(short, long)
