"""Prompt tokens that the prefix cache had once and has no more: what says that a pool is too small for its prefixes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from schedtop.engine.contract.telemetry import PREFIX_KEY_BYTES, Arrival, StepRecord

_MAX_PATHS = 1 << 20
"""Blocks remembered; beyond them the longest unused are taken for never seen."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """Prompt tokens of first admissions with caching on: all, those cached, those lost to eviction."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost_tokens: int = 0

    def since(self, before: Lookups) -> Lookups:
        return Lookups(
            self.prompt_tokens - before.prompt_tokens,
            self.cached_tokens - before.cached_tokens,
            self.lost_tokens - before.lost_tokens,
        )

    @property
    def lost_share(self) -> float | None:
        return self.lost_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def unbounded_hit_rate(self) -> float | None:
        """What a cache that evicts nothing would have had."""
        both = self.cached_tokens + self.lost_tokens
        return both / self.prompt_tokens if self.prompt_tokens else None


class PrefixMemory:
    """Takes in records in order. A prompt's blocks are in the cache once its first output is there.

    With `windows`, only two places can be found again, as vLLM keeps them: the end of a prompt, and that of a prefix
    which a second prompt had in common with another.

    Blocks of outputs have no recorded key: what a conversation finds of them is cached, what it misses is not lost.
    """

    def __init__(self, block_size: int, windows: bool = False) -> None:
        self.found = Lookups()
        self._windows = windows
        self._stops: OrderedDict[int, None] = OrderedDict()
        self._junctions: dict[int, int] = {}
        self._block_size = block_size
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._paths: dict[int, tuple[Arrival, list[int]]] = {}

    def add(self, record: StepRecord) -> None:
        """Take in the next record."""
        for arrival in record.arrivals:
            if arrival.prefix_keys:
                self._paths[arrival.number] = (arrival, _paths_of(arrival.prefix_keys))
        for admission in record.admissions:
            if not admission.resumed and admission.number in self._paths:
                self._look_up(*self._paths[admission.number], admission.cached_tokens)
        for number, _ in record.ttft_s:
            for path in self._paths.get(number, (None, ()))[1]:
                self._seen[path] = None
                self._seen.move_to_end(path)
            if self._windows:
                self._keep_stops(number)
        for kept in (self._seen, self._stops):
            while len(kept) > _MAX_PATHS:
                kept.popitem(last=False)
        for finish in record.finishes:
            self._paths.pop(finish.number, None)
            self._junctions.pop(finish.number, None)
        for refusal in record.refusals:
            self._paths.pop(refusal.number, None)

    def _look_up(self, arrival: Arrival, paths: list[int], cached_tokens: int) -> None:
        most = (arrival.prompt_tokens - 1) // self._block_size
        known = next((place for place, path in enumerate(paths[:most]) if path not in self._seen), None)
        known = min(most, len(paths)) if known is None else known
        if self._windows:
            self._junctions[arrival.number] = known
            known = max((place + 1 for place, path in enumerate(paths[:known]) if path in self._stops), default=0)
        lost = max(0, known * self._block_size - cached_tokens)
        found = self.found
        self.found = Lookups(
            found.prompt_tokens + arrival.prompt_tokens,
            found.cached_tokens + cached_tokens,
            found.lost_tokens + lost,
        )

    def _keep_stops(self, number: int) -> None:
        """What a request leaves behind that can be found again under windows."""
        if number not in self._paths:
            return
        arrival, paths = self._paths[number]
        for end in ((arrival.prompt_tokens - 1) // self._block_size, self._junctions.pop(number, 0)):
            if 0 < end <= len(paths):
                self._stops[paths[end - 1]] = None
                self._stops.move_to_end(paths[end - 1])


def _paths_of(keys: bytes) -> list[int]:
    """One number per block that stands for it and all before it."""
    paths, path = [], 0
    for start in range(0, len(keys), PREFIX_KEY_BYTES):
        path = hash((path, keys[start : start + PREFIX_KEY_BYTES]))
        paths.append(path)
    return paths
