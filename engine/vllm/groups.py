"""The KV groups of a vLLM server, in this project's terms."""

from __future__ import annotations

from math import gcd
from typing import Any

import msgspec
from schedtop.engine.contract.kv_groups import KVGroup
from schedtop.engine.contract.telemetry import Header
from schedtop.engine.kv.coordinator import open_group
from schedtop.engine.kv.groups import Group

_DECIDED = ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec")
"""Kinds whose recordings can be verified."""


def specs_of(scheduler: Any) -> list[Any]:
    """vLLM's description of each group; None where a version has none."""
    groups = getattr(scheduler.kv_cache_config, "kv_cache_groups", None) or [None]
    return [_first(getattr(group, "kv_cache_spec", None)) for group in groups]


def _first(spec: Any) -> Any:
    """Layers of one kind with different shapes share a group: any one of them says what is kept."""
    layers = getattr(spec, "kv_cache_specs", None)
    return next(iter(layers.values())) if layers else spec


def entry_of(spec: Any, block_size: int) -> dict[str, Any]:
    """A group as the setting `kv_groups` has it; with its block size if it differs from the engine's.

    A chunk of local attention is shown as a window of its size; unknown kinds keep everything.
    """
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if "SlidingWindowSpec" in kinds:
        entry: dict[str, Any] = {"window": spec.sliding_window}
    elif "ChunkedLocalAttentionSpec" in kinds:
        entry = {"window": spec.attention_chunk_size}
    elif "MambaSpec" in kinds:
        kept_once = getattr(spec, "mamba_cache_mode", "none") == "none"
        return {"mamba": "none"} if kept_once else {"mamba": "align", **_size(spec, block_size)}
    else:
        entry = {"full": True}
    return {**entry, **_size(spec, block_size)}


def _size(spec: Any, block_size: int) -> dict[str, int]:
    size = getattr(spec, "block_size", block_size)
    return {} if size == block_size else {"block_size": size}


def block_size_of(scheduler: Any) -> int:
    """Tokens of a block: of several groups the smallest, as the scheduler's own is a multiple of all."""
    specs = specs_of(scheduler)
    sizes = [spec.block_size for spec in specs if len(specs) > 1 and "mamba" not in entry_of(spec, 0)]
    return int(min(sizes, default=scheduler.block_size))


def keys_are_blocks(scheduler: Any) -> bool:
    """Whether a request's block hashes are those of the blocks that all groups' are multiples of."""
    sizes = [getattr(spec, "block_size", scheduler.block_size) for spec in specs_of(scheduler)]
    return bool(getattr(scheduler, "hash_block_size", scheduler.block_size) == gcd(*sizes))


def settings_of(scheduler: Any) -> dict[str, Any]:
    """The settings that name the groups; none where one group keeps everything."""
    block_size = block_size_of(scheduler)
    entries = [entry_of(spec, block_size) for spec in specs_of(scheduler)]
    found: dict[str, Any] = {}
    if len(entries) > 1 or "mamba" in entries[0]:
        found["kv_groups"] = entries
    elif "window" in entries[0]:
        found["sliding_window"] = entries[0]["window"]
    interval = getattr(scheduler.kv_cache_config, "prefix_cache_retention_interval", None)
    return found if interval is None else {**found, "prefix_cache_retention_interval": interval}


def undecided_of(scheduler: Any) -> list[str]:
    """Kinds of groups whose recordings cannot be verified."""
    found = []
    for spec in specs_of(scheduler):
        name = type(spec).__name__
        if spec is not None and name not in _DECIDED:
            found.append(f"layers of the kind {name}")
    return sorted(set(found))


def groups_of(header: Header) -> tuple[Group, ...]:
    """The groups of an engine with this header."""
    config = header.config
    window = config.get("sliding_window")
    entries = config.get("kv_groups") or [{"window": window} if window else {"full": True}]
    specs = [msgspec.convert(entry, KVGroup) for entry in entries]
    sizes = [
        header.max_model_len if spec.mamba == "none" else spec.block_size or header.block_size for spec in specs
    ]
    return tuple(
        open_group(
            msgspec.structs.replace(spec, block_size=size), header.max_model_len, config["num_speculative_tokens"]
        )
        for spec, size in zip(specs, sizes, strict=True)
    )
