"""The KV cache of the plain scheduler: several groups over one pool, and the rules they share."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any

from tests.engine.scheduler.plain.groups import Group, Retention, read_groups
from tests.engine.scheduler.plain.pool import PlainPool, Table
from tests.engine.scheduler.plain.request import PlainRequest


class PlainKV:
    def __init__(self, config: dict[str, Any], depth: int) -> None:
        self.config, self.depth = config, depth
        self.pool = PlainPool(config["num_blocks"])
        self.groups = read_groups(config)
        sizes = [group.size for group in self.groups if group.kind != "none"]
        self.lcm = lcm(*(group.size for group in self.groups))
        self.hash_size = gcd(*sizes) if len(sizes) == len(self.groups) else self.lcm
        self.several = len(self.groups) > 1
        self.drop = bool(config.get("drop_last_cached_block"))
        self.lookahead = config.get("num_lookahead_tokens") or 0
        self.prefill_lookahead = config.get("prefill_lookahead") or 0
        self.longest = config["max_model_len"]
        self.caching = bool(config.get("enable_prefix_caching", True))
        align = self.lcm if self.several else self.groups[0].size
        self.retention = Retention(config.get("prefix_cache_retention_interval"), align, self.drop)
        self.keeps_nothing = any(group.kind == "none" for group in self.groups)
        self._names: dict[Any, int] = {}
        self.capacity = self.find_capacity()

    # Keys

    def chains(self, request: PlainRequest, count: int) -> list[int]:
        """A number per `hash_size` tokens: equal exactly where all before, and what else a key takes, is equal."""
        size, tokens = self.hash_size, request.tokens
        while len(request.chains) < count:
            start = len(request.chains) * size
            extra: list[Any] = [("lora", request.lora)] if request.lora else []
            if start == 0 and request.spec.get("cache_salt"):
                extra.append(request.spec["cache_salt"])
            extra += [
                (image.name, image.offset - start)
                for image in request.images
                if image.offset < start + size and image.offset + image.length > start
            ]
            before = request.chains[-1] if request.chains else 0
            link = (before, tuple(tokens[start : start + size]), tuple(extra))
            request.chains.append(self._names.setdefault(link, len(self._names) + 1))
        return request.chains

    def key(self, request: PlainRequest, place: int, index: int) -> tuple[int, int]:
        last = (index + 1) * self.groups[place].size // self.hash_size
        return (place, self.chains(request, last)[last - 1])

    # Look-up

    def look_up(self, request: PlainRequest) -> tuple[list[Table], int]:
        """The cached blocks of every group and the junction; at least one token is left to compute."""
        nothing: list[Table] = [[] for _ in self.groups]
        if not self.caching or self.keeps_nothing or request.spec.get("skip_reading_prefix_cache"):
            return nothing, 0
        most = request.num_tokens - 1
        kinds: dict[Group, list[int]] = {}
        for place, group in enumerate(self.groups):
            kinds.setdefault(group, []).append(place)
        order = sorted(kinds, key=lambda kind: kind.kind != "full")
        single_pass = not self.several or (
            len(order) == 2 and [kind.kind == "full" for kind in order] == [True, False]
        )
        hits: dict[Group, list[Table]] = {}
        verified: set[Group] = set()
        candidate, longest = most, 0
        while True:
            length = candidate
            for kind in order:
                if kind.kind == "full" and kind in hits:
                    length = length // kind.size * kind.size
                    continue
                drop = self.drop and kind not in verified
                bound = min(length + kind.size, most) if drop and self.several else length
                hits[kind] = self._kind_hit(request, kind, kinds[kind], bound // kind.size, drop)
                found = len(hits[kind][0]) * kind.size
                if drop:
                    verified.add(kind)
                elif found < length:
                    verified = set()
                length = found
                longest = max(longest, length)
            done = length >= candidate
            candidate = length
            if done or single_pass:
                break
        tables = nothing
        for kind, places in kinds.items():
            for place, hit in zip(places, hits[kind], strict=True):
                tables[place] = hit[: candidate // kind.size]
        return tables, longest if longest > candidate else 0

    def _kind_hit(
        self, request: PlainRequest, kind: Group, places: list[int], count: int, drop: bool
    ) -> list[Table]:
        """The longest hit of equal groups within `count` blocks: a block must be cached in all of them."""
        found: list[list[int]] = []
        for index in range(count):
            blocks = [self.pool.find(self.key(request, place, index)) for place in places]
            found.append([block for block in blocks if block is not None])
        whole: Table = [index if len(blocks) == len(places) else None for index, blocks in enumerate(found)]
        hit = kind.longest_hit(whole, self.lcm if self.several else kind.size, drop)
        return [[None if index is None else found[index][nth] for index in hit] for nth in range(len(places))]

    # Needs

    def cap(self, group: Group) -> float:
        """Most blocks that the full-sequence check asks for in a group."""
        if group.kind != "window":
            return float("inf")
        reach = group.window - 1 + self.depth * self.config["max_num_batched_tokens"]
        return group.blocks_for(min(reach, self.longest)) + 1

    def need(
        self, request: PlainRequest, hit: list[Table], start: int, tokens: int, lookahead: int, capped: bool
    ) -> int:
        """Blocks that must be free so that a request with `start` tokens computed can hold `tokens`."""
        total = 0
        for group, table, found in zip(self.groups, request.tables, hit, strict=True):
            main = min(tokens, self.longest)
            required: float = group.required(main, min(tokens + lookahead, self.longest))
            if capped:
                required = min(required, self.cap(group))
            skipped = 0 if table else group.num_skipped(start)
            held = len(table) + len(found)
            new = max(0, int(required) - max(held, min(skipped, int(required))))
            if group.kind == "align" and new:
                new = 1 if table else min(new, 1 + group.k)
            revived = sum(block is not None and not self.pool.holders[block] for block in found[skipped:])
            total += new + revived
        return total

    # Changes

    def release_skipped(self, request: PlainRequest) -> None:
        for group, table in zip(self.groups, request.tables, strict=True):
            end = min(group.num_skipped(request.computed - request.under_way), len(table))
            dropped = table[:end]
            table[:end] = [None] * end
            self.pool.give_back(dropped[::-1])

    def take_hit(self, request: PlainRequest, hit: list[Table], start: int) -> None:
        """Hold the hit of every group; what lies wholly before the window of `start` tokens is null."""
        for place, (group, found) in enumerate(zip(self.groups, hit, strict=True)):
            skipped = group.num_skipped(start)
            table: Table = [None if index < skipped else block for index, block in enumerate(found)]
            if group.kind == "window":
                table += [None] * (skipped - len(table))
            for block in table:
                if block is not None:
                    self.pool.share(block)
            request.tables[place] = table
            request.num_filled[place] = len(found)

    def take_new(self, request: PlainRequest, tokens: int, lookahead: int, fresh: bool) -> None:
        for group, table in zip(self.groups, request.tables, strict=True):
            main, ahead = min(tokens, self.longest), min(tokens + lookahead, self.longest)
            required = group.required(main, ahead)
            if required <= len(table):
                continue
            if group.kind == "align":
                self._jump(group, table, required, 0 if fresh else group.k)
            table += self.pool.take(required - len(table))

    def _jump(self, group: Group, table: Table, required: int, num_drafts: int) -> None:
        """Mamba: the last 1 + k places are the state and the draft blocks; draft blocks left behind move on."""
        first = required - 1 - group.k
        drafts = range(len(table) - num_drafts, len(table))
        moved = [table[place] for place in drafts if place < first]
        for place in drafts:
            if place < first:
                table[place] = None
        table += [None] * (first - len(table))
        table += moved

    def register(self, request: PlainRequest, tokens: int) -> None:
        """Blocks filled by `tokens` tokens get their cache entries."""
        if not self.caching or self.keeps_nothing:
            return
        for place, (group, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            num_full = self.registered(group, tokens) // group.size
            if num_full <= request.num_filled[place]:
                continue
            start, request.num_filled[place] = request.num_filled[place], num_full
            for index in range(start, num_full):
                block = table[index]
                if block is None or block in self.pool.key_of:
                    continue
                prompt, junction = len(request.prompt), request.junction
                if self.retention.keeps(group, index, prompt, self.lcm, junction):
                    self.pool.register(block, self.key(request, place, index))

    def registered(self, group: Group, tokens: int) -> int:
        """Of `tokens` tokens, how many are registered: a drafter that reads ahead computes the last again."""
        tokens = max(0, tokens - max(0, self.prefill_lookahead - 1))
        if not self.several:
            return tokens
        rounded = tokens // self.lcm * self.lcm
        return min(tokens, rounded + group.size) if self.drop and rounded else rounded

    def free(self, request: PlainRequest) -> None:
        for table in request.tables:
            self.pool.give_back(table[::-1])
        request.forget_blocks()

    def find_capacity(self) -> float:
        """Most tokens with state one request can have; endless where even the longest sequence fits."""
        for tokens in range(self.longest, -1, -1):
            total = 0.0
            for group in self.groups:
                required: float = group.required(tokens, min(tokens + self.lookahead, self.longest))
                if group.kind == "align":  # the newest state, and the one being written
                    required = min(group.blocks_for(tokens), 2) + group.k
                total += min(required, self.cap(group))
            if total <= self.config["num_blocks"]:
                return tokens if tokens < self.longest else float("inf")
        return 0
