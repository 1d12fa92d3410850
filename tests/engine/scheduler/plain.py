"""A plain scheduler: one object per request, lists and dicts, the rules one after the other.

The yardstick for the real one. It is slow, decides nothing cleverly, and reads top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from schedtop.engine.golden.case import Case, CaseRequest, CaseStep, prompt_tokens

PLACEHOLDER = "placeholder"
DRAFT = "draft"


@dataclass(eq=False)
class PlainRequest:
    """`drafts` wait for verification; a None in `blocks` was released before the attention window."""

    id: str
    ordinal: int
    prompt: list[int]
    max_tokens: int
    priority: int
    arrived: float
    outputs: list[int] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)
    computed: int = 0
    blocks: list[int | None] = field(default_factory=list)
    num_filled: int = 0
    mid_prompt: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)

    @property
    def urgency(self) -> tuple[int, float]:
        return (self.priority, self.arrived)


class PlainPool:
    """Free blocks in the order they are taken, holders counted, and the blocks that carry each key."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.holders = dict.fromkeys(range(num_blocks), 0)
        self.key_of: dict[int, int] = {}
        self.carriers: dict[int, list[int]] = {}
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}

    def keys(self, tokens: list[int], size: int) -> list[int]:
        """One key per full block: equal exactly where everything up to the block's end is equal."""
        keys, before = [], 0
        for start in range(0, len(tokens) - size + 1, size):
            chain = (before, tuple(tokens[start : start + size]))
            before = self._names.setdefault(chain, len(self._names) + 1)
            keys.append(before)
        return keys

    def find(self, key: int) -> int | None:
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

    def give_back(self, blocks: list[int | None]) -> None:
        freed = []
        for block in blocks:
            if block is not None:
                self.holders[block] -= 1
                if self.holders[block] == 0:
                    freed.append(block)
        plain = [block for block in freed if block not in self.key_of]
        cached = [block for block in freed if block in self.key_of]
        self.free = plain + self.free + cached

    def register(self, block: int, key: int) -> None:
        self.key_of[block] = key
        self.carriers.setdefault(key, []).append(block)


