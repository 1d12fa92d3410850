"""The running requests as arrays: one row per request, in the order they were admitted.

Planning and settling a step touch every row with a few vector operations; Python visits only rows that
cross a block boundary, start or finish. The first columns are a telemetry record's rows as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS
from schedtop.engine.handoff.request import Request
from schedtop.engine.kv.manager import Standing

IntArray = npt.NDArray[np.int32]
RowArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

COLUMNS = (
    *ROW_FIELDS,
    "num_computed",  # tokens with state once every step under way has run, if all its drafts hold
    "num_tokens",  # prompt and outputs so far
    "num_expected",  # tokens once every result under way has arrived, likewise; one with `num_tokens` if not `ahead`
    "num_spec",  # draft tokens waiting for verification
    "room",  # tokens that its block table has slots for
    "next_full",  # tokens at which its next block is full
    "next_release",  # computed tokens from which a block can be given back
    "num_released",  # blocks given back: no later token needs them
    "stop_at",  # num_tokens at which the request ends by length
    "high_water",  # most tokens it had computed before a preemption
    "mid_prompt",  # 1: its last scheduled chunk left tokens without state
    "decoding",  # 1: it got an output since it was admitted, so its newest token is all it needs
    "slot",  # which line of the output store is its own
    "flushed",  # place in the store up to which its request knows its outputs
    "origin",  # place in the store where its first token would be: token i is i places further on
    "in_flight",  # tokens scheduled in steps under way
    "next_step",  # step before which it is passed over
)
MAX_DRAFTS = 8
ZERO, ONE = np.array(0, dtype=np.int32), np.array(1, dtype=np.int32)
"""numpy is twice as quick at these as at Python's numbers."""


