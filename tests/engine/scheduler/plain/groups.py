"""One KV group of the plain scheduler: what it holds, what it finds in the cache, and what it registers there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.engine.scheduler.plain.pool import Table


@dataclass(frozen=True)
class Group:
    """`kind`: full, window (of `window` tokens), align or none (Mamba). `k`: drafts that a Mamba group has room for."""

    kind: str
    size: int
    window: int
    k: int

    @property
    def is_mamba(self) -> bool:
        return self.kind in ("align", "none")

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def run(self, drop: bool) -> int:
        """Blocks in a row that a hit needs."""
        if self.kind == "window":
            return self.blocks_for(self.window - 1) + drop
        return 1

    def num_skipped(self, computed: int) -> int:
        """Blocks from the start that no token after `computed` of them can see."""
        if self.kind == "window":
            return max(0, computed - self.window + 1) // self.size
        if self.is_mamba:
            return max(0, computed - 1) // self.size
        return 0

    def required(self, num_tokens: int, with_lookahead: int) -> int:
        """Blocks for `num_tokens`, or, where the group minds it, for `with_lookahead` tokens."""
        if self.kind == "align":
            return self.blocks_for(num_tokens) + self.k
        if self.kind == "none":
            return self.blocks_for(with_lookahead) + self.k
        return self.blocks_for(with_lookahead)

    def longest_hit(self, found: Table, align: int, drop: bool) -> Table:
        """Of the cached blocks `found` (None: not cached), those of the longest hit that is a multiple of `align`."""
        if self.kind == "full":
            hit = found[: found.index(None)] if None in found else list(found)
            return self._cut(hit[: len(hit) - drop] if hit else hit, align)
        if self.kind == "align":
            for end in range(len(found), 0, -1):
                if found[end - 1] is not None and end * self.size % align == 0:
                    return [*[None] * (end - 1), found[end - 1]]
            return []
        return self._window_hit(found, align, drop) if self.kind == "window" else []

    def _window_hit(self, found: Table, align: int, drop: bool) -> Table:
        run = self.run(drop)
        if run == drop:
            return []  # a token that attends to itself alone needs nothing
        for end in range(len(found), run - 1, -1):
            if (end - drop) * self.size % align == 0 and None not in found[end - run : end]:
                return ([None] * (end - run) + found[end - run : end])[: end - drop]
        from_start = found[: found.index(None)] if None in found else list(found)
        if align != self.size:
            while from_start and (len(from_start) - drop) * self.size % align:
                from_start.pop()
        hit = self._cut(from_start, align)
        return self._cut(hit[: len(hit) - drop], align) if hit else []

    def _cut(self, hit: Table, align: int) -> Table:
        while len(hit) * self.size % align:
            hit = hit[:-1]
        return hit


def read_groups(config: dict[str, Any]) -> list[Group]:
    size, k = config.get("block_size", 16), config.get("num_speculative_tokens", 0)
    groups = []
    for entry in config.get("kv_groups") or [config.get("sliding_window") or "full"]:
        if entry == "full":
            entry = {"full": True}
        elif isinstance(entry, int):
            entry = {"window": entry}
        if entry.get("mamba") == "none":
            groups.append(Group("none", config["max_model_len"], 0, k))
        elif entry.get("mamba") == "align":
            groups.append(Group("align", entry.get("block_size") or size, 0, k))
        elif entry.get("full"):
            groups.append(Group("full", entry.get("block_size") or size, 0, 0))
        else:
            groups.append(Group("window", entry.get("block_size") or size, entry["window"], 0))
    return groups


@dataclass(frozen=True)
class Retention:
    """Which full blocks of window and Mamba groups get cache entries."""

    interval: int | None
    align: int
    drop: bool

    def keeps(self, group: Group, index: int, prompt: int, lcm: int, junction: int) -> bool:
        """Whether block `index` (from 0) of a request with `prompt` tokens is registered once it is full."""
        if group.kind == "full":
            return True
        if group.is_mamba and self.interval is None:
            return True
        shift = int(self.drop and group.kind == "window")
        run, every = group.run(self.drop), self.align if self.interval is None else self.interval
        if every:
            if run >= every // group.size:
                return True
            ends = range(every // group.size + shift, index + run + every // group.size + 1, every // group.size)
            if any(end - run <= index < end for end in ends):
                return True
        if self.interval is None:
            return False
        boundaries = [prompt - 1]
        if self.drop:
            boundaries = [max(0, tokens // lcm * lcm - lcm) for tokens in (prompt - 1, prompt)]
        if junction:
            boundaries.append(junction)
        for boundary in boundaries:
            end = boundary // self.align * self.align // group.size + shift
            if end - run <= index < end:
                return True
        return False
