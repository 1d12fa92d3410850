"""What goes through the methods of vLLM's pool and its manager: blocks that may have changed, and prefix look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

WATCHED = ("get_new_blocks", "touch", "free_blocks", "evict_blocks", "reset_prefix_cache")


class PoolWatch:
    """Wraps the methods of one pool. `given` has the first block of every allocation since it was last read.

    `lost`: something happened that names no blocks, so only a look at the whole pool helps. Errors go to `failed`,
    never to the scheduler in whose call they occur.
    """

    def __init__(self, pool: Any, failed: Callable[[Exception], None]) -> None:
        self._pool = pool
        self._failed = failed
        self._touched: list[Any] = []
        self.given: list[int] = []
        self.lost = False
        self._watch()

    def num_free(self) -> int:
        count: int = self._pool.get_num_free_blocks()
        return count

    def drain(self) -> list[int]:
        """Triples of the touched blocks as they are now (see `Updated.blocks`)."""
        if not self._touched:
            return []
        touched, self._touched = self._touched, []
        return _triples({block.block_id: block for block in touched}.values())

    def everything(self) -> list[int]:
        """Triples of all blocks."""
        self._touched, self.lost = [], False
        return _triples(self._pool.blocks)

    def release(self) -> None:
        """Restore the pool's own methods."""
        for name in WATCHED:
            self._pool.__dict__.pop(name, None)
        self._touched, self.given = [], []

    def _watch(self) -> None:
        pool = self._pool
        get_new_blocks, touch, free_blocks = pool.get_new_blocks, pool.touch, pool.free_blocks

        def watched_get(num_blocks: int, *args: Any, **kwargs: Any) -> Any:
            blocks = get_new_blocks(num_blocks, *args, **kwargs)
            self._note(blocks, given=True)
            return blocks

        def watched_touch(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = blocks if isinstance(blocks, list | tuple) else list(blocks)
            self._note(blocks)
            return touch(blocks, *args, **kwargs)

        def watched_free(ordered_blocks: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            blocks = list(ordered_blocks)
            self._note(blocks)
            return free_blocks(blocks, *args, **kwargs)

        pool.get_new_blocks, pool.touch, pool.free_blocks = watched_get, watched_touch, watched_free
        for name in WATCHED[3:]:
            if hasattr(pool, name):
                setattr(pool, name, self._losing(getattr(pool, name)))

    def _note(self, blocks: Any, given: bool = False) -> None:
        try:
            if blocks and not hasattr(blocks[0], "block_id"):  # up to 0.11 touch gets a sequence of them per group
                blocks = [block for group in blocks for block in group]
            self._touched += blocks
            if given and blocks:
                self.given.append(blocks[0].block_id)
        except Exception as error:
            self._failed(error)

    def _losing(self, method: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.lost = True
            return method(*args, **kwargs)

        return watched


class LookUps:
    """The newest look-up in the prefix cache: at the end of a schedule, that of the request that had to stay."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._request: Any = None
        self._found: Any = None
        look_up = manager.get_computed_blocks

        def watched(request: Any, *args: Any, **kwargs: Any) -> Any:
            found = look_up(request, *args, **kwargs)
            self._request, self._found = request, found
            return found

        manager.get_computed_blocks = watched

    def last_of(self, request: Any) -> tuple[int, tuple[int, ...], int]:
        """Tokens found for a request, in how many places of each KV group, and how many of those blocks are free;
        nothing if there was no look-up."""
        looked, found, self._request, self._found = self._request, self._found, None, None
        if looked is not request:
            return 0, (), 0
        groups = found[0].blocks
        free = sum(not block.ref_cnt and bool(block.block_id) for blocks in groups for block in blocks)
        return found[1], tuple(map(len, groups)), free

    def release(self) -> None:
        """Restore the manager's own method."""
        self._manager.__dict__.pop("get_computed_blocks", None)
        self._request = self._found = None


def _triples(blocks: Iterable[Any]) -> list[int]:
    return [part for block in blocks for part in (block.block_id, block.ref_cnt, block.block_hash is not None)]
