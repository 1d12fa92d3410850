"""The passes of a step of the plain scheduler: running requests, then waiting ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tests.engine.scheduler.plain.pool import Table
from tests.engine.scheduler.plain.request import PlainRequest

if TYPE_CHECKING:
    from tests.engine.scheduler.plain.run import PlainRun


class Turn(Enum):
    """What the turn of a waiting request comes to."""

    RUN = 1
    SKIP = 2
    END = 3
    GONE = 4


@dataclass
class Row:
    """One request of a batch. `samples` and `num_drafts` are known once the step is planned."""

    request: PlainRequest
    n: int
    fresh: bool
    life: int
    encoded: list[int] = field(default_factory=list)
    num_drafts: int = 0
    samples: bool = False
    lost_result: bool = False


class Passes:
    """One step being planned."""

    def __init__(self, run: PlainRun, step: int) -> None:
        self.run, self.step = run, step
        self.tokens_left, self.input_left = run.token_budget, run.input_budget
        self.rows: list[Row] = []
        self.preempted: list[str] = []
        self.admitted: dict[str, int] = {}
        self.skipped: list[PlainRequest] = []
        self.aside: dict[str, list[PlainRequest]] = {"holding": [], "waiting": []}

    # What both passes share

    @property
    def room(self) -> int:
        return min(self.tokens_left, self.input_left - self.run.slots)

    def budget_is_gone(self) -> bool:
        return self.tokens_left == 0 or self.input_left <= self.run.slots

    def split_mamba(self, request: PlainRequest, start: int, n: int) -> int:
        """Chunks of a prompt end where a state is kept."""
        kv = self.run.kv
        bound = max(len(request.prompt), request.num_tokens - 1)
        if not any(group.kind == "align" for group in kv.groups) or start >= bound:
            return n
        size, end = kv.groups[0].size, start + n
        if end < bound:
            most = self.most()
            rounded = end // size * size
            if rounded > start or size <= most:
                end = max(start, rounded)
        total = request.num_tokens
        stops = [total // size * size - size if kv.drop else (total - 1) // size * size]
        if start % size:
            stops.append(start // size * size + size)
        if request.junction:
            stops.append(start + (request.junction - start) // size * size)
        return min([end, *(stop for stop in stops if start < stop < end)]) - start

    def most(self) -> int:
        """Most tokens that one request ever gets: what needs more than that would wait for ever."""
        run = self.run
        return min(run.largest_chunk(), run.threshold) if run.threshold else run.largest_chunk()

    def look_ahead(self, request: PlainRequest, start: int, n: int) -> int:
        """A drafter that reads ahead must not be left with fewer tokens than it reads."""
        ahead, remaining = self.run.kv.prefill_lookahead, request.num_tokens - start - n
        if 0 < remaining < ahead <= self.most():
            return max(0, request.num_tokens - ahead - start)
        return n

    def allocate(self, request: PlainRequest, hit: list[Table], start: int, n: int, watermark: int) -> bool:
        """Take the blocks for `n` more tokens, and register what they fill."""
        kv = self.run.kv
        ahead = kv.lookahead
        fresh = not request.holds_blocks()
        if kv.need(request, hit, start, start + n, ahead, capped=False) + watermark > len(kv.pool.free):
            return False
        if fresh:
            kv.take_hit(request, hit, start)
        kv.take_new(request, start + n, ahead, fresh)
        kv.register(request, min(start + n, request.num_tokens))
        return True

    def plan(self, request: PlainRequest, n: int, fresh: bool, encode: list[int]) -> None:
        encoded = self.run.images.encode(request, encode)
        self.rows.append(Row(request, n, fresh, request.life, encoded))
        self.tokens_left -= n
        self.input_left -= n + self.run.slots

    # Running requests

    def pass_over_running(self) -> None:
        run = self.run
        for request in list(run.running):
            if self.budget_is_gone():
                return
            if request not in run.running:  # preempted meanwhile
                continue
            if not self.advance(request):
                return

    def advance(self, request: PlainRequest) -> bool:
        """False: the pass is over."""
        run, kv = self.run, self.run.kv
        n = self.wanted(request)
        n, encode, _ = run.images.fit(request, request.computed, n) if n > 0 else (0, [], [])
        n = self.look_ahead(request, request.computed, n)
        if n <= 0:
            return True
        while True:
            kv.release_skipped(request)
            nothing: list[Table] = [[] for _ in kv.groups]
            if self.allocate(request, nothing, request.computed, n, 0):
                break
            alone = run.is_alone(request)
            if alone and request.num_drafts and run.depth == 1:
                request.num_drafts = 0  # drafts never make a request impossible
                n = self.wanted(request)
                continue
            fits = self.fitting(request, n) if alone else 0
            if 0 < fits < n:
                n = fits  # under a window, a raised budget asks for more than the pool: take what there is
                continue
            victim = run.pick_victim()
            if run.store.consumes and run.depth > 1 and victim.batches:
                return False
            self.preempt(victim)
            if victim is request:
                return False
        self.plan(request, n, False, encode)
        return True

    def fitting(self, request: PlainRequest, n: int) -> int:
        """Of `n` tokens, how many the pool has slots for."""
        kv, nothing = self.run.kv, [[] for _ in self.run.kv.groups]
        while n > 0:
            need = kv.need(request, nothing, request.computed, request.computed + n, kv.lookahead, capped=False)
            if need <= len(kv.pool.free):
                break
            n -= 1
        return n

    def admissible(self, request: PlainRequest, hit: list[Table], start: int, n: int) -> int:
        kv = self.run.kv
        while n > 1 and kv.need(request, hit, start, start + n, kv.lookahead, capped=False) > len(kv.pool.free):
            n -= 1
        return n

    def wanted(self, request: PlainRequest) -> int:
        run, computed = self.run, request.computed
        placeholders, prompt = request.placeholders, len(request.prompt)
        if placeholders and computed + 2 - placeholders >= min(prompt + request.max_tokens, run.kv.capacity + 1):
            return 0
        if run.is_async and run.pipeline > 1 and self.step < request.next_decode_step:
            return 0
        gap = request.num_tokens + request.num_drafts + placeholders - computed
        left = run.longest - computed - (0 if run.pooling else 1)
        n = int(min(gap, run.chunk_limit(), self.room, left))
        return self.split_mamba(request, computed, n) if n > 0 else n

    def preempt(self, victim: PlainRequest) -> None:
        run = self.run
        for row in list(self.rows):
            if row.request is victim:
                self.rows.remove(row)
                self.tokens_left += row.n
                self.input_left += row.n + run.slots
                run.images.left += sum(victim.images[index].length for index in row.encoded)
        run.running.remove(victim)
        run.images.leave(victim)
        run.give_back(victim)
        victim.num_drafts = victim.placeholders = victim.under_way = victim.next_decode_step = 0
        victim.life += 1
        if run.store.produces:
            victim.batches = []
        self.preempted.append(victim.id)
        run.queue(victim, front=True)

    # Waiting requests

    def pass_over_waiting(self) -> None:
        run = self.run
        self.before = [row.request for row in self.rows]
        self.adapters = {request.lora for request in self.before} - {0}
        while (run.holding or run.waiting) and not self.budget_is_gone() and len(run.running) < run.cap:
            queue = run.holding or run.waiting
            turn = self.take_turn(queue[0])
            if turn is Turn.END:
                break
            if turn is Turn.SKIP:
                request = queue.pop(0)
                self.skipped.append(request)
                self.aside["holding" if request.loading or queue is run.holding else "waiting"].append(request)
        run.restore(self.aside)

    def take_turn(self, request: PlainRequest) -> Turn:
        run = self.run
        if (request.spec.get("ready_step") or 0) > self.step or request.loading:
            return Turn.SKIP
        self.settle_load(request)
        if request.waits_for_results:
            return Turn.SKIP
        adapter_is_new = request.lora and request.lora not in self.adapters
        if run.max_loras and adapter_is_new and len(self.adapters) >= run.max_loras:
            return Turn.SKIP
        hit: list[Table] = [[] for _ in run.kv.groups]
        local, external = request.computed, 0
        if request.computed == 0:
            hit, request.junction = run.kv.look_up(request)
            local = len(hit[0]) * run.kv.groups[0].size
            known = run.store.tokens(request, local, self.step)
            if known is None:
                return Turn.SKIP
            external = known
        if external and run.store.waits:
            return self.start_load(request, hit, local, external)
        return self.admit(request, hit, local, external)

    def settle_load(self, request: PlainRequest) -> None:
        """A load that was reported: what came counts, what did not is computed."""
        if not request.just_loaded:
            return
        request.just_loaded = False
        if request.load_failed and request.computed == 0:
            self.run.kv.free(request)
        else:
            self.run.kv.register(request, request.computed)
            if request.computed == request.num_tokens:
                request.computed -= 1
        request.load_failed = False

    def start_load(self, request: PlainRequest, hit: list[Table], local: int, external: int) -> Turn:
        run, kv, end = self.run, self.run.kv, local + external
        watermark = run.watermark_blocks()
        if not self.whole_fits(request, hit, end, watermark):
            return Turn.END
        if kv.need(request, hit, end, end, 0, capped=False) + watermark > len(kv.pool.free) - self.reserve():
            return Turn.END
        kv.take_hit(request, hit, end)
        kv.take_new(request, end, 0, True)
        request.computed, request.loading = end, True
        run.store.begin(request, local, external, self.step)
        return Turn.SKIP

    def reserve(self) -> int:
        """Blocks that requests still lack which are loading, loaded, or in the middle of their prompt."""
        run, kv = self.run, self.run.kv
        planned = {row.request.id: row.n for row in self.rows}
        holding = [*run.holding, *self.aside["holding"]]
        prefilling = [one for one in run.running if one.computed + planned.get(one.id, 0) < one.num_tokens]
        more = 1 + run.k + kv.lookahead if run.k else 0
        total = 0
        for request in holding + prefilling:
            for group, table in zip(kv.groups, request.tables, strict=True):
                want = min(group.required(request.num_tokens, request.num_tokens + more), kv.cap(group))
                total += max(0, int(want) - len(table))
        if more and holding + prefilling:
            total += sum(group.blocks_for(more) for group in kv.groups if not group.is_mamba)
        return total

    def whole_fits(self, request: PlainRequest, hit: list[Table], start: int, watermark: int) -> bool:
        kv, run = self.run.kv, self.run
        if not run.reserve_full:
            return True
        need = kv.need(request, hit, start, request.num_tokens, 0, capped=True)
        return need + watermark <= len(kv.pool.free)

    def shares_fresh_state(self, hit: list[Table]) -> bool:
        """Mamba: the hit's last state belongs to a request scheduled earlier in this step, which still holds it."""
        kv = self.run.kv
        for place, (group, found) in enumerate(zip(kv.groups, hit, strict=True)):
            if group.kind != "align" or not found:
                continue
            for row in self.rows:
                tokens = kv.registered(group, min(row.request.computed + row.n, row.request.num_tokens))
                last, table = tokens // group.size - 1, row.request.tables[place]
                if 0 <= last < len(table) and table[last] == found[-1]:
                    return True
        return False

    def admit(self, request: PlainRequest, hit: list[Table], local: int, external: int) -> Turn:
        run = self.run
        start = local + external
        n = request.num_tokens - start
        padding = self.padding(request, hit, start) if n == 1 else 0
        if padding and n + padding > self.room:
            return Turn.END
        n = int(min(n + padding, run.chunk_limit()))
        if n > self.room and not run.chunking:
            if not run.is_alone(request) or n <= run.largest_chunk():
                return Turn.END
            run.unqueue(request)
            run.end(request, "refused")  # it outgrew every step it could ever get
            return Turn.GONE
        n = min(n, self.room)
        whole, n = n, self.split_mamba(request, start, n)
        if padding and n < whole:
            n, padding = 1, 0
        n, encode, taken = run.images.fit(request, start, n) if n > 0 else (0, [], [])
        n = self.look_ahead(request, start, n)
        if run.is_alone(request) and n > 0:
            n = self.admissible(request, hit, start, n)
        watermark = run.watermark_blocks()
        fits = n > 0 and self.whole_fits(request, hit, start, watermark) and not self.shares_fresh_state(hit)
        if not fits or not self.allocate(request, hit, start, n, watermark):
            for one, index in taken:
                run.images.unrefer(one, index)
            return Turn.END
        if external:
            run.store.begin(request, local, external, self.step)
        run.unqueue(request)
        run.running.append(request)
        request.computed = request.cached_at_admission = start
        request.num_drafts = padding
        self.admitted[request.id] = start
        if request.lora:
            self.adapters.add(request.lora)
        self.plan(request, n, True, encode)
        return Turn.RUN

    def padding(self, request: PlainRequest, hit: list[Table], start: int) -> int:
        """Placeholder drafts of an admission with one token to compute, so that a decode batch stays uniform."""
        run = self.run
        if run.k == 0 or start + 1 + run.k + 1 > run.longest:
            return 0
        if any(running.mid_prompt for running in self.before) or not (self.before or start):
            return 0
        if run.chunk_limit() < 1 + run.k:
            return 0
        if run.is_alone(request) and not self.padding_is_possible(request, hit, start):
            return 0  # drafts never make a request impossible
        return run.k

    def padding_is_possible(self, request: PlainRequest, hit: list[Table], start: int) -> bool:
        run, kv = self.run, self.run.kv
        need = kv.need(request, hit, start, start + 1 + run.k, kv.lookahead, capped=False)
        fits = need <= len(kv.pool.free) and self.whole_fits(request, hit, start, 0)
        return 1 + run.k <= run.largest_chunk() and fits
