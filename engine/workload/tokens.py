"""Token ids made up from what a prompt shares with others: a pure function of seed, keys and place."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.handoff.request import TokenIds

Keys = npt.NDArray[np.uint64]

TEXT_BYTES_PER_TOKEN = 4
"""Without a tokenizer, this many bytes of a text count as a token."""

_GOLDEN = np.uint32(0x9E3779B9)
_MASK = 0xFFFFFFFFFFFFFFFF


def mixed(values: npt.ArrayLike, seed: int) -> Keys:
    """64-bit keys from 64-bit `values` (n,), one to one for each seed."""
    keys: Keys = _splitmix(np.array(values, dtype=np.uint64), seed)
    return keys


def mixed_number(value: int, seed: int) -> int:
    """What `mixed` makes of one value."""
    key: int = _splitmix(value, seed)
    return key


def key_tokens(keys: Keys, width: int, vocab_size: int) -> TokenIds:
    """`width` tokens for each of `keys` (n,), joined: int32 (n * width,), all below `vocab_size`.

    The tokens of a key do not depend on `width`: a shorter piece is the beginning of a longer one.
    """
    low = keys.astype(np.uint32)[:, None]
    high = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    return _below(_scrambled(_ramp(width) + low, high).reshape(-1), vocab_size)


def own_tokens(key: int, width: int, vocab_size: int) -> TokenIds:
    """What `key_tokens` makes of one key, int32 (width,)."""
    x = _ramp(width) + np.uint32(key & 0xFFFFFFFF)
    return _below(_scrambled(x, np.uint32(key >> 32)), vocab_size)


def text_tokens(text: bytes, vocab_size: int) -> TokenIds:
    """Stand-in tokens of a text: equal beginnings give equal tokens. int32, one per four bytes begun."""
    padded = text + b"\0" * (-len(text) % TEXT_BYTES_PER_TOKEN)
    return _below(_scrambled(np.frombuffer(padded, dtype="<u4").astype(np.uint32), _GOLDEN), vocab_size)


def _splitmix(value: Any, seed: int) -> Any:
    """The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), on a number or an array of uint64."""
    x = (value + ((seed * 0x9E3779B97F4A7C15) & _MASK)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@cache
def _steps(size: int) -> npt.NDArray[np.uint32]:
    steps = np.arange(size, dtype=np.uint32) * _GOLDEN
    steps.flags.writeable = False
    return steps


def _ramp(width: int) -> npt.NDArray[np.uint32]:
    """The first `width` multiples of an odd constant, modulo 2**32; a view of one of a few arrays."""
    return _steps(max(1 << (width - 1).bit_length(), 4096))[:width]


def _scrambled(x: npt.NDArray[np.uint32], salt: npt.NDArray[np.uint32] | np.uint32) -> npt.NDArray[np.uint32]:
    """`x`, changed in place: a 32-bit integer hash with a salt between its rounds."""
    x ^= x >> 16
    x *= np.uint32(0x7FEB352D)
    x ^= salt
    x ^= x >> 15
    x *= np.uint32(0x846CA68B)
    x ^= x >> 16
    return x


def _below(x: npt.NDArray[np.uint32], vocab_size: int) -> TokenIds:
    return (x * (vocab_size / 2**32)).astype(np.int32)
