"""Which block holds which prefix: keys chained over whole prefixes, and the index from key to block."""

from __future__ import annotations

from schedtop.engine.handoff.request import Request


def extend_keys(request: Request, num_blocks: int, block_size: int) -> None:
    """Extend `request.block_keys` to its first `num_blocks` blocks, all of whose tokens must be known.

    A key is the SHA-256 of all tokens up to the block's end, so equal keys mean equal prefixes.
    """
    keys, width = request.block_keys, 4 * block_size
    update, digest = request.key_hasher.update, request.key_hasher.digest
    tokens = request.token_bytes(len(keys) * block_size, num_blocks * block_size)
    images, start = request.images, len(keys) * block_size
    for place in range(0, len(tokens), width):
        if images:
            _update_with_images(request, start + place // 4, block_size)
        update(tokens[place : place + width])
        keys.append(digest())


def _update_with_images(request: Request, start: int, block_size: int) -> None:
    """Images are part of the key: their tokens are the same whatever they show."""
    for image in request.images:
        if image.offset < start + block_size and image.end > start:
            # No token id is negative, so this is not a token.
            request.key_hasher.update(b"\xff\xff\xff\xff" + repr((image.name, image.offset - start)).encode())


class PrefixIndex:
    """Blocks by key. Several blocks may carry one key; the earliest registered one answers.

    `keys` holds each block's key, None where it has none.
    """

    def __init__(self, num_blocks: int) -> None:
        self.keys: list[bytes | None] = [None] * num_blocks
        self._first: dict[bytes, int] = {}
        self._others: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._first)

    def find(self, key: bytes) -> int | None:
        return self._first.get(key)

    def add(self, keys: list[bytes], blocks: list[int]) -> None:
        """Give each block, so far without a key, its key; -1 is skipped."""
        carried, find, others = self.keys, self._first.setdefault, self._others
        for key, block in zip(keys, blocks, strict=True):
            if block >= 0:
                carried[block] = key
                if find(key, block) != block:
                    others.setdefault(key, []).append(block)

    def remove(self, block: int) -> None:
        """Remove the block's key, if it has one."""
        key = self.keys[block]
        if key is None:
            return
        self.keys[block] = None
        others = self._others.get(key)
        if others is None:
            del self._first[key]
            return
        if self._first[key] == block:
            self._first[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[key]

    def remove_all(self, blocks: list[int]) -> None:
        """Remove the keys of these blocks, all of which have one."""
        first, keys = self._first, self.keys
        if self._others:
            for block in blocks:
                self.remove(block)
            return
        for block in blocks:
            del first[keys[block]]  # type: ignore[arg-type]
            keys[block] = None

    def longest_prefix(self, keys: list[bytes]) -> list[int]:
        """Blocks of the longest run of cached keys from the start."""
        blocks = []
        for key in keys:
            block = self._first.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def rightmost_run(self, keys: list[bytes], length: int) -> list[int | None]:
        """Blocks up to the end of the right-most run of `length` cached keys, None before it.

        Falls back to a shorter run that starts at the first key: nothing before it is needed.
        """
        if length == 0:  # a window of one token needs nothing before it, and finds nothing
            return []
        blocks: list[int | None] = [None] * len(keys)
        run = 0
        for index in range(len(keys) - 1, -1, -1):
            block = self._first.get(keys[index])
            if block is None:
                run = 0
                continue
            blocks[index] = block
            run += 1
            if run >= length:
                return [None] * index + blocks[index : index + run]
        return blocks[:run]
