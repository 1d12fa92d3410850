"""Many step records as one block of columns, and back, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from types import GenericAlias
from typing import Any, get_origin

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import Blocks, StepRecord, Totals
from schedtop.engine.recording.blocks import (
    BlockMoves,
    StoredBlocks,
    Tables,
    cut,
    pack_blocks,
    unpack_changes,
    unpack_gains,
)
from schedtop.engine.recording.packing.columns import (
    Column,
    ColumnError,
    Longs,
    differences,
    pack,
    sums,
    unpack,
    unpack32,
)
from schedtop.engine.recording.packing.rows import (
    NUMBER,
    Matrix,
    expected_gaps,
    matrix_of,
    order_of,
    pack_rows,
    split,
    unpack_rows,
)
from schedtop.engine.recording.packing.times import StoredTimes, TimeColumns, pack_times, unpack_times

MAX_RECORDS = 4096
MAX_ROWS = 1 << 20
"""Of one batch; with `MAX_IDS` they bound a reader's memory."""

_FIELDS: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(StepRecord)}
_INTS = (
    "seq",
    "step",
    "token_budget",
    "input_budget",
    "scheduled_tokens",
    "decode_tokens",
    "prefill_tokens",
    "draft_tokens",
    "recomputed_tokens",
    "input_rows",
    "running",
    "waiting",
    "knobs_version",
    "executed",
    "paused",
)
_BOOLS = ("executed", "paused")
_TIMES = ("start_s", "end_s", "execute_s", "schedule_s", "update_s", "oldest_wait_s")
_OTHERS = ("rows", "itl_s", "blocks", "changed_blocks", "grown", "grown_blocks", "totals")
_EVENTS = tuple(name for name in _FIELDS if name not in (*_INTS, *_TIMES, *_OTHERS))
"""Everything else, `limiter` included, is kept as is, one list per field; empty tuples are left out."""
_TUPLES = tuple(name for name in _EVENTS if get_origin(_FIELDS[name]) is tuple)
_EVENT_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    name: msgspec.msgpack.Decoder(GenericAlias(list, _FIELDS[name])) for name in _EVENTS
}
_DEFAULTS = dict(zip(reversed(_FIELDS), reversed(StepRecord.__struct_defaults__), strict=False))
"""Of the fields appended since recordings are read."""
_COUNTS = tuple(name for name in Totals.__struct_fields__ if name != "busy_s")
_GROWS_BY = (
    "scheduled_tokens",
    "recomputed_tokens",
    "draft_tokens",
    "token_budget",
    "input_rows",
    "input_budget",
)
"""Totals that an executed step raises by its field of the same name."""


class StoredBatch(msgspec.Struct, array_like=True, frozen=True):
    """A stored batch. `order` and what follows it have one entry per row, the first ones one per record."""

    num_records: int
    ints: list[Column]
    counts: list[Column]
    pool: list[Column]
    times: StoredTimes
    blocks: StoredBlocks
    event_places: list[Column]
    events: list[msgspec.Raw]
    row_counts: Column
    new_orders: Column
    numbers: Column
    rows: list[Column]
    gaps: Column


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredBatch)


def encode_batch(records: Sequence[StepRecord], block_size: int, tables: Tables) -> bytes:
    """At most `MAX_RECORDS` records with at most `MAX_ROWS` rows in total, before compression.

    `tables` are those before the first record; they are moved on to after the last.
    """
    columns = dict(zip(_FIELDS, zip(*map(msgspec.structs.astuple, records), strict=True), strict=True))
    ints = {name: np.array(columns[name], dtype=np.int64) for name in _INTS}
    totals = _columns_of(Totals, columns["totals"])
    matrix, row_counts = matrix_of(columns["rows"])
    order = order_of(matrix[NUMBER])
    new_orders, numbers = _changed_orders(matrix[NUMBER], row_counts)
    gaps = np.frombuffer(b"".join(columns["itl_s"]), dtype=np.uint32)
    unforeseen = gaps ^ expected_gaps(matrix, order, row_counts, np.array(columns["end_s"], dtype=np.float64))
    batch = StoredBatch(
        num_records=len(records),
        ints=[pack(differences(column)) for column in ints.values()],
        counts=[pack(_growth(name, totals[name], ints)) for name in _COUNTS],  # new ones last: readers pad
        pool=[pack(differences(_longs(column))) for column in _columns_of(Blocks, columns["blocks"]).values()],
        times=pack_times(TimeColumns(busy_s=totals["busy_s"], **{name: columns[name] for name in _TIMES})),
        blocks=pack_blocks(_moves(columns), columns["changed_blocks"], tables),
        event_places=[pack(np.array([bool(value) for value in columns[name]], dtype=np.int8)) for name in _TUPLES],
        events=[msgspec.Raw(_encoder.encode(_kept(name, columns[name]))) for name in _EVENTS],
        row_counts=pack(differences(row_counts)),
        new_orders=pack(new_orders),
        numbers=pack(numbers),
        rows=pack_rows(matrix, order, block_size),
        gaps=pack(unforeseen[order].view(np.int32)),
    )
    return _encoder.encode(batch)


