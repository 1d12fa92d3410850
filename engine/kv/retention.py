"""Retention: which full blocks of window and Mamba groups get cache entries.

Without an interval all that a later hit could use; with one, only what lies behind each multiple of it, and behind
the end of the prompt; an interval of 0 keeps the latter alone. A junction is where requests part that share a prefix.
"""

from __future__ import annotations

import msgspec


class Retention(msgspec.Struct, frozen=True):
    """`align` tokens is what hits are a multiple of, `common` the least common multiple of the block sizes.

    `drop`: a drafter with a cache of its own loses the last block of a hit, so one more is kept.
    """

    interval: int | None
    align: int
    common: int
    drop: bool

    def boundaries(self, prompt_tokens: int, junction: int) -> list[int]:
        """Tokens behind which the next request with this prompt is expected to begin."""
        ends = [prompt_tokens - 1]
        if self.drop:
            whole = ((prompt_tokens - 1) // self.common, prompt_tokens // self.common)
            ends = [max(0, (blocks - 1) * self.common) for blocks in whole]
        if junction:
            ends.append(junction)
        return [end // self.align * self.align for end in ends]


class Keeper(msgspec.Struct, frozen=True):
    """Which blocks of one request one group registers: runs of `length` blocks that end `shift` behind a boundary.

    `every`: boundaries lie that many blocks apart (0: none of those); `ends`: further ones, in blocks. `all`: every
    block is kept.
    """

    all: bool
    length: int = 0
    shift: int = 0
    every: int = 0
    ends: tuple[int, ...] = ()

    def keeps(self, place: int) -> bool:
        """Whether the block at `place` (from 0) is registered once it is full."""
        if self.all:
            return True
        end = place + 1 - self.shift
        if self.every and end > max(1, -(-end // self.every)) * self.every - self.length:
            return True
        return any(last - self.length < end <= last for last in self.ends)


KEEP_ALL = Keeper(all=True)


def keeper(retention: Retention, size: int, length: int, shift: int, prompt_tokens: int, junction: int) -> Keeper:
    """For a group with blocks of `size` tokens whose hits need `length` blocks in a row."""
    every = retention.align if retention.interval is None else retention.interval
    if every and length >= every // size:
        return KEEP_ALL
    ends = () if retention.interval is None else retention.boundaries(prompt_tokens, junction)
    return Keeper(False, length, shift, every // size, tuple(end // size for end in ends))
