"""Shared by the rooms of the scheduler: its limits, its books, and the step being drafted."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from schedtop.engine.contract.config import SchedulerConfig, knob_values
from schedtop.engine.contract.knobs import LIVE, in_force, with_followers
from schedtop.engine.contract.telemetry import Admission, Finish, Head, Limiter, Preemption
from schedtop.engine.handoff.plan import Started, StepPlan
from schedtop.engine.handoff.request import Request
from schedtop.engine.kv.open import open_kv
from schedtop.engine.scheduler.books.images import open_encoder
from schedtop.engine.scheduler.books.queues import WaitingQueue, open_queue
from schedtop.engine.scheduler.books.request_table import IntArray, RequestTable, RowArray

if TYPE_CHECKING:
    from schedtop.engine.scheduler.books.loads import Loads


@dataclass(frozen=True, slots=True)
class Limits:
    """The live limits, each the value in force of the knob that is called so (or is `also` called so)."""

    token_budget: int
    input_budget: int
    seq_cap: int
    long_prefill_token_threshold: int
    reserve_full_isl: bool
    num_speculative_tokens: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        return cls(**{name: in_force(values, _KNOB_OF_LIMIT[name]) for name in cls.__slots__})


_KNOB_OF_LIMIT = {knob.also or knob.name: knob.name for knob in LIVE}


class PlannedStep(msgspec.Struct, eq=False):
    """The step being planned. Rows of the running pass lie in the table; dropping a row there undoes it.

    The budgets are the limits it was planned under. `last_look`: the last request that the waiting pass considered;
    `looked_at_all`: nothing kept it from going on to the end of the queue. `group_growth` divides `new_blocks` over
    several KV groups.
    """

    now_s: float
    token_budget: int = 0
    input_budget: int = 0
    decode_tokens: int = 0
    recomputed_tokens: int = 0
    limiter: Limiter = Limiter.NONE
    preemptions: list[Preemption] = []
    admissions: list[Admission] = []
    started: list[Started] = []
    new_blocks: dict[int, list[int]] = {}
    ended: list[Finish] = []
    head: Head | None = None
    blocks_in_use: int = 0
    last_look: Request | None = None
    looked_at_all: bool = False
    held_back: list[Request] = []
    passed_over: list[Request] = []
    lost: dict[int, Request] = {}
    group_growth: dict[int, tuple[int, ...]] = {}


class PlannedBatch(msgspec.Struct, frozen=True, eq=False):
    """A planned step on its way to its results. It owns its columns: the table's rows move on meanwhile.

    `columns` are its record's rows, one per request that ran when it was planned. `busy` are those that `plan` has,
    `slots` what they were called in the table, whose `layout` says whether they are still where they were.
    """

    plan: StepPlan
    planned: PlannedStep
    columns: IntArray
    busy: slice | RowArray
    slots: IntArray
    layout: int


class SchedulerState:
    """The scheduler's books. `under_way`: steps that were planned and whose results have not been applied yet.

    `overlaps`: there may be more than one.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.knobs = knob_values(config)
        self.limits = Limits.of(self.knobs)
        self.overlaps = config.max_concurrent_batches > 1
        self.kv = open_kv(config)
        self.table = RequestTable(config.async_scheduling, self.kv.block_size if self.kv.one_group else 1)
        self.encoder = open_encoder(config)
        self.shrinks = self.kv.keeps_states or config.prefill_lookahead > 1 or self.encoder is not None
        self.waiting: WaitingQueue = open_queue(config.policy, by_adapter=config.max_loras > 0)
        self.requests: dict[int, Request] = {}
        self.num_finished = 0
        self.num_planned = 0
        self.under_way: deque[PlannedBatch] = deque()
        self.gone: list[int] = []
        self.loads: Loads | None = None

    @property
    def num_unfinished(self) -> int:
        return len(self.requests)

    def is_empty(self, request: Request) -> bool:
        """Nothing runs, and no request except possibly this one holds a block."""
        if self.table.size:
            return False
        return self.loads is None or self.holds_all(request)

    def holds_all(self, request: Request) -> bool:
        """Every used block belongs to this request."""
        own = {block for table in self.kv.tables(request) for block in table} - {-1}
        return len(own) + self.kv.pool.num_free == self.kv.pool.num_blocks

    def chunk_cap(self) -> int | None:
        """Most tokens of one request in one step (the long-prefill threshold); None: no cap."""
        threshold = self.limits.long_prefill_token_threshold
        if not threshold or self.num_unfinished <= 1:
            return None
        if self.config.long_prefill_token_threshold_adaptive:
            return max(threshold, self.limits.input_budget // self.num_unfinished)
        return threshold

    def set_limits(self, values: Mapping[str, Any]) -> None:
        """Apply checked knob values."""
        self.knobs |= with_followers(values)
        self.limits = Limits.of(self.knobs)
        self.kv.set_watermark(self.knobs["watermark"])
        self.kv.caching = self.knobs["enable_prefix_caching"]
