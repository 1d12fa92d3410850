"""The pool of KV blocks: who is free, in which order they are taken, and which class each one is in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from schedtop.engine.kv.prefix_cache import PrefixIndex
from schedtop.engine.telemetry import BlockClass


class BlockPool:
    """Reference-counted blocks 0 .. num_blocks-1 and the queue of free ones, next to be taken first.

    A free block may still carry a prefix-cache key: it is reusable until it is taken. `changed` collects the ids
    of blocks whose class may have changed since the last `drain_changes`.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.index = PrefixIndex()
        self.num_shared = 0
        self.num_cached_free = 0
        self.num_extra_refs = 0
        self._refs = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._changed: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold."""
        return 1 - len(self._free) / self.num_blocks

    def take(self, count: int) -> list[int] | None:
        """The next `count` free blocks, each referenced once and without a key; None if there are too few."""
        free, keys, refs = self._free, self._keys, self._refs
        if count > len(free):
            return None
        blocks = []
        for _ in range(count):
            block, _ = free.popitem(last=False)
            refs[block] = 1
            if keys[block] is not None:
                self.forget(block)
                self.num_cached_free -= 1
            blocks.append(block)
        self._changed += blocks
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, taking it out of the free queue if nobody held it."""
        for block in blocks:
            refs = self._refs[block]
            if refs == 0:
                del self._free[block]
                self.num_cached_free -= 1
            else:
                self.num_extra_refs += 1
                self.num_shared += refs == 1
            self._refs[block] = refs + 1
            self._changed.append(block)

    def release(self, blocks: list[int]) -> int:
        """Drop one reference from each block, in this order; returns how many became free.

        Freed blocks without a key go to the front of the queue, those with one to the back, each group in the
        order given: worthless blocks are taken first, the least recently freed prefix next.
        """
        refs, keys, free = self._refs, self._keys, self._free
        num_free = len(free)
        front: list[int] = []
        for block in blocks:
            left = refs[block] = refs[block] - 1
            if left:
                self.num_extra_refs -= 1
                self.num_shared -= left == 1
            elif keys[block] is None:
                front.append(block)
            else:
                free[block] = None
        self.num_cached_free += len(free) - num_free
        for block in reversed(front):
            free[block] = None
            free.move_to_end(block, last=False)
        self._changed += blocks
        return len(free) - num_free

    def register(self, block: int, key: bytes) -> None:
        """Give a held block without a key its prefix-cache entry."""
        self._keys[block] = key
        self.index.add(key, block)

    def forget(self, block: int) -> None:
        """Take a block's prefix-cache entry away."""
        key = self._keys[block]
        if key is not None:
            self.index.remove(key, block)
            self._keys[block] = None

    def is_free(self, block: int) -> bool:
        return self._refs[block] == 0

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

    def drain_changes(self) -> list[int]:
        """Blocks touched since the last call, once each in order, packed as `block * 4 + BlockClass`."""
        refs, keys = self._refs, self._keys
        touched = sorted(set(self._changed))
        self._changed = []
        return [
            block * 4 + ((3 if refs[block] > 1 else 2) if refs[block] else (keys[block] is not None))
            for block in touched
        ]

    def discard_changes(self) -> None:
        """Forget the touched blocks without looking at them."""
        self._changed.clear()

    def audit(self, tables: Iterable[list[int]]) -> None:
        """Check the books against every request's block table; raises `AssertionError` naming what is off."""
        refs = [0] * self.num_blocks
        for table in tables:
            for block in table:
                if block >= 0:
                    refs[block] += 1
        assert refs == self._refs, "reference counts differ from the block tables"
        free = {block for block in range(self.num_blocks) if refs[block] == 0}
        assert free == set(self._free), "the free queue differs from the unreferenced blocks"
        cached_free = sum(self._keys[block] is not None for block in free)
        assert cached_free == self.num_cached_free, "cached-free blocks are miscounted"
        assert sum(count > 1 for count in refs) == self.num_shared, "shared blocks are miscounted"
        assert sum(count - 1 for count in refs if count) == self.num_extra_refs, "extra references are miscounted"
        for block, key in enumerate(self._keys):
            assert key is None or self.index.find(key) is not None, f"block {block} has a key nobody finds"
