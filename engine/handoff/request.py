"""A request: what was asked for, and its progress."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.telemetry import Limiter

TokenIds = npt.NDArray[np.int32]


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Image:
    """`length` tokens of a prompt from `offset` on; the same name is the same image, also of other requests."""

    offset: int
    length: int
    name: str

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(slots=True)
class GroupBlocks:
    """What a request holds in a KV group after the first; its own fields are for the first."""

    block_ids: list[int] = field(default_factory=list)
    num_registered: int = 0
    num_released: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One request. While it runs, its counters live in the scheduler's table; at rest they are here.

    `prompt_token_ids` is int32; equal prompts share state only where `adapter` (0: none) and `cache_salt` are equal,
    too, and never with `skip_reading_prefix_cache`; `adapter_name` is what the workload calls the adapter;
    `parent` is what the requests that answer one question have in common;
    `stop_token_ids` end it when sampled; times are seconds on the
    engine's clock. `block_ids` is its block table (-1: no longer needed) in the first KV group, `further` are those
    of the other groups. `block_keys` are the keys of its full blocks, whose tokens `key_hasher` has seen; the first
    `num_registered` are in the prefix cache. `junction`: tokens of a longer hit that one group had. `high_water`:
    most tokens it ever had computed. `deferred`: why it is not ready; None if it is. `place`: its order in a queue
    that serves first come first. `num_late`: steps under way that computed it before a preemption. `local_tokens`: what
    the pool had of it when its load began. `gaps_s`: one
    float per output, NaN where it was not a delivery of its own.
    """

    id: str
    prompt_token_ids: TokenIds
    max_tokens: int
    arrival_s: float = 0.0
    priority: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    sampling: SamplingParams | None = None
    client_wait_s: float | None = None
    preview: str = ""
    client: str = ""
    skip_reading_prefix_cache: bool = False
    cache_salt: str | None = None
    adapter: int = 0
    adapter_name: str = ""
    parent: str = ""
    images: tuple[Image, ...] = ()

    number: int = -1
    status: Status = Status.WAITING
    deferred: Limiter | None = None
    place: int = 0
    num_late: int = 0
    output_token_ids: array[int] = field(default_factory=lambda: array("i"))
    block_ids: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    key_hasher: Any = field(default_factory=sha256)
    num_registered: int = 0
    num_released: int = 0
    further: list[GroupBlocks] = field(default_factory=list)
    junction: int = 0
    num_preemptions: int = 0
    loop_length: int = 0
    finished_before: int = -1
    high_water: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    local_tokens: int = 0
    gaps_s: array[float] = field(default_factory=lambda: array("f"))
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    queued_since_s: float = 0.0
    requeued_s: float = 0.0

    def __post_init__(self) -> None:
        if self.adapter or self.cache_salt:
            # Keys are chained from the start, so every key covers the beginning.
            self.key_hasher.update(repr((self.adapter, self.cache_salt)).encode())

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and outputs so far, as of the request's last visit to rest (the table is ahead while it runs)."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def sequence(self) -> TokenIds:
        """Prompt and outputs so far as one int32 array (the prompt itself while there are no outputs)."""
        if not self.output_token_ids:
            return self.prompt_token_ids
        return np.concatenate([self.prompt_token_ids, np.frombuffer(self.output_token_ids, dtype=np.int32)])

    def token_bytes(self, start: int, end: int) -> bytes:
        """Tokens `start` to `end` (exclusive) as int32 bytes."""
        prompt = len(self.prompt_token_ids)
        if start >= prompt:
            return self.output_token_ids[start - prompt : end - prompt].tobytes()
        head = self.prompt_token_ids[start:end].tobytes()
        return head if end <= prompt else head + self.output_token_ids[: end - prompt].tobytes()
