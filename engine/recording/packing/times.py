"""The times of many steps, each predicted from the others: a step begins where the last one ended, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from schedtop.engine.recording.packing.columns import (
    Bits,
    Column,
    Floats,
    Optional,
    bits_of,
    chain,
    pack,
    pack_bits,
    pack_optional,
    unchain,
    unpack,
    unpack_bits,
    unpack_optional,
)


class StoredTimes(msgspec.Struct, array_like=True, frozen=True):
    """Stored times: each start against the end before it, each end against its start; `oldest_since` says since
    when the oldest request waits."""

    starts: bytes
    ends: bytes
    execute: bytes
    busy: bytes
    schedule: Optional
    update: Optional
    oldest_there: Column
    oldest_since: bytes
    oldest_rest: bytes


class TimeColumns(msgspec.Struct, frozen=True):
    """The same, one entry per record."""

    start_s: Sequence[float]
    end_s: Sequence[float]
    execute_s: Sequence[float]
    busy_s: Sequence[float]
    schedule_s: Sequence[float | None]
    update_s: Sequence[float | None]
    oldest_wait_s: Sequence[float | None]


def pack_times(times: TimeColumns) -> StoredTimes:
    """The times of a batch."""
    start, end = np.array(times.start_s, dtype=np.float64), np.array(times.end_s, dtype=np.float64)
    both = chain(np.stack([start, end], axis=1).reshape(-1).view(np.uint64))
    spans = _less(end, start)
    waits = [(i, wait_s) for i, wait_s in enumerate(times.oldest_wait_s) if wait_s is not None]
    there = np.zeros(len(end), dtype=np.int8)
    there[[i for i, _ in waits]] = 1
    wait, wait_end = np.array([wait_s for _, wait_s in waits], dtype=np.float64), end[there == 1]
    since = _less(wait_end, wait)
    return StoredTimes(
        starts=pack_bits(both[::2]),
        ends=pack_bits(both[1::2]),
        execute=pack_bits(bits_of(times.execute_s) ^ spans.view(np.uint64)),
        busy=pack_bits(_unforeseen_sum(np.array(times.busy_s, dtype=np.float64), spans)),
        schedule=pack_optional(times.schedule_s),
        update=pack_optional(times.update_s),
        oldest_there=pack(there),
        oldest_since=pack_bits(chain(since.view(np.uint64))),
        oldest_rest=pack_bits(wait.view(np.uint64) ^ _less(wait_end, since).view(np.uint64)),
    )


def unpack_times(stored: StoredTimes, count: int) -> TimeColumns:
    """Undo `pack_times`. Raises `ColumnError`."""
    both = np.stack([unpack_bits(stored.starts, count), unpack_bits(stored.ends, count)], axis=1).reshape(-1)
    start, end = unchain(both).view(np.float64).reshape(count, 2).T.copy()
    spans = _less(end, start)
    there = np.flatnonzero(unpack(stored.oldest_there, count))
    since = unchain(unpack_bits(stored.oldest_since, len(there))).view(np.float64)
    wait = unpack_bits(stored.oldest_rest, len(there)) ^ _less(end[there], since).view(np.uint64)
    oldest: list[float | None] = [None] * count
    for place, wait_s in zip(there.tolist(), wait.view(np.float64).tolist(), strict=True):
        oldest[place] = wait_s
    return TimeColumns(
        start_s=start.tolist(),
        end_s=end.tolist(),
        execute_s=(unpack_bits(stored.execute, count) ^ spans.view(np.uint64)).view(np.float64).tolist(),
        busy_s=_foreseen_sum(unpack_bits(stored.busy, count), spans).tolist(),
        schedule_s=unpack_optional(stored.schedule, count),
        update_s=unpack_optional(stored.update, count),
        oldest_wait_s=oldest,
    )


def _less(left: Floats, right: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return left - right


def _unforeseen_sum(totals: Floats, steps: Floats) -> Bits:
    """Where a running total is not the one before plus its step: the differing bits; the first entry whole."""
    foreseen = np.zeros_like(totals)
    with np.errstate(all="ignore"):
        foreseen[1:] = totals[:-1] + steps[1:]
    return totals.view(np.uint64) ^ foreseen.view(np.uint64)


def _foreseen_sum(rest: Bits, steps: Floats) -> Floats:
    """Undo `_unforeseen_sum`: add up from each entry that was not foreseen to the next."""
    totals = np.zeros(len(rest), dtype=np.float64)
    breaks = [0, *(np.flatnonzero(rest[1:]) + 1).tolist(), len(rest)]
    for first, last in pairwise(breaks):
        with np.errstate(all="ignore"):
            foreseen = totals[first - 1] + steps[first] if first else np.float64(0.0)
            run = steps[first:last].copy()
            run[:1] = (np.array([foreseen]).view(np.uint64) ^ rest[first : first + 1]).view(np.float64)
            totals[first:last] = np.add.accumulate(run)
    return totals
