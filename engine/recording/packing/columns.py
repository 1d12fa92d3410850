"""Packs columns of numbers into few bytes: differences first, then the narrowest type that holds them.

All arithmetic wraps around in the column's own integer type, and floats are compared bit by bit, so every step can
be undone exactly. What is left is mostly zeros and repeats, which the compressor behind this takes care of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Column = tuple[str, int, bytes]
"""How it is stored, the value of a constant column, and the bytes of any other."""

Optional = tuple[Column, bytes]
"""Floats of which some are None: which ones are there, and their bits."""

Ints = npt.NDArray[np.signedinteger[Any]]
Longs = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_NARROW: tuple[tuple[str, type[np.signedinteger[Any]]], ...] = (
    ("b", np.int8),
    ("h", np.int16),
    ("i", np.int32),
    ("q", np.int64),
)
_TYPES = dict(_NARROW)
_CONSTANT = "c"


class ColumnError(ValueError):
    """A stored column does not fit its batch."""


def pack(values: Ints) -> Column:
    """Integers of any signed type in the narrowest form."""
    if not len(values):
        return _CONSTANT, 0, b""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return _CONSTANT, low, b""
    for code, kind in _NARROW:
        bounds = np.iinfo(kind)
        if bounds.min <= low and high <= bounds.max:
            return code, 0, values.astype(kind).tobytes()
    raise AssertionError("int64 holds every signed integer")


def unpack(column: Column, count: int) -> Longs:
    """`count` integers. Raises `ColumnError` if the number differs."""
    code, value, data = column
    if code == _CONSTANT:
        if not -(1 << 63) <= value < 1 << 63:
            raise ColumnError("a constant out of range")
        return np.full(count, value, dtype=np.int64)
    kind = _TYPES.get(code)
    if kind is None or len(data) != count * np.dtype(kind).itemsize:
        raise ColumnError("a column of the wrong length")
    return np.frombuffer(data, dtype=kind).astype(np.int64)


def unpack32(column: Column, count: int) -> npt.NDArray[np.int32]:
    """As `unpack`, wrapped to int32."""
    return unpack(column, count).astype(np.int32)


def unpack_counts(column: Column, count: int, most: int) -> Longs:
    """`count` lengths of which none is negative and whose sum is at most `most`. Raises `ColumnError`."""
    counts = unpack(column, count)
    if count and (int(counts.min()) < 0 or int(counts.max()) > most or int(counts.sum()) > most):
        raise ColumnError("impossible lengths")
    return counts


def differences(values: Ints) -> Ints:
    """Each value less the one before it; the first stays."""
    result = values.copy()
    result[1:] -= values[:-1]
    return result


def sums(values: Ints) -> Any:
    """Undo `differences`."""
    return np.cumsum(values, dtype=values.dtype)


def bits_of(values: Sequence[float]) -> Bits:
    """Floats as 64-bit words."""
    return np.array(values, dtype=np.float64).view(np.uint64)


def pack_bits(bits: Bits) -> bytes:
    """64-bit words byte plane by byte plane, so that the equal high bytes are adjacent; nothing if all are 0."""
    if not bits.any():
        return b""
    return np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 8).T.tobytes()


def unpack_bits(data: bytes, count: int) -> Bits:
    """Undo `pack_bits`. Raises `ColumnError` if there are not `count` words."""
    if not data:
        return np.zeros(count, dtype=np.uint64)
    if len(data) != 8 * count:
        raise ColumnError("a float column of the wrong length")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(8, count)
    return np.ascontiguousarray(planes.T).view(np.uint64).reshape(count)


def chain(bits: Bits) -> Bits:
    """Each word xor the one before it."""
    result = bits.copy()
    result[1:] ^= bits[:-1]
    return result


def unchain(bits: Bits) -> Bits:
    """Undo `chain`."""
    return np.bitwise_xor.accumulate(bits)


def pack_optional(values: Sequence[float | None]) -> Optional:
    """Floats or None, chained."""
    there = np.array([value is not None for value in values], dtype=np.int8)
    return pack(there), pack_bits(chain(bits_of([value for value in values if value is not None])))


def unpack_optional(column: Optional, count: int) -> list[float | None]:
    """Undo `pack_optional`. Raises `ColumnError`."""
    there = np.flatnonzero(unpack(column[0], count)).tolist()
    values: list[float | None] = [None] * count
    stored = unchain(unpack_bits(column[1], len(there))).view(np.float64).tolist()
    for place, value in zip(there, stored, strict=True):
        values[place] = value
    return values
