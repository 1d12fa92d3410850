"""The pool of the plain scheduler: free blocks in the order they are taken, holders, and who carries which key."""

from __future__ import annotations

Key = tuple[int, int]
"""The group, and the number of a chain of tokens."""
Table = list[int | None]
"""The blocks of one request in one group; None: not needed, or no longer."""


class PlainPool:
    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.holders = dict.fromkeys(range(num_blocks), 0)
        self.key_of: dict[int, Key] = {}
        self.carriers: dict[Key, list[int]] = {}

    def find(self, key: Key) -> int | None:
        carriers = self.carriers.get(key)
        return carriers[0] if carriers else None

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.holders[block] = 1
            if block in self.key_of:
                self.carriers[self.key_of.pop(block)].remove(block)
        return taken

    def share(self, block: int) -> None:
        self.holders[block] += 1
        if block in self.free:
            self.free.remove(block)

    def give_back(self, blocks: Table) -> None:
        freed = []
        for block in blocks:
            if block is not None:
                self.holders[block] -= 1
                if self.holders[block] == 0:
                    freed.append(block)
        plain = [block for block in freed if block not in self.key_of]
        cached = [block for block in freed if block in self.key_of]
        self.free = plain + self.free + cached

    def register(self, block: int, key: Key) -> None:
        self.key_of[block] = key
        self.carriers.setdefault(key, []).append(block)
