"""Schedulers of vLLM's shapes, old and new, with just enough inside to schedule, preempt and finish.

They follow its names and calls, not its decisions. `VERSIONS` are what the hook has to get along with.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

VERSIONS = ("0.11", "0.13", "0.32")


class Status(IntEnum):
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 4
    FINISHED_STOPPED = 5
    FINISHED_LENGTH_CAPPED = 6
    FINISHED_ABORTED = 7


class PauseState(IntEnum):
    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


class Reason(IntEnum):
    STOP = 0
    LENGTH = 1


@dataclass(eq=False)
class Block:
    block_id: int
    ref_cnt: int = 0
    block_hash: Any = None


class BlockPool:
    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = [Block(number) for number in range(num_gpu_blocks)]
        self.free = deque(self.blocks[1:])

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        blocks = [self.free.popleft() for _ in range(num_blocks)]
        for block in blocks:
            block.block_hash, block.ref_cnt = None, 1
        return blocks

    def touch(self, blocks: Any) -> None:
        for part in blocks:
            for block in part if isinstance(part, list) else [part]:
                if not block.ref_cnt:
                    self.free.remove(block)
                block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        freed = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt:
                freed.append(block)
        self.free.extendleft(reversed(freed))  # without content they are used again first


class Queue(deque[Any]):
    def peek_request(self) -> Any:
        return self[0]


@dataclass(eq=False)
class Request:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    arrival_time: float = 0.0
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    outputs: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    sampling_params: Any = None
    client_index: int = 0
    skip_reading_prefix_cache: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.outputs


def scheduler_of(version: str, **settings: Any) -> type:
    """The class of a version. `settings` overrule the limits below."""
    limits = {"num_blocks": 41, "block_size": 4, "max_num_seqs": 4, "budget": 16, **settings}
    config = SimpleNamespace(
        max_num_batched_tokens=limits["budget"],
        max_num_seqs=limits["max_num_seqs"],
        long_prefill_token_threshold=0,
        enable_chunked_prefill=True,
        async_scheduling=False,
        watermark=0.0,
    )
    vllm_config = SimpleNamespace(
        scheduler_config=config,
        model_config=SimpleNamespace(served_model_name="stub", model="stub"),
        parallel_config=SimpleNamespace(data_parallel_rank=limits.get("rank", 0)),
        speculative_config=None,
        lora_config=None,
    )

    class Scheduler:
        def __init__(self) -> None:
            self.vllm_config, self.scheduler_config = vllm_config, config
            self.kv_cache_config = SimpleNamespace(kv_cache_groups=[None])
            self.policy = SimpleNamespace(value="fcfs")
            self.block_size, self.max_model_len = limits["block_size"], 1024
            self.max_num_running_reqs = limits["max_num_seqs"]
            self.max_num_scheduled_tokens = limits["budget"]
            pool = BlockPool(limits["num_blocks"])
            self.kv_cache_manager = SimpleNamespace(
                block_pool=pool,
                enable_caching=limits.get("caching", True),
                get_computed_blocks=lambda request: (SimpleNamespace(blocks=([],)), 0),
            )
            self.requests: dict[str, Request] = {}
            self.waiting, self.running = Queue(), []
            if version == "0.32":
                self.max_num_active_reqs, self.scheduler_reserve_full_isl = self.max_num_running_reqs, True
                self.kv_cache_manager.watermark_blocks = 0
                self.pause_state, self.deferred_waiting = PauseState.UNPAUSED, set()
                self.kv_holding_waiting = Queue()

        def add_request(self, request: Request) -> None:
            self.requests[request.request_id] = request
            self.waiting.append(request)

        def finish_requests(self, request_ids: Any, finished_status: Status) -> list[Request]:
            names = [request_ids] if isinstance(request_ids, str) else list(request_ids)
            ended = [self.requests[name] for name in names if name in self.requests]
            for request in ended:
                request.status = finished_status
                self._drop(request)
            return ended

        def _drop(self, request: Request) -> None:
            for queue in (self.running, self.waiting):
                if request in queue:
                    queue.remove(request)
            self.kv_cache_manager.block_pool.free_blocks(reversed(request.blocks))
            del self.requests[request.request_id]

        def schedule(self, throttle_prefills: bool = False) -> Any:
            budget, given, new_blocks = self.max_num_scheduled_tokens, {}, {}
            computed, fresh, preempted = {}, [], False
            for request in list(self.running):
                tokens = min(request.num_tokens - request.num_computed_tokens, budget)
                if request not in self.running or not tokens:
                    continue
                while (blocks := self._allocate(request, tokens)) is None:
                    victim = self.running.pop()
                    preempted = True
                    self._give_way(victim)
                    if victim is request:
                        break
                if blocks is None:
                    break
                self._plan(request, tokens, blocks, given, new_blocks, computed)
                budget -= tokens
            while self.waiting and budget and not preempted and self._may_admit():
                request = self.waiting[0]
                tokens = min(request.num_tokens, budget)
                whole = -(-request.num_tokens // self.block_size)
                fits = version != "0.32" or whole <= self.kv_cache_manager.block_pool.get_num_free_blocks()
                blocks = self._allocate(request, tokens) if fits else None
                if blocks is None:
                    break
                self.waiting.popleft()
                self.running.append(request)
                fresh.append(request)
                self._plan(request, tokens, blocks, given, new_blocks, computed)
                budget -= tokens
            assert sum(given.values()) <= self.max_num_scheduled_tokens
            assert len(self.running) <= self.max_num_running_reqs
            return self._output(given, new_blocks, computed, fresh)

        def _may_admit(self) -> bool:
            if getattr(self, "pause_state", 0):
                return False
            if hasattr(self, "max_num_active_reqs"):
                return len(self.running) < self.max_num_active_reqs
            return len(self.running) != self.max_num_running_reqs

        def _allocate(self, request: Request, tokens: int) -> list[Block] | None:
            pool = self.kv_cache_manager.block_pool
            need = -(-(request.num_computed_tokens + tokens) // self.block_size) - len(request.blocks)
            if need > pool.get_num_free_blocks():
                return None
            return pool.get_new_blocks(need) if need > 0 else []

        def _plan(self, request, tokens, blocks, given, new_blocks, computed) -> None:
            request.blocks += blocks
            given[request.request_id] = tokens
            new_blocks[request.request_id] = [block.block_id for block in blocks]
            computed[request.request_id] = request.num_computed_tokens

        def _give_way(self, request: Request) -> None:
            if version == "0.11":
                self._release(request)
            else:
                self._preempt_request(request, 0.0)

        def _release(self, request: Request) -> None:
            self.kv_cache_manager.block_pool.free_blocks(reversed(request.blocks))
            request.blocks, request.num_computed_tokens = [], 0
            request.status = Status.PREEMPTED
            request.num_preemptions += 1
            self.waiting.appendleft(request)

        def _output(self, given, new_blocks, computed, fresh) -> Any:
            first = [request for request in fresh if request.status is Status.WAITING]
            later = [name for name in given if name not in {request.request_id for request in first}]
            output = SimpleNamespace(
                num_scheduled_tokens=given,
                scheduled_spec_decode_tokens={},
                scheduled_new_reqs=[
                    SimpleNamespace(
                        req_id=request.request_id,
                        block_ids=([block.block_id for block in request.blocks],),
                        num_computed_tokens=0,
                    )
                    for request in first
                ],
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=later,
                    new_block_ids=[(new_blocks[name],) if new_blocks[name] else None for name in later],
                    num_computed_tokens=[computed[name] for name in later],
                ),
            )
            for name, tokens in given.items():
                self.requests[name].num_computed_tokens += tokens
                self.requests[name].status = Status.RUNNING
            return output

        def update_from_output(self, scheduler_output: Any, model_output: Any = None) -> dict[int, Any]:
            outputs = []
            for name in scheduler_output.num_scheduled_tokens:
                request = self.requests.get(name)
                if request is None or request.num_computed_tokens < request.num_tokens:
                    continue
                request.outputs += 1
                ended = request.outputs >= request.max_tokens
                outputs.append(
                    SimpleNamespace(
                        request_id=name, new_token_ids=[7], finish_reason=Reason.LENGTH if ended else None
                    )
                )
                if ended:
                    self._drop(request)
            return {0: SimpleNamespace(outputs=outputs)}

        def shutdown(self) -> None:
            pass

    if version != "0.11":
        Scheduler._preempt_request = lambda self, request, timestamp: self._release(request)
    if version == "0.32":
        Scheduler.set_pause_state = lambda self, state: setattr(self, "pause_state", state)
    return Scheduler
