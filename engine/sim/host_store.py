"""The host tier: a second tier of KV state in host memory, at the speed of its link.

A request that ends leaves its full blocks there, once they are copied; until then it keeps them. A later one loads
what the pool has evicted, while it waits and others run. A preempted request may have its state put here and back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from schedtop.engine.contract.config import ConfigError, KVConnector, SchedulerConfig
from schedtop.engine.contract.prefixes.paths import PATH_KEY_BYTES, next_path
from schedtop.engine.contract.telemetry import HostLoad, HostTier
from schedtop.engine.handoff.request import Request
from schedtop.engine.handoff.store import Load

LATENCY_S = 50e-6
"""Overhead of a copy: submitting it and noticing its end."""


class HostLink(NamedTuple):
    """Bytes of a KV block on all GPUs together, and how many go to or from the host per second."""

    block_bytes: int
    bytes_per_s: float


class Copy(NamedTuple):
    """One under way: when it is done, whose it is, the blocks it brings by name with their path keys; a load's end."""

    due_s: float
    request: Request
    keys: dict[bytes, bytes]
    load: Load | None = None


class HostStore:
    """A store of `num_blocks` blocks; of those that nobody waits for, the longest unused go first.

    Copies of a direction follow one another. `failure_rate` of the loads lose their blocks from a random one on, by
    `seed`. Swapping out takes its time at once (`take_delay_s`): the blocks are needed by another.
    """

    waits = True
    consumes = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        link: HostLink,
        clock: Callable[[], float],
        *,
        fails_requests: bool = False,
        failure_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.link = link
        self.fails_requests = fails_requests
        self.failure_rate = failure_rate
        self._clock = clock
        self._seed = seed
        self._num_loads = 0
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._swapped: dict[int, int] = {}
        self._swapped_blocks = 0
        self._loads: list[Copy] = []
        self._sends: list[Copy] = []
        self._free_s = {"in": 0.0, "out": 0.0}
        self._delay_s = 0.0

    # What is reported of it

    @property
    def used_blocks(self) -> int:
        return len(self._blocks) + self._swapped_blocks

    @property
    def standing(self) -> tuple[int, int, int, int]:
        """Blocks used, and all; loads and sends under way."""
        return self.used_blocks, self.num_blocks, len(self._loads), len(self._sends)

    def next_event_s(self) -> float | None:
        """When the next copy finishes; None if none is under way."""
        return min((copy.due_s for copy in (*self._loads, *self._sends)), default=None)

    def is_due(self) -> bool:
        due_s = self.next_event_s()
        return due_s is not None and due_s <= self._clock()

    def describe(self, holding: list[HostLoad]) -> HostTier:
        """For a snapshot; `holding` are the requests before the queue. Blocks on their way count as held."""
        due = {copy.request.number: copy for copy in self._loads}
        loads = [load if (copy := due.get(load.number)) is None else _on_its_way(load, copy) for load in holding]
        arriving = [path for copy in self._sends for path in reversed(copy.keys.values())]
        return HostTier(
            keys=b"".join([*self._blocks.values(), *arriving]),
            swapped=dict(self._swapped),
            loads=tuple(loads),
            free_s=(self._free_s["in"], self._free_s["out"]),
            num_loads=self._num_loads,
        )

    def go_by(self, clock: Callable[[], float]) -> None:
        """Copies end by this clock."""
        self._clock = clock

    def take_over(self, tier: HostTier) -> None:
        """Hold what a snapshot lists: recorded blocks have their path keys as names."""
        self._num_loads = tier.num_loads
        self._free_s = dict(zip(("in", "out"), tier.free_s, strict=True))
        self._swapped = dict(tier.swapped)
        self._swapped_blocks = sum(-(-tokens // self.block_size) for tokens in tier.swapped.values())
        paths = [tier.keys[at : at + PATH_KEY_BYTES] for at in range(0, len(tier.keys), PATH_KEY_BYTES)]
        self._blocks = OrderedDict((path, path) for path in paths)
        self._make_room(0)

    def go_on_loading(self, request: Request, load: HostLoad) -> None:
        """Restore a snapshot's load under way."""
        assert load.due_s is not None, "a load that has ended is not under way"
        self._loads.append(Copy(load.due_s, request, {}, Load(request, load.first_lost)))

    # Loads

    def tokens(self, request: Request, local: int) -> int | None:
        if request.number in self._swapped:
            return max(self._swapped[request.number] - local, 0)
        # The last token is computed in any case, and with it, sooner than loaded, what its block lacks.
        keys, place = request.block_keys[: (request.num_tokens - 1) // self.block_size], local // self.block_size
        while place < len(keys) and _name(keys[place]) in self._blocks:
            place += 1
        return max(place * self.block_size - local, 0)

    def begin(self, request: Request, local: int, tokens: int) -> None:
        first, end = local // self.block_size, -(-(local + tokens) // self.block_size)
        for name in map(_name, request.block_keys[first:end]):
            if name in self._blocks:
                self._blocks.move_to_end(name)
        first_lost = self._first_lost(first, end)
        self._loads.append(Copy(self._copied_s("in", end - first), request, {}, Load(request, first_lost)))

    def _first_lost(self, first: int, end: int) -> int | None:
        """Of the blocks from `first` to `end`; each load has its own chance, whatever was before."""
        self._num_loads += 1
        if not self.failure_rate:
            return None
        random = np.random.default_rng([self._seed, 7, self._num_loads])
        return int(random.integers(first, end)) if random.random() < self.failure_rate else None

    def take_lost(self) -> dict[int, Request]:
        """Loads here take steps."""
        return {}

    def finished_loads(self) -> list[Load]:
        done, self._loads = self._split(self._loads)
        for copy in done:
            self.forget(copy.request)
        return [copy.load for copy in done if copy.load is not None]

    # Sends

    def send(self, request: Request) -> bool:
        keys, path = dict[bytes, bytes](), b""
        for key in request.block_keys[: request.num_registered]:
            held = self._blocks.get(_name(key))
            path = held or next_path(path, key)
            if held is None:
                keys[_name(key)] = path
        if not keys:
            return False
        self._sends.append(Copy(self._copied_s("out", len(keys)), request, keys))
        return True

    def finished_sends(self) -> list[Request]:
        done, self._sends = self._split(self._sends)
        for copy in done:
            self._keep(copy.keys)
        return [copy.request for copy in done]

    def _keep(self, keys: dict[bytes, bytes]) -> None:
        """A prefix is used from its start, so its last blocks are evicted first."""
        for key in reversed(list(keys)[: self.num_blocks - self._swapped_blocks]):
            self._blocks[key] = keys[key]
            self._blocks.move_to_end(key)
        self._make_room(0)

    # Swapping

    def swap_out(self, request: Request, num_computed: int) -> bool:
        blocks = -(-num_computed // self.block_size)
        if not blocks or self._swapped_blocks + blocks > self.num_blocks:
            return False
        self._make_room(blocks)
        self._swapped[request.number] = num_computed
        self._swapped_blocks += blocks
        self._delay_s += self._copied_s("out", blocks) - self._clock()
        return True

    def take_delay_s(self) -> float:
        """How much longer the awaited copies make the step."""
        delay_s, self._delay_s = self._delay_s, 0.0
        return delay_s

    def forget(self, request: Request) -> None:
        tokens = self._swapped.pop(request.number, 0)
        self._swapped_blocks -= -(-tokens // self.block_size)

    def _make_room(self, blocks: int) -> None:
        while self._blocks and self.used_blocks + blocks > self.num_blocks:
            self._blocks.popitem(last=False)

    def _copied_s(self, way: str, blocks: int) -> float:
        """When a copy finishes that begins now, or after those of its direction."""
        begins_s = max(self._clock(), self._free_s[way])
        self._free_s[way] = begins_s + LATENCY_S + blocks * self.link.block_bytes / self.link.bytes_per_s
        return self._free_s[way]

    def _split(self, copies: list[Copy]) -> tuple[list[Copy], list[Copy]]:
        now_s = self._clock()
        done = [copy for copy in copies if copy.due_s <= now_s]
        return done, [copy for copy in copies if copy.due_s > now_s]


def _name(key: bytes) -> bytes:
    """A block's name here: the end of its key, which in a recorded key is the path key."""
    return key[-PATH_KEY_BYTES:]


def _on_its_way(load: HostLoad, copy: Copy) -> HostLoad:
    first_lost = None if copy.load is None else copy.load.first_lost
    return msgspec.structs.replace(load, due_s=copy.due_s, first_lost=first_lost)


def open_host_store(config: SchedulerConfig, link: HostLink, clock: Callable[[], float], seed: int) -> HostStore:
    """The tier that a configuration asks for. Raises `ConfigError` where not even a block fits."""
    num_blocks = config.kv_host_memory_bytes // link.block_bytes
    if not num_blocks:
        raise ConfigError(
            f"--kv-host-memory {config.kv_host_memory_bytes}: must be at least {link.block_bytes} (one block)"
        )
    return HostStore(
        num_blocks,
        config.block_size,
        link,
        clock,
        fails_requests=config.kv_load_failure_policy == "fail",
        failure_rate=config.kv_load_failure_rate,
        seed=seed,
    )


def with_tier(config: SchedulerConfig) -> SchedulerConfig:
    """The settings under which the scheduler asks a store."""
    on_failure: Any = config.kv_load_failure_policy
    return msgspec.structs.replace(config, kv_connector=KVConnector(on_failure=on_failure, reuse=True))
