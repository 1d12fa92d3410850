"""The pool of KV blocks: who is free, in which order they are taken, and which class each one is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from schedtop.engine.contract.reading import IntArray
from schedtop.engine.contract.telemetry import BlockClass
from schedtop.engine.kv.prefix_cache import PrefixIndex

# Plain numbers: an enum's members are slow to handle one by one.
EMPTY, CACHED_FREE, HELD, SHARED = (
    int(kind) for kind in (BlockClass.EMPTY, BlockClass.CACHED_FREE, BlockClass.HELD, BlockClass.SHARED)
)


class CachedQueue:
    """Free blocks that carry keys, least recently freed first, any of which may leave from the middle.

    One that does stays in the queue, and is passed over when its turn comes: `_gone` counts those of each block.
    """

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self._gone: dict[int, int] = {}
        self._num_gone = 0

    def __len__(self) -> int:
        return len(self._queue) - self._num_gone

    def __iter__(self) -> Iterator[int]:
        gone = dict(self._gone)
        for block in self._queue:
            if gone.get(block):
                gone[block] -= 1
            else:
                yield block

    def add(self, blocks: list[int]) -> None:
        self._queue.extend(blocks)

    def remove(self, block: int) -> None:
        self._gone[block] = self._gone.get(block, 0) + 1
        self._num_gone += 1
        if self._num_gone > len(self) + 64:
            self._queue, self._gone, self._num_gone = deque(self), {}, 0

    def pop(self, count: int) -> list[int]:
        """The first `count` blocks, which leave; there must be so many."""
        queue, gone = self._queue, self._gone
        if not gone:
            return [queue.popleft() for _ in range(count)]
        blocks: list[int] = []
        while len(blocks) < count:
            block = queue.popleft()
            left = gone.pop(block, 0)
            if not left:
                blocks.append(block)
                continue
            self._num_gone -= 1
            if left > 1:
                gone[block] = left - 1
        return blocks


class BlockPool:
    """Reference-counted blocks 0 .. num_blocks-1, and the queue of free ones, next to be taken first.

    A freed block without a prefix-cache key goes to the front of the queue, one with a key to its back. So the
    queue is two parts: empty blocks (a stack), then cached ones, least recently freed first, reusable until taken.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.index = PrefixIndex(num_blocks)
        self.num_shared = 0
        self.num_extra_refs = 0
        self._refs = [0] * num_blocks
        self._keys = self.index.keys
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached = CachedQueue()
        self._changed: dict[int, int] = {}

    @property
    def num_cached_free(self) -> int:
        return self.num_free - len(self._empty)

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold."""
        return 1 - self.num_free / self.num_blocks

    def take(self, count: int) -> list[int] | None:
        """The next `count` free blocks, each referenced once and without a key; None if there are too few."""
        if count > self.num_free:
            return None
        empty, refs = self._empty, self._refs
        num_cached = count - len(empty)
        cut = max(-num_cached, 0)
        blocks = empty[cut:]
        blocks.reverse()
        del empty[cut:]
        if num_cached > 0:
            blocks += self._evict(num_cached)
        for block in blocks:
            refs[block] = 1
        self.num_free -= count
        self._changed.update(dict.fromkeys(blocks, HELD))
        return blocks

    def _evict(self, count: int) -> list[int]:
        """The next `count` cached blocks of the free queue, their keys taken away."""
        blocks = self._cached.pop(count)
        self.index.remove_all(blocks)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, taking it out of the free queue if nobody held it."""
        for block in blocks:
            refs = self._refs[block]
            if refs == 0:
                self._cached.remove(block)
                self.num_free -= 1
            else:
                self.num_extra_refs += 1
                self.num_shared += refs == 1
            self._refs[block] = refs + 1
            self._changed[block] = SHARED if refs else HELD

    def release(self, blocks: list[int]) -> int:
        """Drop one reference from each block, in this order; returns how many became free."""
        keys = self._keys
        keyed = [block for block in blocks if keys[block] is not None]
        return self.give_back(keyed, [block for block in blocks if keys[block] is None])

    def give_back(self, keyed: list[int], plain: list[int]) -> int:
        """`release` for blocks known to carry keys, and others known not to, each in this order."""
        if self.num_shared:
            keyed, plain = self._unshared(keyed), self._unshared(plain)
        refs = self._refs
        for block in keyed:
            refs[block] = 0
        for block in plain:
            refs[block] = 0
        self._empty += plain[::-1]  # the first one freed is the next one taken
        self._cached.add(keyed)
        self.num_free += len(keyed) + len(plain)
        self._changed.update(dict.fromkeys(plain, EMPTY))
        self._changed.update(dict.fromkeys(keyed, CACHED_FREE))
        return len(keyed) + len(plain)

    def _unshared(self, blocks: list[int]) -> list[int]:
        """The blocks that only one request holds; the others lose one reference."""
        refs = self._refs
        alone = [block for block in blocks if refs[block] == 1]
        if len(alone) == len(blocks):
            return blocks
        for block in [block for block in blocks if refs[block] > 1]:
            refs[block] -= 1
            if refs[block] == 1:
                self.num_shared -= 1
                self._changed[block] = HELD
        self.num_extra_refs -= len(blocks) - len(alone)
        return alone

    def register(self, blocks: list[int], keys: list[bytes]) -> None:
        """Give held blocks without keys their prefix-cache entries; a block of -1 is passed over."""
        self.index.add(keys, blocks)

    def forget(self, block: int) -> None:
        """Take a held block's prefix-cache entry away."""
        self.index.remove(block)

    def num_free_of(self, blocks: list[int]) -> int:
        """How many of these blocks are unreferenced; -1 is not a block."""
        refs = self._refs
        return sum([block >= 0 and refs[block] == 0 for block in blocks])

    def key_of(self, block: int) -> bytes | None:
        """The block's prefix-cache key, or None."""
        return self._keys[block]

    def class_of(self, block: int) -> BlockClass:
        refs = self._refs[block]
        if refs:
            return BlockClass.SHARED if refs > 1 else BlockClass.HELD
        return BlockClass.EMPTY if self._keys[block] is None else BlockClass.CACHED_FREE

    def classes(self) -> bytes:
        """One `BlockClass` per block."""
        return bytes(
            [
                (3 if refs > 1 else 2) if refs else (key is not None)
                for refs, key in zip(self._refs, self._keys, strict=True)
            ]
        )

    def drain_changes(self) -> IntArray:
        """Blocks that changed class since the last call, once each in order, as int32 `block * 4 + BlockClass`."""
        changed = self.take_changes()
        codes = 4 * np.fromiter(changed, dtype=np.int32, count=len(changed))
        codes += np.fromiter(changed.values(), dtype=np.int32, count=len(changed))
        codes.sort()
        return codes

    def take_changes(self) -> dict[int, int]:
        """Blocks that changed class since the last call, and their `BlockClass`."""
        changed, self._changed = self._changed, {}
        return changed

    def discard_changes(self) -> None:
        """Discard the touched blocks unread."""
        self._changed.clear()

    def take_up(self, tables: Iterable[list[int]], empty: list[int], cached: list[int], keys: list[bytes]) -> None:
        """Start with these blocks held and the others free, next to be allocated first; cached ones carry `keys`."""
        self._refs = [0] * self.num_blocks
        for table in tables:
            for block in table:
                self._refs[block] += 1
        self._empty = empty[::-1]
        self.index.add(keys, cached)
        self._cached.add(cached)
        self.num_free = len(empty) + len(cached)
        self.num_shared = sum(count > 1 for count in self._refs)
        self.num_extra_refs = sum(count - 1 for count in self._refs if count)

    def audit(self, tables: Iterable[list[int]]) -> None:
        """Check the books against every request's block table; raises `AssertionError` naming what is off."""
        refs = [0] * self.num_blocks
        for table in tables:
            for block in table:
                if block >= 0:
                    refs[block] += 1
        assert refs == self._refs, "reference counts differ from the block tables"
        free = {block for block in range(self.num_blocks) if refs[block] == 0}
        cached = {block for block in free if self._keys[block] is not None}
        assert sorted(cached) == sorted(self._cached), (
            "the cached part of the free queue is not the free blocks with keys"
        )
        assert self.num_free == len(free), "free blocks are miscounted"
        assert sorted(free - cached) == sorted(self._empty), "the empty part is not the free blocks without keys"
        assert sum(count > 1 for count in refs) == self.num_shared, "shared blocks are miscounted"
        assert sum(count - 1 for count in refs if count) == self.num_extra_refs, "extra references are miscounted"
        for block, key in enumerate(self._keys):
            assert key is None or self.index.find(key) is not None, f"block {block} has a key nobody finds"


def in_order(changed: dict[int, int]) -> list[int]:
    """Blocks and their `BlockClass` as `block * 4 + BlockClass`, ascending."""
    return sorted([block * 4 + kind for block, kind in changed.items()])
