"""KV groups: layers that keep state alike share one, and all share the pool of blocks."""

from __future__ import annotations

from math import gcd, lcm

import msgspec


class KVGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One group: full attention, a sliding `window` of tokens, or `mamba` state ("none" or "align").

    "align" keeps a state at the end of chunks, "none" one for the whole request. `block_size` None: the engine's.
    """

    full: bool = False
    window: int | None = None
    mamba: str | None = None
    block_size: int | None = None


Entry = str | int | KVGroup
"""As it is written: "full", a window's size, or a group with its own block size."""


class GroupError(ValueError):
    """Groups that cannot be used together; the text says why."""


def read_groups(entries: tuple[Entry, ...], block_size: int, max_model_len: int) -> tuple[KVGroup, ...]:
    """The groups with their block sizes; raises `GroupError`."""
    if not entries:
        raise GroupError("kv_groups: name at least one group")
    groups = tuple(_read(entry, block_size, max_model_len) for entry in entries)
    sizes = {size_of(group) for group in groups}
    if any(group.mamba == "align" for group in groups) and len(sizes) > 1:
        raise GroupError('kv_groups: with a group {"mamba": "align"} all groups need one block size')
    if len({group.mamba for group in groups if group.mamba}) > 1:
        raise GroupError('kv_groups: mamba groups must be all "align" or all "none"')
    return groups


def _read(entry: Entry, block_size: int, max_model_len: int) -> KVGroup:
    if isinstance(entry, KVGroup):
        group = entry
    elif entry == "full":
        group = KVGroup(full=True)
    elif isinstance(entry, int):
        group = KVGroup(window=entry)
    else:
        raise GroupError(f'kv_groups: {entry!r} is no group: write "full", a window in tokens, or a group')
    if group.full + (group.window is not None) + (group.mamba is not None) != 1:
        raise GroupError("kv_groups: a group is one of full, window and mamba")
    if group.mamba not in (None, "none", "align"):
        raise GroupError(f"kv_groups: mamba={group.mamba!r}: write none or align")
    if group.window is not None and group.window < 1:
        raise GroupError(f"kv_groups: window={group.window}: must be at least 1")
    size = max_model_len if group.mamba == "none" else group.block_size or block_size
    if size < 1:
        raise GroupError(f"kv_groups: block_size={size}: must be at least 1")
    return msgspec.structs.replace(group, block_size=size)


def size_of(group: KVGroup) -> int:
    """Tokens of a block; the group has been read."""
    assert group.block_size is not None
    return group.block_size


def common_size(groups: tuple[KVGroup, ...]) -> int:
    """Least common multiple of the block sizes: what is cached in all groups is a multiple of it."""
    return lcm(*map(size_of, groups))


def hash_size(groups: tuple[KVGroup, ...]) -> int:
    """Tokens per key: greatest common divisor of the block sizes."""
    if any(group.mamba == "none" for group in groups):
        return common_size(groups)
    return gcd(*map(size_of, groups))