class PlainRun:
    """Runs a case. `steps` yields every decided step; `ends` maps ids to why they ended."""

    def __init__(self, case: Case) -> None:
        self.case, self.config = case, case.config
        config = case.config
        self.pool = PlainPool(config.num_blocks)
        self.waiting: list[PlainRequest] = []
        self.running: list[PlainRequest] = []
        self.ends: dict[str, str] = {}
        self.input_budget = config.max_num_batched_tokens
        self.token_budget = config.max_num_scheduled_tokens or self.input_budget
        self.max_num_seqs = config.max_num_seqs
        self.cap = config.max_num_active_seqs or config.max_num_seqs
        self.threshold = config.long_prefill_token_threshold
        self.watermark = config.watermark
        self.reserve_full = config.scheduler_reserve_full_isl
        self.caching = config.enable_prefix_caching
        self.k = config.num_speculative_tokens
        self.new_drafts = config.num_speculative_tokens

    def steps(self) -> Iterator[CaseStep]:
        arrivals = [request.arrival_step for request in self.case.requests]
        events = arrivals + [knob.step for knob in self.case.knobs] + [abort.step for abort in self.case.aborts]
        step = 0
        while step <= max(events, default=0) or self.waiting or self.running:
            for knob in self.case.knobs:
                if knob.step == step:
                    self.turn(knob.set)
            for ordinal, request in enumerate(self.case.requests):
                if request.arrival_step == step:
                    self.arrive(request, ordinal)
            for abort in self.case.aborts:
                if abort.step == step:
                    self.abort(abort.id)
            if self.waiting or self.running:
                yield self.step(step)
            step += 1

    # Events

    def turn(self, values: dict[str, Any]) -> None:
        if "max_num_batched_tokens" in values:
            self.input_budget = self.token_budget = values["max_num_batched_tokens"]
        if "max_num_scheduled_tokens" in values:
            self.token_budget = values["max_num_scheduled_tokens"] or self.input_budget
        if "max_num_seqs" in values:
            self.max_num_seqs = self.cap = values["max_num_seqs"]
        if "max_num_active_seqs" in values:
            self.cap = values["max_num_active_seqs"] or self.max_num_seqs
        self.threshold = values.get("long_prefill_token_threshold", self.threshold)
        self.watermark = values.get("watermark", self.watermark)
        self.reserve_full = values.get("scheduler_reserve_full_isl", self.reserve_full)
        self.caching = values.get("enable_prefix_caching", self.caching)
        self.k = values.get("num_speculative_tokens", self.k)

    def arrive(self, asked: CaseRequest, ordinal: int) -> None:
        prompt = prompt_tokens(asked).tolist()
        arrived = asked.arrival_step + ordinal * 1e-6
        request = PlainRequest(asked.id, ordinal, prompt, asked.max_tokens, asked.priority, arrived)
        unchunked = not self.config.enable_chunked_prefill and len(prompt) > self.largest_chunk()
        impossible = not 1 <= len(prompt) < self.config.max_model_len or asked.max_tokens < 1
        if impossible or len(prompt) > self.capacity() or unchunked:
            self.ends[request.id] = "refused"
        else:
            self.queue(request, front=False)

    def abort(self, id: str) -> None:
        for queue in (self.waiting, self.running):
            for request in list(queue):
                if request.id == id:
                    queue.remove(request)
                    self.end(request, "abort")

    def queue(self, request: PlainRequest, front: bool) -> None:
        if front:
            self.waiting.insert(0, request)
        else:
            self.waiting.append(request)
        if self.config.policy == "priority":
            self.waiting.sort(key=lambda waiting: waiting.urgency)

    def end(self, request: PlainRequest, reason: str) -> None:
        self.pool.give_back(request.blocks[::-1])
        self.ends[request.id] = reason

    # Limits

    def largest_chunk(self) -> int:
        """Most tokens one request can get in an otherwise empty step."""
        return min(self.token_budget, self.input_budget - self.config.draft_slots)

    def capacity(self) -> float:
        """Most tokens with state one request can have; endless where a window bounds what it holds."""
        bound = self.window_bound()
        if bound is not None and bound <= self.config.num_blocks:
            return float("inf")
        return self.config.num_blocks * self.config.block_size

    def window_bound(self) -> int | None:
        """Blocks that one request under a window needs at most, with the budget of the start."""
        config = self.config
        if config.sliding_window is None:
            return None
        reach = min(config.sliding_window - 1 + config.max_num_batched_tokens, config.max_model_len)
        return self.blocks_for(reach) + 1

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)

    def chunk_limit(self) -> float:
        """The long-prefill threshold, where it is on."""
        unfinished = len(self.running) + len(self.waiting)
        if self.threshold == 0 or unfinished <= 1:
            return float("inf")
        if self.config.long_prefill_token_threshold_adaptive:
            return max(self.threshold, self.input_budget // unfinished)
        return self.threshold

    # One step

    def step(self, step: int) -> CaseStep:
        self.tokens_left, self.input_left = self.token_budget, self.input_budget
        self.planned: list[tuple[PlainRequest, int]] = []
        self.preempted: list[str] = []
        self.admitted: dict[str, int] = {}
        self.pass_over_running()
        if not self.preempted:
            self.pass_over_waiting()
        decided: dict[str, Any] = {
            "scheduled": [(one.id, n, self.num_drafts(one, n)) for one, n in self.planned],
            "running": [request.id for request in self.running],
            "waiting": [request.id for request in self.waiting],
            "free_blocks": len(self.pool.free),
        }
        finished = self.run_model()
        return CaseStep(
            step=step,
            admitted=self.admitted,
            preempted=self.preempted,
            finished=finished,
            free_blocks_after=len(self.pool.free),
            **decided,
        )

    def num_drafts(self, request: PlainRequest, n: int) -> int:
        return max(0, request.computed + n - request.num_tokens)

    def pass_over_running(self) -> None:
        slots = self.config.draft_slots
        for request in list(self.running):
            if self.tokens_left == 0 or self.input_left <= slots:
                return
            if request not in self.running:  # preempted meanwhile
                continue
            n = self.wanted(request)
            if n == 0:
                continue
            while not self.grow(request, n):
                if len(self.running) == 1 and request.drafts:
                    request.drafts = []  # drafts never make a request impossible
                    n = self.wanted(request)
                    continue
                fits = (len(request.blocks) + len(self.pool.free)) * self.config.block_size - request.computed
                if len(self.running) == 1 and 0 < fits < n:
                    n = fits  # under a window, a raised budget asks for more than the pool: take what there is
                    continue
                victim = self.pick_victim()
                self.preempt(victim)
                if victim is request:
                    return
            self.plan(request, n)

    def wanted(self, request: PlainRequest) -> int:
        gap = request.num_tokens + len(request.drafts) - request.computed
        left = self.config.max_model_len - request.computed - 1
        room = min(self.tokens_left, self.input_left - self.config.draft_slots)
        return int(min(gap, self.chunk_limit(), room, left))

    def plan(self, request: PlainRequest, n: int) -> None:
        self.planned.append((request, n))
        self.tokens_left -= n
        self.input_left -= n + self.config.draft_slots

    def pick_victim(self) -> PlainRequest:
        if self.config.policy == "priority":
            return max(self.running, key=lambda request: request.urgency)
        return self.running[-1]

    def preempt(self, victim: PlainRequest) -> None:
        for request, n in list(self.planned):
            if request is victim:
                self.planned.remove((request, n))
                self.tokens_left += n
                self.input_left += n + self.config.draft_slots
        self.running.remove(victim)
        self.pool.give_back(victim.blocks[::-1])
        victim.blocks, victim.computed, victim.drafts, victim.num_filled = [], 0, [], 0
        self.preempted.append(victim.id)
        self.queue(victim, front=True)

    def grow(self, request: PlainRequest, n: int) -> bool:
        """Release what lies before the window, then take the blocks for `n` more tokens; False if too few."""
        if self.config.sliding_window is not None:
            first = max(0, request.computed - self.config.sliding_window + 1) // self.config.block_size
            dropped = request.blocks[:first]
            request.blocks[:first] = [None] * len(dropped)
            self.pool.give_back(dropped[::-1])
        need = self.blocks_for(request.computed + n) - len(request.blocks)
        if need > len(self.pool.free):
            return False
        request.blocks += self.pool.take(max(need, 0))
        self.fill(request, n)
        return True

    def fill(self, request: PlainRequest, n: int) -> None:
        """Blocks that this chunk fills get their cache entries; draft tokens are never cached."""
        num_full = min(request.computed + n, request.num_tokens) // self.config.block_size
        if num_full <= request.num_filled:
            return
        request.num_filled = num_full
        keys = self.pool.keys(request.prompt + request.outputs, self.config.block_size)
        for block, key in list(zip(request.blocks, keys, strict=False))[:num_full]:
            if self.caching and block is not None and block not in self.pool.key_of:
                self.pool.register(block, key)

    # Admission

    def pass_over_waiting(self) -> None:
        slots = self.config.draft_slots
        before = [request for request, _ in self.planned]
        while self.waiting and self.tokens_left > 0 and self.input_left > slots and len(self.running) < self.cap:
            if not self.try_admit(self.waiting[0], before):
                return

    def try_admit(self, request: PlainRequest, before: list[PlainRequest]) -> bool:
        """True: the pass goes on. `before` is what the running pass scheduled."""
        hit = self.look_up(request)
        cached = len(hit) * self.config.block_size
        n = request.num_tokens - cached
        room = min(self.tokens_left, self.input_left - self.config.draft_slots)
        padding = self.padding(request, hit, before) if n == 1 else 0
        if padding and n + padding > room:
            return False
        n = int(min(n + padding, self.chunk_limit()))
        if n > room and not self.config.enable_chunked_prefill:
            if self.running or n <= self.largest_chunk():
                return False
            self.waiting.remove(request)
            self.end(request, "refused")  # it outgrew every step it could ever get
            return True
        n = min(n, room)
        if not self.running:
            n = min(n, self.config.num_blocks * self.config.block_size - cached)
        if not self.fits(request.num_tokens, hit, n):
            return False
        self.waiting.remove(request)
        self.running.append(request)
        for block in hit:
            if block is not None:
                self.pool.share(block)
        request.blocks, request.computed = [*hit], cached
        request.num_filled = len(hit)
        request.drafts = [PLACEHOLDER] * padding
        assert self.grow(request, n), "checked by fits"
        self.admitted[request.id] = cached
        self.plan(request, n)
        return True

    def look_up(self, request: PlainRequest) -> list[int | None]:
        """The cached blocks it can use, None where the window needs none; one token is always left to compute."""
        if not self.caching:
            return []
        keys = self.pool.keys((request.prompt + request.outputs)[:-1], self.config.block_size)
        found = [self.pool.find(key) for key in keys]
        from_start = found.index(None) if None in found else len(found)
        if self.config.sliding_window is None:
            return found[:from_start]
        run = self.blocks_for(self.config.sliding_window - 1)
        if run == 0:
            return []  # a token that attends to itself alone needs nothing
        for end in range(len(found), run - 1, -1):
            if None not in found[end - run : end]:
                return [None] * (end - run) + found[end - run : end]
        return found[:from_start]

    def padding(self, request: PlainRequest, hit: list[int | None], before: list[PlainRequest]) -> int:
        """Placeholder drafts of an admission with one token to compute, so that a decode batch stays uniform."""
        cached = len(hit) * self.config.block_size
        if self.k == 0 or cached + 1 + self.k + 1 > self.config.max_model_len:
            return 0
        if any(running.mid_prompt for running in before) or not (before or cached):
            return 0
        if self.chunk_limit() < 1 + self.k:
            return 0
        possible = 1 + self.k <= self.largest_chunk() and self.fits(request.num_tokens, hit, 1 + self.k)
        if not self.running and not possible:
            return 0  # drafts never make a request impossible
        return self.k

    def fits(self, num_tokens: int, hit: list[int | None], n: int) -> bool:
        """The admission checks: this chunk, and the whole sequence, each with the watermark on top."""
        longest = self.config.max_model_len
        cached = len(hit) * self.config.block_size
        revived = sum(block is not None and self.pool.holders[block] == 0 for block in hit)
        needs = [self.blocks_for(min(cached + n, longest))]
        if self.reserve_full:
            whole, bound = self.blocks_for(min(num_tokens, longest)), self.window_bound()
            needs.append(whole if bound is None else min(whole, bound))
        watermark = int(self.watermark * (self.config.num_blocks + 1)) if self.running else 0
        need = max(max(0, need - len(hit)) + revived for need in needs)
        return need + watermark <= len(self.pool.free)

    # After the model ran

    def run_model(self) -> list[str]:
        finished = []
        for request, n in self.planned:
            num_drafts = self.num_drafts(request, n)
            request.computed += n
            request.mid_prompt = request.computed < request.num_tokens
            drafts, request.drafts = request.drafts[:num_drafts], []
            if request.mid_prompt:
                continue
            accepted = (request.ordinal + len(request.outputs)) % (num_drafts + 1) if DRAFT in drafts else 0
            request.computed -= num_drafts - accepted
            stop = min(len(request.prompt) + request.max_tokens, self.config.max_model_len, self.capacity() + 1)
            for _ in range(accepted + 1):
                if request.num_tokens < stop:
                    token = 32000 + (request.ordinal * 7919 + len(request.outputs) * 104729) % 16000
                    request.outputs.append(token)
            request.drafts = [DRAFT] * self.new_drafts
            if request.num_tokens >= stop:
                self.running.remove(request)
                asked = min(len(request.prompt) + request.max_tokens, self.config.max_model_len)
                self.end(request, "kv_capacity" if stop < asked else "length")
                finished.append(request.id)
        return finished
