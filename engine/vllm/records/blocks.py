"""vLLM's pool as the notes describe it: references and content of every block, and the classes that follow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import BlockClass, Blocks

EMPTY, CACHED_FREE, HELD, SHARED = (int(kind) for kind in BlockClass)


class Pool:
    """`num_blocks` usable blocks, numbered from 0: vLLM's block 0 is never handed out, so its ids are one higher."""

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks, self._num_groups = num_blocks, num_groups
        self._group: npt.NDArray[np.uint8] = np.zeros(num_blocks, dtype=np.uint8)
        self.classes: npt.NDArray[np.uint8] = np.zeros(num_blocks, dtype=np.uint8)
        self._references: npt.NDArray[np.int32] = np.zeros(num_blocks, dtype=np.int32)
        self._counts = np.zeros(len(BlockClass), dtype=np.int64)
        self._counts[EMPTY] = num_blocks
        self._extra = 0
        self._changed: list[npt.NDArray[np.int32]] = []

    def take(self, triples: list[int]) -> None:
        """Take over the state of some blocks (see `Updated.blocks`)."""
        if not triples:
            return
        ids, references, content = np.array(triples, dtype=np.int32).reshape(-1, 3).T
        known = (ids >= 1) & (ids <= self.num_blocks)
        if not known.all():
            ids, references, content = ids[known], references[known], content[known]
        ids = ids - 1
        classes = np.where(references > 1, SHARED, np.where(references == 1, HELD, np.where(content > 0, 1, 0)))
        moved = classes != self.classes[ids]
        self._extra += int(np.maximum(references - 1, 0).sum() - np.maximum(self._references[ids] - 1, 0).sum())
        self._references[ids] = references
        if not moved.any():
            return
        ids, classes = ids[moved], classes[moved]
        self._counts += np.bincount(classes, minlength=4) - np.bincount(self.classes[ids], minlength=4)
        self.classes[ids] = classes
        self._changed.append((ids * 4 + classes).astype(np.int32))

    def belong(self, tables: Iterable[list[int]]) -> None:
        """Blocks go to the KV groups' tables (-1: none)."""
        for group, ids in enumerate(tables):
            self._group[[block for block in ids if 0 <= block < self.num_blocks]] = group

    @property
    def group_blocks(self) -> tuple[int, ...]:
        """Blocks in the tables of each KV group, a shared one counted by each holder; none of a single group."""
        if self._num_groups == 1:
            return ()
        held = np.bincount(self._group, weights=self._references, minlength=self._num_groups)
        return tuple(held.astype(int).tolist())

    def drain(self) -> bytes:
        """`changed_blocks` of the next record."""
        changed, self._changed = self._changed, []
        return b"".join(part.tobytes() for part in changed)

    @property
    def num_free(self) -> int:
        return int(self._counts[EMPTY] + self._counts[CACHED_FREE])

    def counts(self, stored_tokens: int, block_size: int, watermark: int) -> Blocks:
        """The pool by class. `stored_tokens` of all running requests, shared ones counted by each."""
        empty, cached_free, held, shared = self._counts.tolist()
        return Blocks(
            held=held,
            shared=shared,
            cached_free=cached_free,
            empty=empty,
            stored_tokens=max(0, stored_tokens - self._extra * block_size),
            watermark=watermark,
        )
