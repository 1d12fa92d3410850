"""The identity of a prompt block, by everything before it: it outlives an engine's own keys."""

from __future__ import annotations

from hashlib import blake2b

from schedtop.engine.contract.telemetry import PREFIX_KEY_BYTES

PATH_KEY_BYTES = 8


def path_keys(prefix_keys: bytes) -> list[bytes]:
    """`PATH_KEY_BYTES` for each full prompt block, from its part of `prefix_keys` and those of all before it."""
    keys, path = [], b""
    for at in range(0, len(prefix_keys), PREFIX_KEY_BYTES):
        path = next_path(path, prefix_keys[at : at + PREFIX_KEY_BYTES])
        keys.append(path)
    return keys


def recorded_keys(prefix_keys: bytes) -> list[bytes]:
    """Keys for each full prompt block of a recorded request: describing it again gives the same keys."""
    parts = (prefix_keys[at : at + PREFIX_KEY_BYTES] for at in range(0, len(prefix_keys), PREFIX_KEY_BYTES))
    return [part + path for part, path in zip(parts, path_keys(prefix_keys), strict=True)]


def next_path(path: bytes, key: bytes) -> bytes:
    """The path key of a block with `key` behind the block of `path` (empty: the first one)."""
    return blake2b(path + key[:PREFIX_KEY_BYTES], digest_size=PATH_KEY_BYTES).digest()
