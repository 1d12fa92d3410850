"""The rows of many steps as columns, each predicted from the same request's row of the step before.

Rows are sorted by request and step (a stable sort that the reader repeats from the request numbers alone). Along
one request, a steady decode is then predicted in full, and only what was not predicted is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS, RowFlag
from schedtop.engine.recording.packing.columns import Column, ColumnError, differences, pack, sums, unpack32

Matrix = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]
Order = npt.NDArray[np.intp]

NUMBER, TOKENS, DRAFTS, ACCEPTED, COMPUTED, NEEDED, EMITTED, BLOCKS, FLAGS = range(len(ROW_FIELDS))
_NO_GAP = np.float32("nan").view(np.uint32)


def matrix_of(rows: Sequence[bytes]) -> tuple[Matrix, npt.NDArray[np.int32]]:
    """All rows side by side (`len(ROW_FIELDS)`, total), and how many each step has."""
    width = len(ROW_FIELDS)
    parts = [np.frombuffer(data, dtype=np.int32).reshape(width, -1) for data in rows]
    counts = np.array([part.shape[1] for part in parts], dtype=np.int32)
    return np.concatenate(parts, axis=1) if parts else np.zeros((width, 0), dtype=np.int32), counts


def split(matrix: Matrix, counts: npt.NDArray[np.int32]) -> list[bytes]:
    """Undo `matrix_of`."""
    ends = np.cumsum(counts).tolist()
    return [matrix[:, end - count : end].tobytes() for count, end in zip(counts.tolist(), ends, strict=True)]


def order_of(numbers: npt.NDArray[np.int32]) -> Order:
    """Positions sorted by request, then by step."""
    if not len(numbers):
        return np.zeros(0, dtype=np.intp)
    low = int(numbers.min())
    # 16-bit keys are sorted by radix, several times faster.
    keys = (numbers - low).astype(np.uint16) if int(numbers.max()) - low < 1 << 16 else numbers
    return np.argsort(keys, kind="stable")


def pack_rows(matrix: Matrix, order: Order, block_size: int) -> list[Column]:
    """The columns after the request number, sorted by `order`."""
    tokens, drafts, accepted, computed, needed, emitted, blocks, flags = matrix[1:, order]
    computed_ahead = np.zeros_like(computed)
    computed_ahead[1:] = (tokens - drafts + accepted)[:-1]
    needed_ahead = np.zeros_like(needed)
    needed_ahead[1:] = emitted[:-1]
    return [
        pack(tokens),
        pack(drafts),
        pack(accepted),
        pack(differences(computed) - computed_ahead),
        pack(differences(needed) - needed_ahead),
        pack(emitted - _expected_outputs(flags, accepted)),
        pack(differences(blocks - _expected_blocks(computed, tokens, block_size))),
        pack(flags),
    ]


def unpack_rows(columns: list[Column], order: Order, numbers: npt.NDArray[np.int32], block_size: int) -> Matrix:
    """Undo `pack_rows`. Raises `ColumnError`."""
    if len(columns) != len(ROW_FIELDS) - 1:
        raise ColumnError("rows of another shape")
    count = len(order)
    tokens, drafts, accepted, computed, needed, emitted, blocks, flags = (
        unpack32(column, count) for column in columns
    )
    emitted = emitted + _expected_outputs(flags, accepted)
    computed[1:] += (tokens - drafts + accepted)[:-1]
    needed[1:] += emitted[:-1]
    computed, needed = sums(computed), sums(needed)
    blocks = sums(blocks) + _expected_blocks(computed, tokens, block_size)
    matrix = np.empty((len(ROW_FIELDS), count), dtype=np.int32)
    matrix[0] = numbers
    matrix[1:, order] = [tokens, drafts, accepted, computed, needed, emitted, blocks, flags]
    return matrix


def _expected_outputs(flags: Matrix, accepted: Matrix) -> Matrix:
    return np.where(flags & RowFlag.SAMPLED, accepted + 1, 0).astype(np.int32)


def _expected_blocks(computed: Matrix, tokens: Matrix, block_size: int) -> Matrix:
    return -(-(computed + tokens) // block_size)


def expected_gaps(
    matrix: Matrix, order: Order, counts: npt.NDArray[np.int32], end_s: npt.NDArray[np.float64]
) -> Words:
    """Bits of each row's inter-token time (original order), were every output delivered at the end of its step."""
    gaps = np.full(len(order), _NO_GAP, dtype=np.uint32)
    if not len(order):
        return gaps
    numbers, emitted = matrix[NUMBER, order], matrix[EMITTED, order]
    ends = np.repeat(end_s, counts)[order]
    delivered = emitted > 0
    # Index of each row's previous delivery, which counts if it is the same request's.
    last = np.maximum.accumulate(np.where(delivered, np.arange(len(order)), -1))
    before = np.empty_like(last)
    before[0], before[1:] = -1, last[:-1]
    known = delivered & (before >= 0) & (numbers[before] == numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        times = (ends - ends[before]).astype(np.float32).view(np.uint32)
    gaps[order] = np.where(known, times, _NO_GAP)
    return gaps
