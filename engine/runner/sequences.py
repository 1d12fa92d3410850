"""What the worker remembers of each request in the batch: its token ids and its block table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from schedtop.engine.handoff.plan import IntArray, Started

SlotArray = npt.NDArray[np.intp]


class Rows:
    """One slot per request, in matrices that grow: `token_ids` (slots, positions), `blocks` (slots, columns)."""

    def __init__(self, block_size: int, num_slots: int = 16, length: int = 256) -> None:
        self.block_size = block_size
        self.token_ids = np.zeros((num_slots, length), dtype=np.int32)
        self.blocks = np.zeros((num_slots, -(-length // block_size)), dtype=np.int32)
        self._num_blocks = np.zeros(num_slots, dtype=np.int32)
        self._slots: dict[int, int] = {}
        self._free = list(range(num_slots))

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget requests; those it does not know are ignored."""
        for number in numbers:
            slot = self._slots.pop(number, None)
            if slot is not None:
                self._free.append(slot)

    def start(self, entry: Started) -> None:
        """Take a request in; one already known is replaced."""
        number = entry.request.number
        self.drop([number])
        if not self._free:
            self._grow_slots()
        slot = self._slots[number] = self._free.pop()
        token_ids = entry.token_ids
        self._ensure_length(len(token_ids))
        self.token_ids[slot, : len(token_ids)] = token_ids
        self._num_blocks[slot] = 0
        self.append_blocks(number, entry.block_table)

    def append_blocks(self, number: int, block_ids: list[int]) -> None:
        """Add blocks to the end of a request's table."""
        slot = self._slots[number]
        begin = int(self._num_blocks[slot])
        end = begin + len(block_ids)
        self._ensure_length(end * self.block_size)
        self.blocks[slot, begin:end] = block_ids
        self._num_blocks[slot] = end

    def slots_of(self, numbers: IntArray) -> SlotArray:
        """The slot of each request number."""
        slots = self._slots
        return np.fromiter((slots[number] for number in numbers.tolist()), dtype=np.intp, count=len(numbers))

    def room_of(self, slots: SlotArray) -> IntArray:
        """Tokens that each slot's blocks hold: int32."""
        return self._num_blocks[slots] * self.block_size

    def write(self, slots: SlotArray, begin: IntArray, ids: IntArray, counts: IntArray) -> None:
        """Put the first `counts[i]` of `ids[i]` at positions `begin[i]` on of row `slots[i]`."""
        rows, places = np.nonzero(np.arange(ids.shape[1]) < counts[:, None])
        if rows.size:
            columns = begin[rows] + places
            self._ensure_length(int(columns.max()) + 1)
            self.token_ids[slots[rows], columns] = ids[rows, places]

    def _ensure_length(self, length: int) -> None:
        have = self.token_ids.shape[1]
        if length <= have:
            return
        length = max(length, 2 * have)
        self.token_ids = _wider(self.token_ids, length)
        self.blocks = _wider(self.blocks, -(-length // self.block_size))

    def _grow_slots(self) -> None:
        have = len(self.token_ids)
        self.token_ids = np.concatenate([self.token_ids, np.zeros_like(self.token_ids)])
        self.blocks = np.concatenate([self.blocks, np.zeros_like(self.blocks)])
        self._num_blocks = np.concatenate([self._num_blocks, np.zeros_like(self._num_blocks)])
        self._free = list(range(have, 2 * have))


def _wider(matrix: IntArray, width: int) -> IntArray:
    wide = np.zeros((len(matrix), width), dtype=matrix.dtype)
    wide[:, : matrix.shape[1]] = matrix
    return wide
