"""The tiling stays within the device, and splitting fills it."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from schedtop.kernels.tiling import (
    MIN_KEYS_PER_SPLIT,
    choose_num_splits,
    choose_tiling,
    shared_estimate,
)


@pytest.mark.parametrize("shared_kib", [227, 163, 99, 64])
def test_tilings_fit_shared_memory(shared_kib: int) -> None:
    problems = itertools.product((1, 2, 5, 16, 4096), (1, 3, 7, 8, 16), (64, 128, 256), (2, 4))
    for query_len, group, head_pad, itemsize in problems:
        tiling = choose_tiling(query_len, group, head_pad, itemsize, shared_kib * 1024)
        assert tiling.tile_m >= max(16, group)
        assert tiling.tile_n >= 16
        fits = shared_estimate(tiling, head_pad, itemsize) <= shared_kib * 1024
        assert fits or tiling.tile_n == 16


def test_a_decode_batch_needs_one_tile_per_row() -> None:
    for group in (1, 4, 7, 8):
        assert choose_tiling(1, group, 128, 2, 227 * 1024).tile_m == 16


def test_a_full_device_is_not_split() -> None:
    assert choose_num_splits(num_programs=132 * 3, max_seq_len=100_000, num_sms=132) == 1


def test_one_long_request_is_split_over_the_device() -> None:
    splits = choose_num_splits(num_programs=8, max_seq_len=131_072, num_sms=132)
    assert 8 * splits >= 0.9 * 132 * 3


def test_short_rows_are_not_split() -> None:
    assert choose_num_splits(num_programs=1, max_seq_len=MIN_KEYS_PER_SPLIT, num_sms=132) == 1


@pytest.mark.parametrize(("shared_kib", "rows"), [(227, 128), (163, 64), (99, 64)])
def test_wide_heads_have_fewer_rows_where_queries_take_registers(shared_kib: int, rows: int) -> None:
    assert choose_tiling(2048, 2, 256, 2, shared_kib * 1024).tile_m == 64
    assert choose_tiling(2048, 2, 128, 2, shared_kib * 1024).tile_m == rows
    assert choose_tiling(2048, 2, 64, 2, shared_kib * 1024).tile_m == 128
