"""Reads the packed fields of a step record, and the differences of totals."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import MOST_DRAFTS, ROW_FIELDS, StepRecord, Totals

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


def blocks_in_use(record: StepRecord) -> int:
    """Held and shared blocks right after scheduling; those after the step where a record does not say."""
    known = record.blocks_in_use
    return record.blocks.held + record.blocks.shared if known is None else known


def row_matrix(record: StepRecord) -> IntArray:
    """The rows of a record as an int32 matrix (`len(ROW_FIELDS)`, rows), a view of its bytes."""
    return np.frombuffer(record.rows, dtype=np.int32).reshape(len(ROW_FIELDS), -1)


def row_columns(record: StepRecord) -> dict[str, IntArray]:
    """The rows of a record by field name: int32 views, one entry per running request."""
    return dict(zip(ROW_FIELDS, row_matrix(record), strict=True))


def itl_column(record: StepRecord) -> FloatArray:
    """Seconds since each row's previous delivery, float32, NaN where there is none."""
    return np.frombuffer(record.itl_s, dtype=np.float32)


def draft_positions(record: StepRecord) -> npt.NDArray[np.int64]:
    """Drafts that a step verified, and those of them that were accepted, by position: int64 [2, `MOST_DRAFTS`].

    The placeholders of a padded admission count as drafted, as in vLLM.
    """
    if not record.draft_tokens:
        return np.zeros((2, MOST_DRAFTS), dtype=np.int64)
    rows = row_columns(record)
    places = np.arange(MOST_DRAFTS)[:, None]
    return np.array([(rows[name] > places).sum(axis=1) for name in ("drafts", "accepted")])


def totals_since(before: Totals, totals: Totals) -> Totals:
    """What was counted since `before`."""
    pairs = zip(msgspec.structs.astuple(before), msgspec.structs.astuple(totals), strict=True)
    return Totals(*(new - old for old, new in pairs))


def hit_rate(totals: Totals) -> float | None:
    """Share of looked-up prompt tokens found in the prefix cache; None if nothing was looked up."""
    # Engines that do not count look-ups have them wherever something was found.
    queries = totals.cache_queries or (totals.prompt_tokens if totals.cached_tokens else 0)
    return totals.cached_tokens / queries if queries else None


def block_changes(record: StepRecord) -> tuple[IntArray, IntArray]:
    """Ids of blocks whose class changed, and their new `BlockClass` values."""
    packed = np.frombuffer(record.changed_blocks, dtype=np.int32)
    return packed >> 2, packed & 3


def table_growth(grown: bytes, grown_blocks: bytes) -> Iterator[tuple[int, bytes]]:
    """From the two fields of a record: each request whose table grew, and the block ids it gained (int32)."""
    pairs, start = memoryview(grown).cast("i").tolist(), 0
    for number, count in zip(pairs[::2], pairs[1::2], strict=True):
        stop = start + 4 * count
        yield number, grown_blocks[start:stop]
        start = stop
