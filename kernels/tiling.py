"""How much of the attention problem one program takes, and into how many parts a row's keys are split.

Pure arithmetic, so that the choice can be tested without a device. The numbers in `choose_tiling` are reasoned
from the registers and shared memory that the compiler reports (`benchmarks/compile_kernels.py`); `benchmarks/gpu.py`
sweeps around them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

MAX_SPLITS = 64
# A part shorter than this many keys costs more in the second reduction than it wins in parallelism.
MIN_KEYS_PER_SPLIT = 256
# From this much shared memory on, the tensor cores (of compute capability 9.0 and 10.0) read queries from it.
SHARED_QUERIES_BYTES = 200 * 1024
# Decode programs of the default tiling that fit on one multiprocessor at a time.
PROGRAMS_PER_SM = 3


@dataclass(frozen=True)
class Tiling:
    """One program's share: `tile_m` query heads (tokens x heads of a group) against `tile_n` keys at a time."""

    tile_m: int
    tile_n: int
    num_warps: int
    num_stages: int


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


@lru_cache(maxsize=256)
def choose_tiling(max_query_len: int, group: int, head_pad: int, itemsize: int, shared_bytes: int) -> Tiling:
    """Pick a tiling.

    max_query_len: tokens in the longest query; group: query heads per key head; head_pad: head size rounded
    up to a power of two; itemsize: bytes per cache element; shared_bytes: shared memory one program may use.
    """
    # The tensor cores take at least 16 rows, and one token's whole group must fit in a tile.
    smallest = max(16, _power_of_two_at_least(group))
    wanted = _power_of_two_at_least(max_query_len * group)
    if itemsize == 4:
        tiling = Tiling(max(smallest, min(wanted, 16 if head_pad > 128 else 32)), 32, 8, 2)
    elif wanted <= 32:
        # A head of 256 leaves 32 rows no registers for 64 keys.
        tiling = Tiling(max(smallest, wanted), 64 if head_pad <= 128 or wanted <= 16 else 32, 4, 5)
    elif shared_bytes < SHARED_QUERIES_BYTES:
        # Queries and sums share the registers: larger tiles spill.
        if head_pad <= 64:
            tiling = Tiling(max(smallest, min(wanted, 128)), 64, 8, 3)
        else:
            tiling = Tiling(max(smallest, 64), 32, 4 if head_pad <= 128 else 8, 3)
    elif wanted <= 64:
        tiling = Tiling(max(smallest, wanted), 64 if head_pad <= 128 else 32, 4, 3)
    else:
        # Wider key tiles spill registers at the larger head sizes.
        tile_n = 128 if head_pad <= 64 else 64 if head_pad <= 128 else 32
        tiling = Tiling(max(smallest, 128), tile_n, 8, 3)
    while tiling.tile_n > 16 and shared_estimate(tiling, head_pad, itemsize) > shared_bytes:
        tiling = replace(tiling, tile_n=tiling.tile_n // 2)
    return tiling


def shared_estimate(tiling: Tiling, head_pad: int, itemsize: int) -> int:
    """Upper estimate of a program's shared memory, in bytes: the queries once, keys and values per buffer.

    The compiler spends two stages on each buffer, for the load of the block table goes ahead of the load of
    the keys, and keeps one more buffer where the tensor cores run asynchronously.
    """
    buffers = max(1, (tiling.num_stages - 1) // 2) + 1
    scratch = 8 * 1024
    return scratch + itemsize * head_pad * (tiling.tile_m + 2 * tiling.tile_n * buffers)


@lru_cache(maxsize=1024)
def choose_num_splits(num_programs: int, max_seq_len: int, num_sms: int) -> int:
    """Into how many parts to split each row's keys so that the device is kept busy to the end.

    num_programs: programs without splitting (tiles x key heads). The device runs programs in waves of
    `num_sms * PROGRAMS_PER_SM`; the fewest parts whose last wave is nearly full are enough.
    """
    wave = num_sms * PROGRAMS_PER_SM
    most = max(1, min(MAX_SPLITS, max_seq_len // MIN_KEYS_PER_SPLIT))
    best, best_share = 1, 0.0
    for splits in range(1, most + 1):
        programs = num_programs * splits
        share = programs / (-(-programs // wave) * wave)
        if share >= 0.9:
            return splits
        if share > best_share:
            best, best_share = splits, share
    return best
