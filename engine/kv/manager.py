"""The KV-cache manager: decides whether a request's state fits, and holds it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.telemetry import Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.kv.block_pool import BlockPool
from schedtop.engine.kv.prefix_cache import extend_keys


class Hit(msgspec.Struct, frozen=True):
    """What the prefix cache gives a request: blocks in order (-1: not needed, before the window).

    `further`: those of the KV groups behind the first. `junction`: tokens of a longer hit that one kind of group had.
    `held`: the request holds the blocks already, from a load. `num_tokens` counts what comes from outside, too.
    """

    blocks: list[int]
    num_tokens: int
    further: list[list[int]] = []
    junction: int = 0
    held: bool = False


NO_HIT = Hit([], 0)

Standing = tuple[int, int, int, int]
"""Of a request's blocks: tokens that it has slots for; computed tokens from which it can give a block back; how many
it has given back; how many it holds."""

FOR_EVER = (1 << 31) - 1


class Shortage(msgspec.Struct, frozen=True):
    """Why a request cannot be admitted: it needs `need` blocks, `have` are free, and `reserve` must stay free."""

    reason: Limiter
    need: int
    have: int
    reserve: int


class KVManager:
    """Block tables of requests over one pool, in one group. `watermark` and `caching` are live knobs.

    Keys are for `stride` tokens each. `block` is the block size as numpy is quickest with. `at_once`: blocks of many
    requests may be taken together, in their order.
    """

    one_group = True
    several = False
    keeps_states = False

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = self.stride = config.block_size
        self.block = np.array(config.block_size, dtype=np.int32)
        self.max_model_len = config.max_model_len
        self.window = config.sliding_window
        self.at_once = self.window is None
        self.pool = BlockPool(config.num_blocks)
        self.caching = config.enable_prefix_caching
        self.watermark_blocks = 0
        self.set_watermark(config.watermark)
        self.window_need_blocks = self._window_need(config)

    def _window_need(self, config: SchedulerConfig) -> int | None:
        """Most blocks one request can hold under a window: the window, the chunks under way, and both edges."""
        if self.window is None:
            return None
        reach = min(
            self.window - 1 + config.max_concurrent_batches * config.max_num_batched_tokens, self.max_model_len
        )
        return blocks_for(reach, self.block_size) + 1

    def set_watermark(self, share: float) -> None:
        # The share is of the pool including the null block that vLLM counts.
        self.watermark_blocks = int(share * (self.pool.num_blocks + 1))

    @property
    def capacity_tokens(self) -> int | None:
        """Most tokens with state that one request can ever have; None if a window bounds its need."""
        if self.window_need_blocks is not None and self.window_need_blocks <= self.pool.num_blocks:
            return None
        return self.pool.num_blocks * self.block_size

    def look_up(self, request: Request, num_tokens: int) -> Hit:
        """The longest cached prefix of a request, at most `num_tokens - 1` tokens."""
        if not self.caching or request.skip_reading_prefix_cache:
            return NO_HIT
        size = self.block_size
        if len(request.block_keys) < num_tokens // size:
            extend_keys(request, num_tokens // size, size)
        keys = request.block_keys[: (num_tokens - 1) // size]
        if self.window is None:
            blocks = self.pool.index.longest_prefix(keys)
        else:
            run = self.pool.index.rightmost_run(keys, blocks_for(self.window - 1, size))
            blocks = [-1 if block is None else block for block in run]
        return Hit(blocks, len(blocks) * size)

    def shortage(
        self, hit: Hit, num_new_tokens: int, num_tokens: int, full: bool, reserve: bool, reserved: int | None = None
    ) -> Shortage | None:
        """What is missing to admit a request of `num_tokens` whose next chunk is `num_new_tokens`; None: it fits.

        `full`: the whole sequence must fit, not just the chunk. `reserve`: the watermark must stay free on top.
        `reserved`: for a load, further blocks that must, beside the chunk.
        """
        pool = self.pool
        held = len(hit.blocks)
        revived = pool.num_free_of(hit.blocks)
        free = pool.num_free
        watermark = self.watermark_blocks if reserve else 0
        chunk = self._total_blocks(hit.num_tokens + num_new_tokens) - held + revived
        if chunk > free:
            return Shortage(Limiter.BLOCKS, chunk, free, watermark)
        if full:
            whole = self._total_blocks(num_tokens)
            if self.window_need_blocks is not None:
                whole = min(whole, self.window_need_blocks)
            whole = max(whole - held, 0) + revived
            if whole > free:
                return Shortage(Limiter.FULL_SEQUENCE, whole, free, watermark)
            chunk = max(chunk, whole)
        if chunk + watermark > free:
            return Shortage(Limiter.WATERMARK, chunk, free, watermark)
        return None

    def admit(self, request: Request, hit: Hit, num_new_tokens: int) -> None:
        """Allocate the hit and the blocks for the next chunk; `shortage` must have found none."""
        if hit.blocks:
            self.pool.share([block for block in hit.blocks if block >= 0])
        count = self._total_blocks(hit.num_tokens + num_new_tokens) - len(hit.blocks)
        blocks = self.pool.take(max(count, 0))
        assert blocks is not None, "admission was checked before"
        request.block_ids = [*hit.blocks, *blocks]
        request.num_registered = len(hit.blocks)
        request.num_released = 0

    def grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """Give a running request slots for `num_tokens` tokens in all.

        Returns the blocks it got (none if it has enough); None, and nothing taken, if too few are free.
        """
        need = -(-num_tokens // self.block_size) - len(request.block_ids)
        if need <= 0:
            return []
        blocks = self.pool.take(need)
        if blocks is not None:
            request.block_ids += blocks
        return blocks

    def release_before_window(self, request: Request, num_computed: int) -> None:
        """Replace blocks that no later token can attend to with -1."""
        if self.window is None:
            return
        end = max(0, num_computed - self.window + 1) // self.block_size
        end = min(end, len(request.block_ids))
        start = request.num_released
        if end <= start:
            return
        dropped = request.block_ids[start:end]
        request.block_ids[start:end] = [-1] * (end - start)
        request.num_released = end
        self.pool.release([block for block in reversed(dropped) if block >= 0])

    def next_full(self, num_tokens: int) -> int:
        """Tokens at which the next block is full, once `num_tokens` are."""
        return (num_tokens // self.block_size + 1) * self.block_size

    def register(self, request: Request, num_tokens: int) -> None:
        """Register the blocks that `num_tokens` tokens fill: they will be full after this step."""
        num_full_blocks = num_tokens // self.block_size
        if not self.caching or num_full_blocks <= request.num_registered:
            return
        if num_full_blocks > len(request.block_keys):
            extend_keys(request, num_full_blocks, self.block_size)
        start, request.num_registered = request.num_registered, num_full_blocks
        self.pool.register(request.block_ids[start:num_full_blocks], request.block_keys[start:num_full_blocks])

    def unregister(self, request: Request, num_tokens: int) -> None:
        """Remove the cache entries beyond `num_tokens` tokens: they will not be computed after all."""
        num_blocks = num_tokens // self.block_size
        for block in request.block_ids[num_blocks : request.num_registered]:
            if block >= 0:
                self.pool.forget(block)
        request.num_registered = min(request.num_registered, num_blocks)

    def free(self, request: Request) -> int:
        """Free all blocks, last first; returns how many became free."""
        count, blocks = request.num_registered, request.block_ids
        keyed, plain = blocks[:count][::-1], blocks[count:][::-1]
        if self.window is not None:
            keyed = [block for block in keyed if block >= 0]
            plain = [block for block in plain if block >= 0]
        freed = self.pool.give_back(keyed, plain)
        request.block_ids = []
        request.num_registered = 0
        request.num_released = 0
        return freed

    def most_tokens(self, hit: Hit, wanted: int) -> int:
        """How many of `wanted` tokens after a hit an empty pool can hold at once."""
        return min(wanted, self.pool.num_blocks * self.block_size - hit.num_tokens)

    def most_growth(self, request: Request, num_computed: int, wanted: int) -> int:
        """How many of `wanted` tokens a request has slots for or can get."""
        slots = (len(request.block_ids) + self.pool.num_free) * self.block_size
        return min(wanted, slots - num_computed)

    def shares_new_state(self, hit: Hit, scheduled: Iterable[tuple[Request, int]]) -> bool:
        """Whether a hit needs a state that a request of this very step still writes; only Mamba has such."""
        return False

    def held_by(self, request: Request, num_computed: int) -> Hit:
        """What a request holds, as a hit of `num_computed` tokens."""
        tables = list(self.tables(request))
        return Hit(tables[0], num_computed, tables[1:], request.junction, held=True)

    def admit_load(self, request: Request, hit: Hit) -> None:
        """Allocate the hit and the blocks for externally loaded tokens."""
        raise NotImplementedError("only the coordinator serves loads")

    def lacking(self, requests: list[Request], more: int) -> int:
        """Blocks still missing for the requests' whole sequences and `more` tokens."""
        raise NotImplementedError("only the coordinator serves loads")

    def forget_blocks(self, request: Request) -> None:
        """Ownership of the request's blocks moves elsewhere."""
        raise NotImplementedError("only the coordinator serves loads")

    def standing(self, request: Request) -> Standing:
        """What the scheduler's table notes of a request's blocks."""
        held, released = len(request.block_ids), request.num_released
        release = FOR_EVER if self.window is None else (released + 1) * self.block_size + self.window - 1
        return held * self.block_size, release, released, held - released

    def needs(self, num_tokens: int) -> int:
        """Most blocks that a request of so many tokens holds at once."""
        return blocks_for(num_tokens, self.block_size)

    def last_growth(self) -> tuple[int, ...]:
        """Of the blocks that `grow` returned last, how many each group got; only several groups are told apart."""
        raise NotImplementedError("only the coordinator has groups")

    @property
    def group_blocks(self) -> tuple[int, ...]:
        """Blocks in the tables of each KV group, a shared one counted by each holder; none of a single group."""
        return ()

    def stored_tokens(self, num_computed: int, num_released: int) -> int:
        """Tokens stored in the blocks of running requests, given their computed tokens and released blocks."""
        return num_computed - (self.pool.num_extra_refs + num_released) * self.block_size

    def key_of(self, request: Request, group: int, place: int) -> bytes | None:
        """The key of a block of the request's table in a group; None where its tokens are not known yet."""
        return request.block_keys[place] if place < len(request.block_keys) else None

    def learn_key(self, request: Request, group: int, place: int, key: bytes) -> None:
        """Adopt the content of a block whose tokens only the model knew."""
        request.block_keys[place] = key

    def tables(self, request: Request) -> Iterable[list[int]]:
        """Its block tables, one per group."""
        return (request.block_ids,)

    def _total_blocks(self, num_tokens: int) -> int:
        return blocks_for(min(num_tokens, self.max_model_len), self.block_size)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)
