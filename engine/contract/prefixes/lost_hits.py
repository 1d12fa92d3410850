"""Prompt tokens that the prefix cache once had and lost: a sign that the pool is too small for its prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.latencies.lives import Moves
from schedtop.engine.contract.telemetry import PREFIX_KEY_BYTES, Arrival

Paths = npt.NDArray[np.uint64]

_NUM_SETS = 1 << 16
_SET_SHIFT = 48
_ODD = 0x9E3779B97F4A7C15
_64_BITS = (1 << 64) - 1
_WAYS = 8
"""Blocks remembered are about `_NUM_SETS * _WAYS`, in 4 MiB taken at once. A full set drops its least recently used
one, which then counts as never seen."""
_AT_ONCE = 64
"""Prompts. Noting this many costs little more than noting one."""


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
        """What a cache without evictions would have held."""
        both = self.cached_tokens + self.lost_tokens
        return both / self.prompt_tokens if self.prompt_tokens else None


class _SeenPaths:
    """Recently seen paths, in sets of `_WAYS`: constant memory, however long it runs."""

    def __init__(self) -> None:
        # Each set is in the order of use, the newest first: one row of the cache, where most of the time goes.
        self._paths = np.zeros((_NUM_SETS, _WAYS), dtype=np.uint64)

    def has(self, paths: Paths) -> npt.NDArray[np.bool_]:
        """Which of them (n,) are here."""
        found: npt.NDArray[np.bool_] = (self._paths[_sets(paths)] == paths[:, None]).any(axis=1)
        return found

    def has_one(self, path: int) -> bool:
        """Whether it is here."""
        return path in self._paths[path >> _SET_SHIFT].tolist()

    def add(self, paths: Paths) -> None:
        """Note that they (n,) were used, in order."""
        while len(paths):
            sets = _sets(paths)
            rows = self._paths.take(sets, axis=0)
            same = rows == paths[:, None]
            # Those before its present slot move on by one; without one all do, and the longest unused goes.
            moves = ~np.logical_or.accumulate(same[:, :-1], axis=1)
            rows[:, 1:] = np.where(moves, rows[:, :-1], rows[:, 1:])
            rows[:, 0] = paths
            self._paths[sets[::-1]] = rows[::-1]  # of those in one set the first counts
            left = self._paths[sets, 0] != paths
            paths = paths[left]


def _sets(paths: Paths) -> npt.NDArray[np.intp]:
    return (paths >> np.uint64(_SET_SHIFT)).astype(np.intp)


class PrefixMemory:
    """Takes in records in order. A prompt's blocks are in the cache once its first output is there.

    Blocks of outputs have no recorded key: what a conversation finds of them is cached, what it misses is not lost.
    With `windows`, only two places can be found again, as vLLM keeps them: the end of a prompt, and that of a prefix
    which a second prompt had in common with another.
    """

    def __init__(self, block_size: int, windows: bool = False) -> None:
        self._prompt_tokens = self._cached_tokens = self._lost_tokens = 0
        self._stops = _SeenPaths() if windows else None
        self._junctions: dict[int, int] = {}
        self._block_size = block_size
        self._seen = _SeenPaths()
        self._prompts: dict[int, Arrival] = {}
        # Prompts whose blocks came into the cache, with their junctions, and how they begin: not noted yet.
        self._new: list[tuple[Arrival, int]] = []
        self._new_begin: set[bytes] = set()

    @property
    def found(self) -> Lookups:
        """All look-ups so far."""
        return Lookups(self._prompt_tokens, self._cached_tokens, self._lost_tokens)

    def add(self, record: Moves) -> None:
        """Take in the next record."""
        for arrival in record.arrivals:
            if arrival.prefix_keys:
                self._prompts[arrival.number] = arrival
        for admission in record.admissions:
            if not admission.resumed and (prompt := self._prompts.get(admission.number)) is not None:
                self._look_up(prompt, admission.cached_tokens)
        for number, _ in record.ttft_s:
            if (prompt := self._prompts.get(number)) is not None:
                self._new.append((prompt, self._junctions.pop(number, 0)))
                self._new_begin.add(prompt.prefix_keys[:PREFIX_KEY_BYTES])
        if len(self._new) >= _AT_ONCE:
            self._settle()
        for finish in record.finishes:
            self._prompts.pop(finish.number, None)
            self._junctions.pop(finish.number, None)
        for refusal in record.refusals:
            self._prompts.pop(refusal.number, None)

    def _look_up(self, arrival: Arrival, cached_tokens: int) -> None:
        if arrival.skip_reading_prefix_cache:  # it looks nothing up, so it misses nothing
            return
        known = self._num_known(arrival)
        self._prompt_tokens += arrival.prompt_tokens
        self._cached_tokens += cached_tokens
        self._lost_tokens += max(0, known * self._block_size - cached_tokens)

    def _num_known(self, arrival: Arrival) -> int:
        """Leading blocks that were seen before and could be hit; most prompts differ in the first."""
        keys, most = arrival.prefix_keys, (arrival.prompt_tokens - 1) // self._block_size
        begin = keys[:PREFIX_KEY_BYTES]
        if not most or not (begin in self._new_begin or self._seen.has_one(_first_path(begin))):
            return 0
        self._settle()
        paths = _paths_of([keys])[:most]
        seen = self._seen.has(paths)
        known = len(paths) if seen.all() else int(seen.argmin())
        if self._stops is None:
            return known
        self._junctions[arrival.number] = known
        stops = self._stops.has(paths[:known]).nonzero()[0]
        return int(stops[-1]) + 1 if len(stops) else 0

    def _settle(self) -> None:
        """Note the blocks of the new prompts."""
        new, self._new, self._new_begin = self._new, [], set()
        if not new:
            return
        paths = _paths_of([arrival.prefix_keys for arrival, _ in new])
        sizes = [len(arrival.prefix_keys) // PREFIX_KEY_BYTES for arrival, _ in new]
        self._seen.add(paths)
        if self._stops is not None:
            prompts = zip(new, np.split(paths, np.cumsum(sizes)[:-1]), strict=True)
            for (arrival, junction), own in prompts:
                # What a request leaves behind that can be found again under windows.
                ends = {(arrival.prompt_tokens - 1) // self._block_size, junction}
                self._stops.add(own[[end - 1 for end in ends if 0 < end <= len(own)]])


def _paths_of(prompts: list[bytes]) -> Paths:
    """By prompt, one number per block that stands for it and all before it.

    The keys are parts of a digest, so they are mixed as they are; a sum of plain multiples would forget their order.
    """
    sizes = np.array([len(keys) // PREFIX_KEY_BYTES for keys in prompts])
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    parts = np.frombuffer(b"".join(prompts), dtype=np.uint32).astype(np.uint64)
    parts += np.uint64(1)  # 0 means no path
    places = np.arange(1, len(parts) + 1, dtype=np.uint64) - starts.astype(np.uint64)
    parts *= parts + places * np.uint64(_ODD)
    sums = parts.cumsum()
    paths: Paths = sums - (sums - parts)[starts]
    return paths


def _first_path(begin: bytes) -> int:
    """As `_paths_of` has it, of a first block's key."""
    part = int.from_bytes(begin, "little") + 1
    return part * (part + _ODD) & _64_BITS
