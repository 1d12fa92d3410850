"""The running requests as arrays: one row per request, in the order they were admitted.

Planning and settling a step touch every row with a few vector operations; Python visits only the rows that
cross a block boundary, finish, or come and go. The first columns are a telemetry record's rows as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from schedtop.engine.request import Request
from schedtop.engine.telemetry import ROW_FIELDS

IntArray = npt.NDArray[np.int32]

COLUMNS = (
    *ROW_FIELDS,
    "num_computed",  # tokens with state, including those scheduled in this step
    "num_tokens",  # prompt and outputs
    "num_spec",  # draft tokens waiting for verification
    "num_blocks",  # length of the block table, released blocks included
    "num_full",  # full blocks whose tokens are flushed to the request
    "num_released",  # blocks released before the window
    "stop_at",  # num_tokens at which the request ends by length
    "high_water",  # most tokens it had computed before a preemption
    "mid_prompt",  # 1: its last scheduled chunk left tokens without state
    "slot",  # where its newest outputs wait
    "pending",  # how many outputs wait there
)

MAX_DRAFTS = 8


class RequestTable:
    """Arrays aligned with `requests`; only the first `size` entries count.

    A row's newest outputs wait in `_tail[slot]` until a block boundary, where `flush` hands them to the request.
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
    num_spec: IntArray
    num_blocks: IntArray
    num_full: IntArray
    num_released: IntArray
    stop_at: IntArray
    high_water: IntArray
    mid_prompt: IntArray
    slot: IntArray
    pending: IntArray

    def __init__(self, block_size: int, capacity: int = 64) -> None:
        self.size = 0
        self.requests: list[Request] = []
        self.ids: list[str] = []
        self.num_with_stops = 0
        self.num_recomputing = 0
        self._tail_width = block_size + 2 * (MAX_DRAFTS + 1)
        self._free_slots: list[int] = []
        self.data = np.zeros((len(COLUMNS), 0), dtype=np.int32)
        self.last_s = np.zeros(0)
        self.draft_ids = np.zeros((0, MAX_DRAFTS), dtype=np.int32)
        self._tail = np.zeros((0, self._tail_width), dtype=np.int32)
        self._tail_gaps = np.zeros((0, self._tail_width), dtype=np.float32)
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        old = self.data.shape[1]
        extra = capacity - old
        self.data = np.pad(self.data, ((0, 0), (0, extra)))
        self.last_s = np.pad(self.last_s, (0, extra))
        self.draft_ids = np.pad(self.draft_ids, ((0, extra), (0, 0)))
        self._tail = np.pad(self._tail, ((0, extra), (0, 0)))
        self._tail_gaps = np.pad(self._tail_gaps, ((0, extra), (0, 0)))
        self._free_slots.extend(range(capacity - 1, old - 1, -1))
        for index, name in enumerate(COLUMNS):
            setattr(self, name, self.data[index])

    def append(self, request: Request, num_computed: int, stop_at: int) -> int:
        """Add a request at rest as the last row, with `num_computed` tokens already in its blocks."""
        row = self.size
        if row == self.data.shape[1]:
            self._grow(2 * row)
        self.size = row + 1
        self.requests.append(request)
        self.ids.append(request.id)
        self.num_with_stops += bool(request.stop_token_ids)
        self.num_recomputing += request.high_water > 0
        self.data[:, row] = 0
        self.request[row] = request.number
        self.num_computed[row] = num_computed
        self.num_tokens[row] = request.num_tokens
        self.num_blocks[row] = len(request.block_ids)
        self.num_released[row] = request.num_released
        self.stop_at[row] = stop_at
        self.high_water[row] = request.high_water
        self.slot[row] = self._free_slots.pop()
        self.last_s[row] = np.nan if request.last_token_s is None else request.last_token_s
        return row

    def remove(self, rows: Sequence[int]) -> None:
        """Take out the given rows (ascending); later rows move up. Flush them first if their outputs matter."""
        for row in rows:
            request = self.requests[row]
            self.num_with_stops -= bool(request.stop_token_ids)
            self.num_recomputing -= request.high_water > 0
            self._free_slots.append(int(self.slot[row]))
        for row in reversed(rows):
            del self.requests[row]
            del self.ids[row]
        size, left = self.size, len(self.requests)
        self.size = left
        first = rows[0]
        if first == left:  # nothing behind the removed rows
            return
        if len(rows) == 1:
            for array in (self.data, self.last_s):
                array[..., first:left] = array[..., first + 1 : size]
            self.draft_ids[first:left] = self.draft_ids[first + 1 : size]
            return
        keep = np.ones(size, dtype=bool)
        keep[list(rows)] = False
        self.data[:, :left] = self.data[:, :size][:, keep]
        self.last_s[:left] = self.last_s[:size][keep]
        self.draft_ids[:left] = self.draft_ids[:size][keep]

    def append_outputs(
        self, rows: IntArray | slice, sampled: IntArray, emitted: IntArray, gaps_s: npt.NDArray[np.float64]
    ) -> None:
        """Store each row's first `emitted` ids of `sampled`, one delivery per row, `gaps_s` after its last one."""
        slot, pending = self.slot[rows], self.pending[rows]
        most = int(emitted.max(initial=0))
        if most == 1 and int(emitted.min()) == 1:
            self._tail[slot, pending] = sampled[:, 0]
            self._tail_gaps[slot, pending] = gaps_s
        else:
            for place in range(most):
                some = np.flatnonzero(emitted > place)
                self._tail[slot[some], pending[some] + place] = sampled[some, place]
                self._tail_gaps[slot[some], pending[some] + place] = gaps_s[some] if place == 0 else np.nan
        self.pending[rows] = pending + emitted
        self.num_tokens[rows] += emitted

    def flush(self, row: int) -> None:
        """Hand a row's waiting outputs and gaps to its request."""
        count = self.pending.item(row)
        if not count:
            return
        request, slot = self.requests[row], self.slot.item(row)
        request.output_token_ids.frombytes(self._tail[slot, :count].tobytes())
        request.gaps_s.frombytes(self._tail_gaps[slot, :count].tobytes())
        self.pending[row] = 0

    def rest(self, row: int) -> Request:
        """Flush a row and write its counters back: the request can leave the table."""
        self.flush(row)
        request = self.requests[row]
        last_s = self.last_s.item(row)
        request.last_token_s = None if last_s != last_s else last_s
        return request
