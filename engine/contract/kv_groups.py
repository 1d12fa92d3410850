"""KV groups: layers that keep state in the same way share a group, and all groups share the pool of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm
from typing import Any, NamedTuple

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
    """An invalid combination of groups; the text says why."""


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
        raise GroupError(f'kv_groups: {entry!r} is not a group: write "full", a window in tokens, or a group')
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


class GroupKind(NamedTuple):
    """Equal groups: their name, their number, and the index of the first among all."""

    label: str
    groups: tuple[int, ...]
    full: bool


def kinds_of(config: Mapping[str, Any]) -> list[GroupKind]:
    """The kinds of groups in an engine's settings (a `Header`'s `config`), full attention first; none of one group."""
    entries = config.get("kv_groups") or ()
    if len(entries) < 2 or config.get("disable_hybrid_kv_cache_manager"):
        return []
    places: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        places.setdefault(_label(entry), []).append(place)
    kinds = [GroupKind(label, tuple(same), label.startswith("full")) for label, same in places.items()]
    return sorted(kinds, key=lambda kind: not kind.full)


def has_windows(config: Mapping[str, Any]) -> bool:
    """Whether any layer drops state, so that the prefix cache keeps only what `prefix_cache_retention_interval`
    says."""
    return bool(config.get("sliding_window")) or any(not kind.full for kind in kinds_of(config))


def _label(entry: Any) -> str:
    group = dict(entry) if isinstance(entry, Mapping) else {"full": True} if entry == "full" else {"window": entry}
    name = "full" if group.get("full") else f"mamba {group['mamba']}" if group.get("mamba") else ""
    size = f" of {group['block_size']}" if group.get("block_size") else ""
    return (name or f"window {group.get('window')}") + size


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
