"""The coordinator of several KV groups over one pool, and of one group with a policy of its own.

Every need is the sum over the groups, which allocate, release and free in order. The manager of one plain group
(`manager.py`) does the same for many requests at once; this one serves them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.kv_groups import KVGroup, common_size, hash_size
from schedtop.engine.contract.telemetry import Limiter
from schedtop.engine.handoff.request import GroupBlocks, Request
from schedtop.engine.kv.groups import Group, Holding, StateGroup, WholeStateGroup, WindowGroup, fresh_need
from schedtop.engine.kv.hybrid_look_up import LookUpKind, look_up_kinds
from schedtop.engine.kv.manager import NO_HIT, Hit, KVManager, Shortage, Standing
from schedtop.engine.kv.prefix_cache import extend_keys
from schedtop.engine.kv.retention import KEEP_ALL, Keeper, Retention, keeper


class KVCoordinator(KVManager):
    """Block tables of requests in several groups: a request's own fields hold the first, `further` the others."""

    one_group = False

    def __init__(self, config: SchedulerConfig, specs: tuple[KVGroup, ...]) -> None:
        super().__init__(config)
        self.at_once = False
        self.specs = specs
        drafts = config.num_speculative_tokens
        self.groups = [open_group(spec, config.max_model_len, drafts) for spec in specs]
        self.keeps_states = any(spec.mamba == "align" for spec in specs)
        self.keeps_nothing = any(spec.mamba == "none" for spec in specs)
        self.stride = hash_size(specs)
        self.several = len(specs) > 1
        self.drop = config.drop_last_cached_block
        self.lookahead = config.num_lookahead_tokens
        self.held_back = max(config.prefill_lookahead - 1, 0)
        self.common = common_size(specs)
        align = self.common if self.several else self.groups[0].size
        self.retention = Retention(config.prefix_cache_retention_interval, align, self.common, self.drop)
        self.first_budget = config.max_concurrent_batches * config.max_num_batched_tokens
        self.caps = [group.cap(self.first_budget) for group in self.groups]
        self.kinds = _kinds(specs, self.groups)
        self.capacity = self._find_capacity()
        self._held = [0] * len(specs)
        self._released = [0] * len(specs)
        self._growth: tuple[int, ...] = ()

    def _find_capacity(self) -> int | None:
        """By bisection: the need only grows with the tokens."""
        if self._most_held(self.max_model_len) <= self.pool.num_blocks:
            return None
        fits, too_many = 0, self.max_model_len
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self._most_held(middle) <= self.pool.num_blocks:
                fits = middle
            else:
                too_many = middle
        return fits

    def _most_held(self, num_tokens: int) -> int:
        ahead = min(num_tokens + self.lookahead, self.max_model_len)
        return sum(group.most_held(num_tokens, ahead, self.first_budget) for group in self.groups)

    @property
    def capacity_tokens(self) -> int | None:
        return self.capacity

    # Look-up

    def look_up(self, request: Request, num_tokens: int) -> Hit:
        if not self.caching or self.keeps_nothing or request.skip_reading_prefix_cache:
            return NO_HIT
        stride = self.stride
        if len(request.block_keys) < num_tokens // stride:
            extend_keys(request, num_tokens // stride, stride)

        def find_in(place: int, block: int) -> int | None:
            return self.pool.index.find(self._key(request, place, block))

        most = num_tokens - 1
        if self.several:
            length, longest = look_up_kinds(self.kinds, find_in, most, self.common, self.drop)
        else:
            length = longest = self.kinds[0].look_up(find_in, most, self.groups[0].size, self.drop)
        tables: list[list[int]] = [[] for _ in self.groups]
        for kind in self.kinds:
            rows = (kind.rows or [])[: length // kind.group.size]
            for nth, place in enumerate(kind.places):
                tables[place] = [-1 if row is None else row[nth] for row in rows]
        return Hit(tables[0], length, tables[1:], longest if longest > length else 0)

    def _key(self, request: Request, place: int, block: int) -> bytes:
        """A group's block has the key of the tokens up to its end, and the group's place."""
        key = request.block_keys[(block + 1) * self.groups[place].size // self.stride - 1]
        return key + place.to_bytes(1) if place else key

    # Needs

    def shortage(
        self, hit: Hit, num_new_tokens: int, num_tokens: int, full: bool, reserve: bool, reserved: int | None = None
    ) -> Shortage | None:
        free = self.pool.num_free
        watermark = self.watermark_blocks if reserve else 0
        tables = [hit.blocks, *(hit.further or [[]] * (len(self.groups) - 1))]
        revived = sum(self._num_revived(group, table, hit.num_tokens) for group, table in self._pair(tables))
        lookahead = self.lookahead if reserved is None else 0
        chunk = revived + self._fresh_need(tables, hit.num_tokens, hit.num_tokens + num_new_tokens, lookahead)
        if chunk > free:
            return Shortage(Limiter.BLOCKS, chunk, free, watermark)
        if reserved and chunk + watermark + reserved > free:
            return Shortage(Limiter.RESERVED, chunk, free, watermark + reserved)
        if full:
            whole = revived + self._fresh_need(tables, hit.num_tokens, num_tokens, 0, capped=True)
            if whole > free:
                return Shortage(Limiter.FULL_SEQUENCE, whole, free, watermark)
            chunk = max(chunk, whole)
        if chunk + watermark > free:
            return Shortage(Limiter.WATERMARK, chunk, free, watermark)
        return None

    def _pair(self, tables: list[list[int]]) -> Iterator[tuple[Group, list[int]]]:
        return zip(self.groups, tables, strict=True)

    def _num_revived(self, group: Group, table: list[int], num_computed: int) -> int:
        return self.pool.num_free_of(table[group.num_skipped(num_computed) :])

    def _fresh_need(
        self, tables: list[list[int]], num_computed: int, num_tokens: int, lookahead: int, capped: bool = False
    ) -> int:
        """New blocks for an admission that holds the hit `tables`."""
        main, ahead = min(num_tokens, self.max_model_len), min(num_tokens + lookahead, self.max_model_len)
        return fresh_need(self.groups, map(len, tables), num_computed, main, ahead, self.caps if capped else None)

    def _missing(self, request: Request, num_tokens: int) -> int:
        """New blocks with which a running request can hold `num_tokens`."""
        main, ahead = self._asked(num_tokens)
        return sum(
            group.num_new(len(holding.block_ids), group.required(main, ahead), fresh=False)
            for group, holding in self._holdings(request)
        )

    def _asked(self, num_tokens: int) -> tuple[int, int]:
        longest = self.max_model_len
        return min(num_tokens, longest), min(num_tokens + self.lookahead, longest)

    def _holdings(self, request: Request) -> Iterator[tuple[Group, Holding]]:
        yield self.groups[0], request
        yield from zip(self.groups[1:], request.further, strict=False)

    def most_tokens(self, hit: Hit, wanted: int) -> int:
        """Of `wanted` tokens, at least one, how many an empty pool can hold at once."""
        fits = self._most_fitting(
            wanted, lambda count: self.shortage(hit, count, hit.num_tokens + 1, full=False, reserve=False) is None
        )
        return max(fits, 1)

    def _most_fitting(self, wanted: int, fits: Callable[[int], bool]) -> int:
        if fits(wanted):
            return wanted
        least, too_many = 0, wanted
        while too_many - least > 1:
            middle = (least + too_many) // 2
            if fits(middle):
                least = middle
            else:
                too_many = middle
        return least

    def most_growth(self, request: Request, num_computed: int, wanted: int) -> int:
        free = self.pool.num_free
        return self._most_fitting(wanted, lambda count: self._missing(request, num_computed + count) <= free)

    # Changes

    def admit(self, request: Request, hit: Hit, num_new_tokens: int) -> None:
        self._admit(request, hit, *self._asked(hit.num_tokens + num_new_tokens))

    def admit_load(self, request: Request, hit: Hit) -> None:
        self._admit(request, hit, hit.num_tokens, hit.num_tokens)

    def lacking(self, requests: list[Request], more: int) -> int:
        total = 0
        for request in requests:
            want = request.num_tokens, request.num_tokens + more
            holdings = list(self._holdings(request)) if request.further or not self.several else []
            held = [len(holding.block_ids) for _, holding in holdings] or [0] * len(self.groups)
            for place, group in enumerate(self.groups):
                total += max(min(group.required(*want), self.caps[place]) - held[place], 0)
        if more and requests:
            total += sum(-(-more // group.size) for group in self.groups if not isinstance(group, WholeStateGroup))
        return total

    def forget_blocks(self, request: Request) -> None:
        self._count_out(request)
        request.block_ids, request.further = [], []
        request.num_registered = request.num_released = request.junction = 0

    def _admit(self, request: Request, hit: Hit, main: int, ahead: int) -> None:
        request.junction = hit.junction
        request.further = [GroupBlocks() for _ in self.groups[1:]]
        tables = [hit.blocks, *(hit.further or [[]] * (len(self.groups) - 1))]
        for (group, holding), table in zip(self._holdings(request), tables, strict=True):
            skipped = group.num_skipped(hit.num_tokens)
            found = [block if place >= skipped else -1 for place, block in enumerate(table)]
            found += [-1] * (skipped - len(found))
            self.pool.share(block for block in found if block >= 0)
            holding.block_ids = found
            holding.num_registered = len(table)
            holding.num_released = min(skipped, len(found))
        for place, (group, holding) in enumerate(self._holdings(request)):
            group.extend(holding.block_ids, group.required(main, ahead), True, self.pool)
            self._held[place] += _num_held(holding)
            self._released[place] += holding.num_released

    def grow(self, request: Request, num_tokens: int) -> list[int] | None:
        if self._missing(request, num_tokens) > self.pool.num_free:
            return None
        main, ahead = self._asked(num_tokens)
        blocks: list[int] = []
        growth = [0] * len(self.groups)
        for place, (group, holding) in enumerate(self._holdings(request)):
            required = group.required(main, ahead)
            if required > len(holding.block_ids):
                got = group.extend(holding.block_ids, required, False, self.pool)
                growth[place] = len(got)
                self._held[place] += len(got)
                blocks += got
        self._growth = tuple(growth)
        return blocks

    def release_before_window(self, request: Request, num_computed: int) -> None:
        for place, (group, holding) in enumerate(self._holdings(request)):
            end = min(group.num_skipped(num_computed), len(holding.block_ids))
            start = holding.num_released
            if end <= start:
                continue
            dropped = [block for block in reversed(holding.block_ids[start:end]) if block >= 0]
            holding.block_ids[start:end] = [-1] * (end - start)
            holding.num_released = end
            self._held[place] -= len(dropped)
            self._released[place] += end - start
            self.pool.release(dropped)

    def next_full(self, num_tokens: int) -> int:
        known = max(num_tokens - self.held_back, 0)
        return (known // self.stride + 1) * self.stride + self.held_back

    def register(self, request: Request, num_tokens: int) -> None:
        if not self.caching or self.keeps_nothing:
            return
        known = max(num_tokens - self.held_back, 0)
        for place, (group, holding) in enumerate(self._holdings(request)):
            num_full = self._registered_tokens(group, known) // group.size
            start = holding.num_registered
            if num_full <= start:
                continue
            extend_keys(request, num_full * group.size // self.stride, self.stride)
            holding.num_registered = num_full
            kept = self._keeper(group, request)
            for block in range(start, num_full):
                if holding.block_ids[block] >= 0 and kept.keeps(block):
                    self.pool.register([holding.block_ids[block]], [self._key(request, place, block)])

    def _registered_tokens(self, group: Group, known: int) -> int:
        if not self.several:
            return known
        rounded = known // self.common * self.common
        return min(known, rounded + group.size) if self.drop and rounded else rounded

    def _keeper(self, group: Group, request: Request) -> Keeper:
        states = isinstance(group, WholeStateGroup)
        if group.looks_once or (states and self.retention.interval is None):
            return KEEP_ALL
        length, shift = (1, 0) if states else (group.run_length(self.drop), int(self.drop))
        prompt = request.num_prompt_tokens
        return keeper(self.retention, group.size, length, shift, prompt, request.junction)

    def unregister(self, request: Request, num_tokens: int) -> None:
        for group, holding in self._holdings(request):
            first = num_tokens // group.size
            for block in holding.block_ids[first : holding.num_registered]:
                if block >= 0:
                    self.pool.forget(block)
            holding.num_registered = min(holding.num_registered, first)

    def free(self, request: Request) -> int:
        freed = 0
        self._count_out(request)
        for _, holding in self._holdings(request) if request.block_ids or request.further else ():
            freed += self.pool.release([block for block in reversed(holding.block_ids) if block >= 0])
            holding.block_ids = []
            holding.num_registered = holding.num_released = 0
        request.further = []
        request.junction = 0
        return freed

    def _count_out(self, request: Request) -> None:
        for place, (_, holding) in enumerate(self._holdings(request)):
            self._held[place] -= _num_held(holding)
            self._released[place] -= holding.num_released

    # What is told of it

    def needs(self, num_tokens: int) -> int:
        return self._most_held(num_tokens)

    def last_growth(self) -> tuple[int, ...]:
        return self._growth

    @property
    def group_blocks(self) -> tuple[int, ...]:
        return tuple(self._held) if self.several else ()

    def stored_tokens(self, num_computed: int, num_released: int) -> int:
        stored = -self.pool.num_extra_refs * self.groups[0].size
        for group, held, released in zip(self.groups, self._held, self._released, strict=True):
            # A state fills its block, whatever length it stands for.
            filled = held * min(group.size, self.block_size)
            stored += filled if group.is_state else num_computed - released * group.size
        return max(stored, 0)

    def key_of(self, request: Request, group: int, place: int) -> bytes | None:
        known = (place + 1) * self.groups[group].size <= len(request.block_keys) * self.stride
        return self._key(request, group, place) if known else None

    def learn_key(self, request: Request, group: int, place: int, key: bytes) -> None:
        own = key[:-1] if group else key
        request.block_keys[(place + 1) * self.groups[group].size // self.stride - 1] = own

    # What the scheduler's table notes

    def standing(self, request: Request) -> Standing:
        room = release = (1 << 31) - 1
        released = held = 0
        for group, holding in self._holdings(request):
            room = min(room, group.room(holding, self.lookahead))
            release = min(release, group.next_release(holding))
            released += holding.num_released
            held += _num_held(holding)
        return room, release, released, held

    def tables(self, request: Request) -> Iterable[list[int]]:
        return [request.block_ids, *(holding.block_ids for holding in request.further)]

    def shares_new_state(self, hit: Hit, scheduled: Iterable[tuple[Request, int]]) -> bool:
        """Whether a hit's last Mamba state is the last full block of a request in `scheduled` (with its tokens)."""
        tables = [hit.blocks, *hit.further]
        wanted = {
            (place, table[-1])
            for place, (group, table) in enumerate(zip(self.groups, tables, strict=False))
            if table and isinstance(group, StateGroup)
        }
        if not wanted:
            return False
        for request, num_tokens in scheduled:
            for place, (group, holding) in enumerate(self._holdings(request)):
                last = self._registered_tokens(group, num_tokens - self.held_back) // group.size - 1
                if 0 <= last < len(holding.block_ids) and (place, holding.block_ids[last]) in wanted:
                    return True
        return False


def _num_held(holding: Holding) -> int:
    return len(holding.block_ids) - holding.block_ids.count(-1)


def open_group(spec: KVGroup, max_model_len: int, num_drafts: int) -> Group:
    """What such a group needs, keeps and finds; its block size has been read."""
    if spec.full:
        return Group(spec, max_model_len)
    if spec.window is not None:
        return WindowGroup(spec, max_model_len)
    if spec.mamba == "align":
        return StateGroup(spec, max_model_len, num_drafts)
    return WholeStateGroup(spec, max_model_len, num_drafts)


def _kinds(specs: tuple[KVGroup, ...], groups: list[Group]) -> list[LookUpKind]:
    """Equal groups together, full attention first."""
    places: dict[KVGroup, list[int]] = {}
    for place, spec in enumerate(specs):
        places.setdefault(spec, []).append(place)
    return sorted(
        [LookUpKind(groups[same[0]], same) for same in places.values()], key=lambda kind: not kind.group.looks_once
    )