class RequestTable:
    """Arrays aligned with `requests`; only the first `size` entries count.

    Outputs that a row gets while it is here lie in the store: ids in `_ids`, seconds since the delivery before in
    `_gaps`, one line of `_width` places (whole blocks) per slot, flattened. `flush` hands them to the request. The ids
    of a block that was begun before lie in front of them. `has_drafts` says whether any row may have drafts waiting,
    `recomputing` whether any may be below its `high_water`. While `layout` stays the same, rows are where they were.
    `ahead`: rows are planned on before their results are here.
    """

    request: IntArray
    tokens: IntArray
    drafts: IntArray
    accepted: IntArray
    computed: IntArray
    needed: IntArray
    emitted: IntArray
    blocks: IntArray
    flags: IntArray
    num_computed: IntArray
    num_tokens: IntArray
    num_expected: IntArray
    num_spec: IntArray
    room: IntArray
    next_full: IntArray
    next_release: IntArray
    num_released: IntArray
    stop_at: IntArray
    high_water: IntArray
    mid_prompt: IntArray
    decoding: IntArray
    slot: IntArray
    flushed: IntArray
    origin: IntArray
    in_flight: IntArray
    next_step: IntArray

    def __init__(self, ahead: bool = False, block_size: int = 1, capacity: int = 64) -> None:
        self.size = 0
        self.layout = 0
        self.requests: list[Request] = []
        self.ids: list[str] = []
        self.num_with_stops = 0
        self.recomputing = False
        self.has_drafts = False
        self.ahead = ahead
        self._block_size, self._block = block_size, np.array(block_size, dtype=np.int32)
        self._free_slots: list[int] = []
        self.data = np.zeros((len(COLUMNS), 0), dtype=np.int32)
        self.last_s = np.zeros(0)
        self.draft_ids = np.zeros((0, MAX_DRAFTS), dtype=np.int32)
        self._width = 64 // block_size * block_size or block_size
        self._ids = np.zeros(0, dtype=np.int32)
        self._gaps = np.zeros(0, dtype=np.float32)
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        old = self.data.shape[1]
        extra = capacity - old
        self.data = np.pad(self.data, ((0, 0), (0, extra)))
        self.last_s = np.pad(self.last_s, (0, extra))
        self.draft_ids = np.pad(self.draft_ids, ((0, extra), (0, 0)))
        self._ids = np.pad(self._ids, (0, extra * self._width))
        self._gaps = np.pad(self._gaps, (0, extra * self._width))
        self._free_slots.extend(range(capacity - 1, old - 1, -1))
        self._name_columns()

    def _name_columns(self) -> None:
        for index, name in enumerate(COLUMNS):
            setattr(self, name, self.data[index])
        if not self.ahead:
            self.num_expected = self.num_tokens

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has its own columns."""
        self.__dict__.update(state)
        self._name_columns()

    def _widen(self, width: int) -> None:
        """Give every line of the store at least `width` places."""
        old, self._width = self._width, max(-(-width // self._block_size) * self._block_size, 2 * self._width)
        pad = ((0, 0), (0, self._width - old))
        self._ids = np.pad(self._ids.reshape(-1, old), pad).reshape(-1)
        self._gaps = np.pad(self._gaps.reshape(-1, old), pad, constant_values=np.nan).reshape(-1)
        shift = self.slot[: self.size] * (self._width - old)
        self.flushed[: self.size] += shift
        self.origin[: self.size] += shift

    def append(self, request: Request, num_computed: int, stop_at: int, standing: Standing) -> int:
        """Add a request at rest as the last row, with `num_computed` tokens already in its blocks.

        The caller sets `next_full`, which depends on the chunk it is admitted with.
        """
        row = self.size
        if row == self.data.shape[1]:
            self._grow(2 * row)
        num_tokens = request.num_tokens
        begun = num_tokens % self._block_size
        places = begun + stop_at - num_tokens + MAX_DRAFTS + 1
        if places > self._width:
            self._widen(places)
        self.size = row + 1
        self.requests.append(request)
        self.ids.append(request.id)
        self.num_with_stops += bool(request.stop_token_ids)
        self.recomputing |= request.high_water > num_computed
        self.data[:, row] = 0
        self.request[row] = request.number
        self.num_computed[row] = num_computed
        self.num_tokens[row] = self.num_expected[row] = num_tokens
        self.room[row], self.next_release[row], self.num_released[row], self.blocks[row] = standing
        self.stop_at[row] = stop_at
        self.high_water[row] = request.high_water
        self.slot[row] = slot = self._free_slots.pop()
        start = slot * self._width
        self.flushed[row] = start + begun
        self.origin[row] = start + begun - num_tokens
        self._gaps[start : start + self._width] = np.nan
        if begun:
            tokens = request.token_bytes(num_tokens - begun, num_tokens)
            self._ids[start : start + begun] = np.frombuffer(tokens, dtype=np.int32)
        self.last_s[row] = np.nan if request.last_token_s is None else request.last_token_s
        return row

    def remove(self, rows: Sequence[int]) -> None:
        """Take out the given rows (ascending); later rows move up. Flush them first if their outputs matter."""
        for row in reversed(rows):
            request = self.requests.pop(row)
            del self.ids[row]
            self.num_with_stops -= bool(request.stop_token_ids)
            self._free_slots.append(self.slot.item(row))
        size, left, first = self.size, len(self.requests), rows[0]
        self.size = left
        self.layout += 1
        if first == left:  # nothing behind the removed rows
            return
        # Piece by piece: numpy is much slower at indexing many columns by one array.
        for row, stop in zip(rows, [*rows[1:], size], strict=True):
            begin, end = row + 1, first + stop - row - 1
            self.data[:, first:end] = self.data[:, begin:stop]
            self.last_s[first:end] = self.last_s[begin:stop]
            if self.has_drafts:
                self.draft_ids[first:end] = self.draft_ids[begin:stop]
            first = end

    def rows_of(self, numbers: IntArray, slots: IntArray) -> RowArray:
        """The present rows of the requests with these numbers, which once had these slots; -1: gone."""
        row_of = np.full(self.data.shape[1], -1, dtype=np.intp)
        row_of[self.slot[: self.size]] = np.arange(self.size)
        rows = row_of[slots]
        rows[self.request[rows] != numbers] = -1
        return rows

    def note_blocks(self, rows: RowArray, standings: Sequence[Standing]) -> None:
        """Bring the counters of some rows up to their requests' blocks."""
        if len(standings) == 1:  # as of each row that preempts others
            row = rows[0]
            self.room[row], self.next_release[row], self.num_released[row], self.blocks[row] = standings[0]
            return
        columns = np.array(standings, dtype=np.int32).reshape(-1, 4).T
        self.room[rows], self.next_release[rows], self.num_released[rows], self.blocks[rows] = columns

    def append_outputs(
        self, rows: RowArray | slice, sampled: IntArray, emitted: IntArray, gaps_s: npt.NDArray[np.float32]
    ) -> None:
        """Store each row's first `emitted` ids of `sampled`, one delivery per row, `gaps_s` after its last one."""
        num_tokens = self.num_tokens[rows]
        store = (self.origin[rows] + num_tokens).astype(np.intp)
        self._gaps[store] = gaps_s
        # Data beyond a row's last output is garbage; later outputs overwrite it.
        if sampled.shape[1] == 1:
            self._ids[store] = sampled[:, 0]
        else:
            self._ids[store[:, None] + np.arange(sampled.shape[1])] = sampled
        self.num_tokens[rows] = num_tokens + emitted

    def append_steps(
        self, sampled: IntArray, gaps_s: npt.NDArray[np.float32], counts: IntArray
    ) -> npt.NDArray[np.float32]:
        """Store the outputs (times, rows) of many steps, each a delivery of its own: the first `counts` of each row.

        Returns the gaps that count.
        """
        times, num_tokens = np.arange(len(sampled))[:, None], self.num_tokens[: self.size]
        store = self.origin[: self.size] + num_tokens + times
        if np.minimum.reduce(counts) < len(sampled):
            there = times < counts
            store, sampled, gaps_s = store[there], sampled[there], gaps_s[there]
        self._ids[store] = sampled
        self._gaps[store] = gaps_s
        num_tokens += counts
        return gaps_s

    def block_bytes(self, rows: RowArray, starts: IntArray) -> tuple[bytes, BoolArray]:
        """The token ids of a block of each row, which begins at position `starts`: int32, row after row.

        Also says which rows have them all in the store; the bytes of the others mean nothing.
        """
        places = self.origin[rows] + starts
        blocks = self._ids.reshape(-1, self._block_size)
        stored = places >= self.slot[rows] * self._width
        return blocks.take(places // self._block, axis=0, mode="clip").tobytes(), stored

    def flush(self, row: int) -> None:
        """Hand a row's outputs and gaps to its request."""
        start, end = self.flushed.item(row), self.origin.item(row) + self.num_tokens.item(row)
        if start < end:
            request = self.requests[row]
            request.output_token_ids.frombytes(self._ids[start:end].tobytes())
            request.gaps_s.frombytes(self._gaps[start:end].tobytes())
            self.flushed[row] = end

    def rest(self, row: int) -> Request:
        """Flush a row and write its counters back: the request can leave the table."""
        self.flush(row)
        request = self.requests[row]
        last_s = self.last_s.item(row)
        request.last_token_s = None if last_s != last_s else last_s
        return request
