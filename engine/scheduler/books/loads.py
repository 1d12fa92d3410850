"""External state: requests that wait for a load, and blocks that outlive their request.

A request whose load takes steps owns its blocks while it waits: it is in `holding`, before the queue. Once the load
is reported it runs like any other, or computes what was lost.
"""

from __future__ import annotations

from bisect import insort

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import Deferral, Finish, FinishReason, Head, HostLoad, Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.handoff.store import KVStore, Load
from schedtop.engine.kv.manager import Hit, KVManager
from schedtop.engine.scheduler.books.request_table import RequestTable
from schedtop.engine.scheduler.books.state import PlannedBatch, SchedulerState


class WaitingHolder(msgspec.Struct):
    """A request that owns blocks and waits: `num_computed` tokens are, or will be, in them."""

    request: Request
    num_computed: int
    loading: bool = True
    failed: bool = False


class Loads:
    """`holding` in order; `kept` are requests that ended, whose blocks a load or a send still needs.

    `lost` and `errors` describe the last results: whose loads failed, and who ended by that.
    """

    def __init__(self, state: SchedulerState, store: KVStore) -> None:
        self.store = store
        self.by_urgency = state.config.policy == "priority"
        self.holding: list[WaitingHolder] = []
        self.kept: list[Request] = []
        self.started: dict[int, tuple[int, int]] = {}
        self.failed: list[Request] = []
        self.errors: list[Request] = []
        self.done: list[Request] = []
        self.sent: list[Request] = []
        self._free_later: list[tuple[int, list[int]]] = []

    @property
    def is_ready(self) -> bool:
        """Whether any load has ended."""
        return any(not entry.loading for entry in self.holding)

    @property
    def num_loading(self) -> int:
        return sum(entry.loading for entry in self.holding)

    # The waiting pass

    def begin(self, state: SchedulerState, request: Request, hit: Hit, local: int) -> None:
        """Begin a load, whose blocks have been allocated."""
        self.store.begin(request, local, hit.num_tokens - local)
        self.started[request.number] = (local, hit.num_tokens - local)
        if not self.store.waits:
            return
        request.local_tokens = local
        state.waiting.deferrals.append(Deferral(request.number, Limiter.REMOTE_KV))
        old = self.of(request)
        if old is not None:
            old.num_computed, old.loading, old.failed = hit.num_tokens, True, False
            return
        entry = WaitingHolder(request, hit.num_tokens)
        if self.by_urgency:
            insort(self.holding, entry, key=lambda one: state.waiting.place(one.request))
        else:
            self.holding.append(entry)

    def describe(self) -> list[HostLoad]:
        """Those that hold blocks before the queue, for a snapshot."""
        return [
            HostLoad(entry.request.number, entry.num_computed, entry.request.local_tokens, failed=entry.failed)
            for entry in self.holding
        ]

    def take_over(self, request: Request, load: HostLoad) -> None:
        """A request of a snapshot, whose blocks are its own again, waits before the queue."""
        request.local_tokens = load.local_tokens
        self.holding.append(WaitingHolder(request, load.tokens, load.due_s is not None, load.failed))

    def of(self, request: Request) -> WaitingHolder | None:
        return next((entry for entry in self.holding if entry.request is request), None)

    def leave(self, request: Request) -> bool:
        """A request runs or ends; False if it was not holding."""
        entry = self.of(request)
        if entry is None:
            return False
        self.holding.remove(entry)
        return True

    def turn(self, kv: KVManager, entry: WaitingHolder) -> Hit | None:
        """What a request got from its reported load; None: nothing, it looks in the cache again."""
        request = entry.request
        if not request.block_ids and not request.further:
            return None
        if entry.failed and entry.num_computed == 0:
            kv.free(request)
            return None
        kv.register(request, entry.num_computed)
        entry.failed = False
        entry.num_computed = min(entry.num_computed, request.num_tokens - 1)
        return kv.held_by(request, entry.num_computed)

    def reserve(self, state: SchedulerState) -> int:
        """Blocks still missing for requests that are loading, loaded, or in the middle of their prompt."""
        table, size = state.table, state.table.size
        ends = table.num_computed[:size] + table.tokens[:size]
        prefilling = [table.requests[row] for row in np.flatnonzero(ends < table.num_tokens[:size]).tolist()]
        k = state.limits.num_speculative_tokens
        more = 1 + k + state.config.num_lookahead_tokens if k else 0
        return state.kv.lacking([*(entry.request for entry in self.holding), *prefilling], more)

    # Results

    def settle_failures(
        self, state: SchedulerState, batch: PlannedBatch, now_s: float
    ) -> tuple[list[Finish], dict[int, int]]:
        """Apply failed loads when a batch's results arrive: returns ended requests, and rows that lose their result.

        The latter by number, each with the tokens that stay computed.
        """
        self.failed, self.errors = list(dict.fromkeys(batch.planned.lost.values())), []
        loads = self.store.finished_loads()
        self.done = [load.request for load in loads]
        finishes = [finish for load in loads if (finish := self._fail(state, load, now_s)) is not None]
        return finishes, self._cut(state.table, batch)

    def _fail(self, state: SchedulerState, load: Load, now_s: float) -> Finish | None:
        request, entry = load.request, self.of(load.request)
        first_lost = 0 if load.whole else load.first_lost
        if first_lost is None:
            return None
        if load.whole or (entry is not None and not self.store.fails_requests):
            self.failed.append(request)
        if entry is None:
            return None
        if self.store.fails_requests:
            self.errors.append(request)
            return self.end_while_loading(state, request, FinishReason.ERROR, now_s)
        entry.failed = True
        entry.num_computed = min(entry.num_computed, first_lost * state.config.block_size)
        return None

    def _cut(self, table: RequestTable, batch: PlannedBatch) -> dict[int, int]:
        """All running requests, including those whose own step is a later one; the batch's work for them does not
        count."""
        lost, marked = batch.planned.lost, set[int]()
        cut: dict[int, int] = {}
        if not lost:
            return cut
        tokens = dict(zip(batch.plan.numbers.tolist(), batch.plan.tokens.tolist(), strict=True))
        for row, request in enumerate(table.requests[: table.size]):
            before = table.num_computed.item(row) - tokens.get(request.number, 0)
            size = table.room.item(row) // max(len(request.block_ids), 1)
            places = [place for place, block in enumerate(request.block_ids[: -(-before // size)]) if block in lost]
            if not places:
                continue
            own = [place for place in places if request.block_ids[place] not in marked]
            marked.update(request.block_ids[place] for place in places)
            cut[request.number] = own[0] * size if own else before
        return cut

    def cut_rows(self, state: SchedulerState, cut: dict[int, int], now_s: float) -> tuple[list[Finish], list[int]]:
        """Rows that lost a result go back to what stays computed, or end; how, and which rows have left."""
        from schedtop.engine.scheduler.books.ending import end_request

        table = state.table
        rows = [row for row, number in enumerate(table.request[: table.size].tolist()) if number in cut]
        if not self.store.fails_requests:
            for row in rows:
                table.num_computed[row], table.decoding[row] = cut[table.request.item(row)], 0
            return [], []
        self.errors += [table.requests[row] for row in rows]
        finishes = [end_request(state, table.rest(row), FinishReason.ERROR, now_s) for row in rows]
        table.remove(rows)
        return finishes, rows

    def report(self, state: SchedulerState) -> None:
        """Free the blocks of ended requests whose loads and sends are done."""
        for request in self.done:
            if request in self.kept:
                self.kept.remove(request)
                state.kv.free(request)
            elif (entry := self.of(request)) is not None:
                entry.loading = False
                state.waiting.deferrals.append(Deferral(request.number))
        self.sent = self.store.finished_sends()
        for request in self.sent:
            self.kept.remove(request)
            self.give_back(state, request)

    # Ends

    def end_while_loading(
        self, state: SchedulerState, request: Request, reason: FinishReason, now_s: float
    ) -> Finish:
        """Its blocks are freed when the load is reported."""
        from schedtop.engine.scheduler.books.ending import end_request

        self.leave(request)
        self.kept.append(request)
        return end_request(state, request, reason, now_s)

    def give_back(self, state: SchedulerState, request: Request) -> int:
        """Free a request's blocks; if a step under way may still write to them, once its results have arrived."""
        if request in self.kept:
            return 0
        under_way = any(request.number in batch.plan.numbers for batch in state.under_way)
        if not (self.store.consumes and under_way):
            return state.kv.free(request)
        blocks = [block for table in state.kv.tables(request) for block in table if block >= 0]
        self._free_later.append((state.num_planned, blocks[::-1]))
        state.kv.forget_blocks(request)
        return 0

    def keep(self, state: SchedulerState, request: Request, num_computed: int) -> None:
        """A request has run to its end: a send may need its blocks a while longer."""
        if self.store.send(request):
            state.kv.release_before_window(request, num_computed)
            self.kept.append(request)

    def free_due(self, state: SchedulerState) -> None:
        """At the start of an update: blocks whose last step under way is the one being applied."""
        applied = state.num_planned - len(state.under_way)
        due = [entry for entry in self._free_later if entry[0] <= applied]
        self._free_later = [entry for entry in self._free_later if entry[0] > applied]
        for _, blocks in due:
            state.kv.pool.release(blocks)


def no_room(state: SchedulerState, request: Request, hit: Hit) -> Head | None:
    """Why the blocks for a load that takes steps cannot be had; None if they can."""
    assert state.loads is not None
    short = state.kv.shortage(
        hit, 0, request.num_tokens, state.limits.reserve_full_isl, state.table.size > 0, state.loads.reserve(state)
    )
    return None if short is None else Head(request.number, short.reason, short.need, short.have, short.reserve)
