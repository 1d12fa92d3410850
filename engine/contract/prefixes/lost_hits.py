"""Prompt tokens that the prefix cache had once and has no more: what says that a pool is too small for its prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.latencies.lives import Moves
from schedtop.engine.contract.telemetry import Arrival

Paths = npt.NDArray[np.uint64]

_NUM_SETS = 1 << 16
_SET_SHIFT = np.uint64(48)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_WAYS = 8
"""Blocks remembered are about `_NUM_SETS * _WAYS`, in 6 MiB taken at once. Of a full set the longest unused one goes
and is taken for never seen."""


def _multiples(num: int) -> Paths:
    return np.arange(1, num + 1, dtype=np.uint64) * _ODD


_MULTIPLES = _multiples(4096)


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


class _Seen:
    """Paths seen lately, in sets of `_WAYS`: as much memory after a day as after a minute."""

    def __init__(self) -> None:
        self._paths = np.zeros((_NUM_SETS, _WAYS), dtype=np.uint64)
        self._used = np.zeros((_NUM_SETS, _WAYS), dtype=np.int32)
        self._flat_paths, self._flat_used = self._paths.reshape(-1), self._used.reshape(-1)
        self._now = 0

    def has(self, paths: Paths) -> npt.NDArray[np.bool_]:
        """Which of them (n,) are here."""
        found: npt.NDArray[np.bool_] = (self._paths[_sets(paths)] == paths[:, None]).any(axis=1)
        return found

    def has_one(self, path: np.uint64) -> bool:
        """Whether it is here."""
        return bool(np.count_nonzero(self._paths[path >> _SET_SHIFT] == path))

    def add(self, paths: Paths) -> None:
        """Note that they (n,) were used now."""
        self._now += 1
        while len(paths):
            sets = _sets(paths)
            # Where it lies already, else where what was unused for longest lies.
            ways = np.where(self._paths[sets] == paths[:, None], -1, self._used[sets]).argmin(axis=1)
            places = sets * _WAYS + ways
            self._flat_paths[places], self._flat_used[places] = paths, self._now
            paths = paths[self._flat_paths[places] != paths]  # a set takes one at a time


def _sets(paths: Paths) -> npt.NDArray[np.intp]:
    return (paths >> _SET_SHIFT).astype(np.intp)


class PrefixMemory:
    """Takes in records in order. A prompt's blocks are in the cache once its first output is there.

    Blocks of outputs have no recorded key: what a conversation finds of them is cached, what it misses is not lost.
    With `windows`, only two places can be found again, as vLLM keeps them: the end of a prompt, and that of a prefix
    which a second prompt had in common with another.
    """

    def __init__(self, block_size: int, windows: bool = False) -> None:
        self.found = Lookups()
        self._stops = _Seen() if windows else None
        self._junctions: dict[int, int] = {}
        self._block_size = block_size
        self._seen = _Seen()
        self._paths: dict[int, tuple[Arrival, Paths]] = {}

    def add(self, record: Moves) -> None:
        """Take in the next record."""
        for arrival in record.arrivals:
            if arrival.prefix_keys:
                self._paths[arrival.number] = (arrival, _paths_of(arrival.prefix_keys))
        for admission in record.admissions:
            if not admission.resumed and admission.number in self._paths:
                self._look_up(*self._paths[admission.number], admission.cached_tokens)
        for number, _ in record.ttft_s:
            if number in self._paths:
                self._seen.add(self._paths[number][1])
                self._keep_stops(*self._paths[number])
        for finish in record.finishes:
            self._paths.pop(finish.number, None)
            self._junctions.pop(finish.number, None)
        for refusal in record.refusals:
            self._paths.pop(refusal.number, None)

    def _look_up(self, arrival: Arrival, paths: Paths, cached_tokens: int) -> None:
        paths = paths[: (arrival.prompt_tokens - 1) // self._block_size]
        known = self._num_known(paths)
        if self._stops is not None:
            self._junctions[arrival.number] = known
            stops = self._stops.has(paths[:known]).nonzero()[0]
            known = int(stops[-1]) + 1 if len(stops) else 0
        lost = max(0, known * self._block_size - cached_tokens)
        found = self.found
        self.found = Lookups(
            found.prompt_tokens + arrival.prompt_tokens,
            found.cached_tokens + cached_tokens,
            found.lost_tokens + lost,
        )

    def _num_known(self, paths: Paths) -> int:
        """Blocks from the start that were here before; most prompts differ in the first."""
        if not len(paths) or not self._seen.has_one(paths[0]):
            return 0
        seen = self._seen.has(paths)
        return len(paths) if seen.all() else int(seen.argmin())

    def _keep_stops(self, arrival: Arrival, paths: Paths) -> None:
        """What a request leaves behind that can be found again under windows."""
        if self._stops is None:
            return
        ends = {(arrival.prompt_tokens - 1) // self._block_size, self._junctions.pop(arrival.number, 0)}
        self._stops.add(paths[[end - 1 for end in ends if 0 < end <= len(paths)]])


def _paths_of(keys: bytes) -> Paths:
    """One number per block that stands for it and all before it.

    The keys are parts of a digest, so they are mixed as they are; a sum of plain multiples would forget their order.
    """
    parts = np.frombuffer(keys, dtype=np.uint32).astype(np.uint64)
    parts += _ONE  # 0 stands for no path
    parts *= parts + (_MULTIPLES[: len(parts)] if len(parts) <= len(_MULTIPLES) else _multiples(len(parts)))
    return parts.cumsum()