def decode_batch(data: bytes, block_size: int, tables: Tables) -> list[StepRecord]:
    """Undo `encode_batch`, from the same `tables`. Raises `ValueError` for bytes that are not a batch."""
    batch = _decoder.decode(data)
    n = batch.num_records
    if not 0 < n <= MAX_RECORDS:
        raise ColumnError("a batch of impossible size")
    ints = {name: sums(unpack(column, n)) for name, column in zip(_INTS, batch.ints, strict=True)}
    times = unpack_times(batch.times, n)
    counts = [_regrow(name, column, ints) for name, column in zip(_COUNTS, batch.counts, strict=False)]
    pool = [sums(unpack(column, n)).tolist() for column in batch.pool]
    columns: dict[str, Any] = {name: column.tolist() for name, column in ints.items()}
    columns |= {name: [bool(value) for value in columns[name]] for name in _BOOLS}
    columns |= {name: getattr(times, name) for name in _TIMES}
    columns |= {name: [_DEFAULTS[name]] * n for name in _EVENTS if name in _DEFAULTS}
    # Older recordings lack the last ones.
    columns |= {name: _EVENT_DECODERS[name].decode(raw) for name, raw in zip(_EVENTS, batch.events, strict=False)}
    for name, places in zip(_TUPLES, batch.event_places, strict=False):
        columns[name] = _spread(columns[name], np.flatnonzero(unpack(places, n)).tolist(), n)
    columns["blocks"] = [Blocks(*row) for row in zip(*pool, strict=True)]
    counts += [[0] * n for _ in _COUNTS[len(counts) :]]  # from a version that did not count these yet
    columns["totals"] = _rebuild(Totals, dict(zip(_COUNTS, counts, strict=True)) | {"busy_s": times.busy_s})
    columns["grown"], columns["grown_blocks"] = unpack_gains(batch.blocks, n)
    columns["changed_blocks"] = unpack_changes(batch.blocks, _moves(columns), tables)
    columns["rows"], columns["itl_s"] = _unpack_matrix(batch, np.array(times.end_s), block_size)
    return _rebuild(StepRecord, columns)


def _unpack_matrix(batch: StoredBatch, end_s: Any, block_size: int) -> tuple[list[bytes], list[bytes]]:
    row_counts = sums(unpack32(batch.row_counts, batch.num_records))
    if int(row_counts.min()) < 0 or int(row_counts.sum(dtype=np.int64)) > MAX_ROWS:
        raise ColumnError("impossible numbers of rows")
    numbers = _all_orders(batch, row_counts)
    order = order_of(numbers)
    matrix = unpack_rows(batch.rows, order, numbers, block_size)
    gaps = np.empty(len(order), dtype=np.uint32)
    gaps[order] = unpack32(batch.gaps, len(order)).view(np.uint32)
    gaps ^= expected_gaps(matrix, order, row_counts, end_s)
    return split(matrix, row_counts), cut(gaps.tobytes(), row_counts.astype(np.int64) * 4)


def _kept(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return [value for value in values if value] if name in _TUPLES else values


def _spread(kept: list[Any], places: list[int], count: int) -> list[Any]:
    """Undo `_kept`: every one at its place, empty ones elsewhere."""
    spread: list[Any] = [()] * count
    for place, value in zip(places, kept, strict=True):
        spread[place] = value
    return spread


def _moves(columns: dict[str, Any]) -> BlockMoves:
    return BlockMoves(**{name: columns[name] for name in BlockMoves.__struct_fields__})


def _changed_orders(numbers: Any, row_counts: Any) -> tuple[Any, Any]:
    """Which records run other requests, or in another order, than the one before; and those requests."""
    changed = np.zeros(len(row_counts), dtype=np.int8)
    kept = []
    before = b""
    for i, data in enumerate(cut(numbers.tobytes(), row_counts.astype(np.int64) * 4)):
        if data != before:
            changed[i] = 1
            kept.append(data)
            before = data
    return changed, np.frombuffer(b"".join(kept), dtype=np.int32)


def _all_orders(batch: StoredBatch, row_counts: Any) -> Matrix:
    changed = unpack(batch.new_orders, batch.num_records) != 0
    sizes = row_counts[changed].astype(np.int64)
    lists = cut(unpack32(batch.numbers, int(sizes.sum())).tobytes(), sizes * 4)
    which = np.cumsum(changed).tolist()
    whole = [lists[i - 1] if i else b"" for i in which]
    if any(len(data) != 4 * size for data, size in zip(whole, row_counts.tolist(), strict=True)):
        raise ColumnError("an order of the wrong length")
    return np.frombuffer(b"".join(whole), dtype=np.int32)


def _columns_of(kind: type[msgspec.Struct], structs: Sequence[msgspec.Struct]) -> dict[str, Any]:
    columns = zip(*map(msgspec.structs.astuple, structs), strict=True)
    return dict(zip(kind.__struct_fields__, columns, strict=True))


def _rebuild(kind: Any, columns: dict[str, Any]) -> list[Any]:
    ordered = [columns[name] for name in kind.__struct_fields__]
    return [kind(*row) for row in zip(*ordered, strict=True)]


def _longs(column: Sequence[int]) -> Longs:
    return np.array(column, dtype=np.int64)


def _growth(name: str, totals: Sequence[int], ints: dict[str, Longs]) -> Longs:
    """What a total grew by beyond what its record says."""
    grown = differences(_longs(totals))
    if name in _GROWS_BY:
        grown[1:] -= (ints[name] * ints["executed"])[1:]
    return grown.astype(np.int64)


def _regrow(name: str, column: Column, ints: dict[str, Longs]) -> list[int]:
    grown = unpack(column, len(ints["seq"]))
    if name in _GROWS_BY:
        grown[1:] += (ints[name] * ints["executed"])[1:]
    totals: list[int] = sums(grown).tolist()
    return totals
