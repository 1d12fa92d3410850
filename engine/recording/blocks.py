"""Block tables and class changes of many steps. Most changes follow from the tables, so only the rest is stored.

A block that a table gained is held now, and the blocks of a request that finished or was preempted are free now.
Writer and reader keep the same tables (from the keyframe on) and foresee the same changes; where the engine did
otherwise, that is stored, so that nothing depends on the guess being right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.reading import table_growth
from schedtop.engine.contract.telemetry import Admission, BlockClass, Finish, Preemption, Snapshot
from schedtop.engine.recording.packing.columns import (
    Column,
    ColumnError,
    Longs,
    differences,
    pack,
    sums,
    unpack32,
    unpack_counts,
)

MAX_IDS = 1 << 20
"""Block ids in one batch, of tables and of changes each."""

Tables = dict[int, bytes]
"""Block ids (int32) of every request that holds some, by number."""

_UNTOUCHED = 4
"""Stored as the class of a block that was predicted to change and did not."""


class StoredBlocks(msgspec.Struct, array_like=True, frozen=True):
    """Gains: entries per record, their request and length, the ids end to end. Changes: per record, id and class.

    `foreseen`: the changes are in order of id and hold only what the tables do not; `freed` is the class expected
    of a freed block.
    """

    entries: Column
    numbers: Column
    lengths: Column
    ids: Column
    foreseen: bool
    freed: int
    changes: Column
    changed_ids: Column
    classes: Column


class BlockMoves(msgspec.Struct, frozen=True):
    """What moves blocks in each record of a batch."""

    grown: Sequence[bytes]
    grown_blocks: Sequence[bytes]
    admissions: Sequence[list[Admission]]
    preemptions: Sequence[list[Preemption]]
    finishes: Sequence[list[Finish]]


def tables_of(snapshot: Snapshot) -> Tables:
    """The tables at a keyframe."""
    held = {request.arrival.number: request.table + b"".join(request.further) for request in snapshot.requests}
    return {number: table for number, table in held.items() if table}


def follow(tables: Tables, moves: BlockMoves) -> list[bytes]:
    """Move `tables` on; returns the block ids that each record should have freed."""
    freed = []
    each = zip(*msgspec.structs.astuple(moves), strict=True)
    for grown, grown_blocks, admissions, preemptions, finishes in each:
        gone = [tables.pop(preemption.number, b"") for preemption in preemptions]
        for admission in admissions:
            tables.pop(admission.number, None)
        for number, ids in table_growth(grown, grown_blocks):
            tables[number] = tables.get(number, b"") + ids
        gone += [tables.pop(finish.number, b"") for finish in finishes]
        freed.append(b"".join(gone))
    return freed


def pack_blocks(moves: BlockMoves, changed: Sequence[bytes], tables: Tables) -> StoredBlocks:
    """What moved in a batch, and `changed_blocks`; moves `tables` on."""
    entries, pairs, ids = _flatten(moves)
    counts = np.array([len(data) // 4 for data in changed], dtype=np.int64)
    packed = np.frombuffer(b"".join(changed), dtype=np.int32)
    keys, classes = _keys(counts, packed >> 2), packed & 3
    gained, gone = _gained(entries, pairs[:, 1], ids), _gone(follow(tables, moves))
    foreseen = bool(np.all(keys[1:] > keys[:-1]))
    freed = BlockClass.CACHED_FREE
    if foreseen:
        if 2 * np.count_nonzero(classes[_among(keys, gone)] == freed) < len(gone):
            freed = BlockClass.EMPTY
        keys, classes = _unforeseen(keys, classes, *_foresee(gained, gone, freed))
        counts = np.bincount(keys >> 32, minlength=len(changed))
    return StoredBlocks(
        entries=pack(entries),
        numbers=pack(differences(pairs[:, 0])),
        lengths=pack(pairs[:, 1]),
        ids=pack(differences(ids)),
        foreseen=foreseen,
        freed=int(freed),
        changes=pack(counts),
        changed_ids=pack(differences(keys.astype(np.int32))),
        classes=pack(classes),
    )


def unpack_gains(stored: StoredBlocks, count: int) -> tuple[list[bytes], list[bytes]]:
    """`grown` and `grown_blocks` of `count` records. Raises `ColumnError`."""
    entries = unpack_counts(stored.entries, count, MAX_IDS)
    num_entries = int(entries.sum())
    lengths = unpack_counts(stored.lengths, num_entries, MAX_IDS)
    ids = sums(unpack32(stored.ids, int(lengths.sum())))
    numbers = sums(unpack32(stored.numbers, num_entries))
    pairs = np.stack([numbers, lengths], axis=1).astype(np.int32)
    return cut(pairs.tobytes(), entries * 8), cut(ids.tobytes(), _per_record(entries, lengths) * 4)


def unpack_changes(stored: StoredBlocks, moves: BlockMoves, tables: Tables) -> list[bytes]:
    """`changed_blocks`; moves `tables` on. Raises `ColumnError`."""
    num_records = len(moves.grown)
    counts = unpack_counts(stored.changes, num_records, MAX_IDS)
    num = int(counts.sum())
    keys = _keys(counts, sums(unpack32(stored.changed_ids, num)))
    classes = unpack32(stored.classes, num)
    if num and not 0 <= int(classes.min()) <= int(classes.max()) <= _UNTOUCHED:
        raise ColumnError("an unknown block class")
    gone = _gone(follow(tables, moves))
    if stored.foreseen:
        entries, pairs, ids = _flatten(moves)
        expected, expected_classes = _foresee(_gained(entries, pairs[:, 1], ids), gone, stored.freed)
        kept = ~_among(expected, keys)
        touched = classes != _UNTOUCHED
        keys = np.concatenate([keys[touched], expected[kept]])
        order = np.argsort(keys, kind="stable")
        keys, classes = keys[order], np.concatenate([classes[touched], expected_classes[kept]])[order]
        counts = np.bincount(keys >> 32, minlength=num_records)
    return cut((keys.astype(np.int32) << 2 | classes).astype(np.int32).tobytes(), counts * 4)


def cut(data: bytes, lengths: npt.NDArray[np.integer[Any]]) -> list[bytes]:
    """`data` in pieces of these lengths."""
    ends = np.cumsum(lengths).tolist()
    return [data[end - length : end] for length, end in zip(lengths.tolist(), ends, strict=True)]


def _unforeseen(keys: Longs, classes: Any, expected: Longs, expected_classes: Any) -> tuple[Longs, Any]:
    """The changes that are not among the expected ones, and those expected that did not come."""
    right = np.zeros(len(keys), dtype=np.bool_)
    if len(expected):
        place = np.searchsorted(expected[:-1], keys)
        right = (expected[place] == keys) & (expected_classes[place] == classes)
    absent = expected[~_among(expected, keys)]
    keys = np.concatenate([keys[~right], absent])
    classes = np.concatenate([classes[~right], np.full(len(absent), _UNTOUCHED, dtype=np.int32)])
    order = np.argsort(keys, kind="stable")
    return keys[order], classes[order]


def _foresee(gained: Longs, gone: Longs, freed: int) -> tuple[Longs, npt.NDArray[np.int32]]:
    keys = _distinct(np.concatenate([gained, gone]))
    return keys, np.where(_among(keys, gone), freed, BlockClass.HELD).astype(np.int32)


def _flatten(moves: BlockMoves) -> tuple[Longs, Longs, npt.NDArray[np.int32]]:
    """Entries per record; of each entry (entries, 2) request and length; and all ids."""
    entries = np.array([len(pairs) // 8 for pairs in moves.grown], dtype=np.int64)
    pairs = np.frombuffer(b"".join(moves.grown), dtype=np.int32).reshape(-1, 2).astype(np.int64)
    return entries, pairs, np.frombuffer(b"".join(moves.grown_blocks), dtype=np.int32)


def _keys(counts: Longs, ids: npt.NDArray[np.int32]) -> Longs:
    """Record and block id as one number."""
    return (np.repeat(np.arange(len(counts)), counts) << 32) | ids.view(np.uint32)


def _gained(entries: Longs, lengths: Longs, ids: npt.NDArray[np.int32]) -> Longs:
    """Keys of all blocks that tables gained, once each; released blocks (-1) are none."""
    return _distinct(_keys(_per_record(entries, lengths), ids)[ids >= 0])


def _per_record(entries: Longs, lengths: Longs) -> Longs:
    """How many blocks the tables of each record gained in total."""
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(entries)]
    return np.diff(ends, prepend=0)


def _gone(freed: list[bytes]) -> Longs:
    """Keys of all blocks that should have been freed, once each."""
    ids = np.frombuffer(b"".join(freed), dtype=np.int32)
    counts = np.array([len(data) // 4 for data in freed], dtype=np.int64)
    return _distinct(_keys(counts, ids)[ids >= 0])


def _distinct(keys: Longs) -> Longs:
    """`keys` in order, once each; `np.unique` hashes them, which is slower on keys that are nearly in order."""
    keys = np.sort(keys)
    first: Longs = keys[np.diff(keys, prepend=-1) != 0]
    return first


def _among(keys: Longs, others: Longs) -> npt.NDArray[np.bool_]:
    """Which of `keys` are among `others`, which are in order."""
    if not len(others):
        return np.zeros(len(keys), dtype=np.bool_)
    found: npt.NDArray[np.bool_] = others[np.searchsorted(others[:-1], keys)] == keys
    return found
