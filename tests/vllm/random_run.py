"""Random load on vLLM's scheduler with the hook in it, without a model: arrivals, aborts anywhere, knobs, pauses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedtop.console.past.state import LiveState
from schedtop.engine.recording import RecordingWriter
from schedtop.engine.vllm.changes import with_consequences
from schedtop.engine.vllm.engine import fixed_of
from schedtop.engine.vllm.hook import Hook
from schedtop.engine.vllm.limits import set_limits
from schedtop.engine.vllm.plugin import hooked
from schedtop.engine.vllm.records.records import Records

from benchmarks.vllm_scheduler import Requests, build
from tests.vllm.conftest import MODEL

MOST_TURNS = 5000
STOP = 9


class RandomRun:
    """As vLLM's engine does it: a step is planned while the one before is under way, if the scheduler is
    asynchronous; aborts may come right before results."""

    def __init__(
        self,
        seed: int,
        path: Path,
        overlaps: bool,
        drafts: int = 0,
        windows: tuple[int | None, ...] = (None,),
        drafter: str = "ngram",
        pooling: bool = False,
    ) -> None:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        self.random = rng = random.Random(seed)
        self.limits: dict[str, Any] = {
            "max_num_seqs": rng.choice([4, 8, 16]),
            "max_num_batched_tokens": rng.choice([64, 128, 256]),
            "num_blocks": rng.choice([20, 40, 80, 300]) * len(windows),
            "block_size": rng.choice([4, 16]),
            "long_prefill_token_threshold": rng.choice([0, 32]),
            "scheduler_reserve_full_isl": rng.random() < 0.5,
            "watermark": rng.choice([0.0, 0.05]),
            "policy": rng.choice(["fcfs", "fcfs", "priority"]),
            "max_model_len": 1024,
            "num_speculative_tokens": drafts,
            "windows": windows,
            "drafter": drafter,
            "pooling": pooling,
        }
        with pytest.MonkeyPatch.context() as patch:  # no thread: what the hook notes is taken here
            patch.setattr("schedtop.engine.vllm.plugin._begin", Hook)
            base = hooked(AsyncScheduler if overlaps else Scheduler)
            self.scheduler = build(MODEL, base, async_scheduling=overlaps, **self.limits)
        self.hook: Hook = self.scheduler.schedtop_hook
        header = self.hook.facts.header
        self.records = Records(header, self.hook.facts.knobs, fixed_of(header))
        self.writer = RecordingWriter(str(path), header, lambda: self.records.snapshot(0.0))
        self._requests, self._made, self._total = Requests(self.scheduler), 0, rng.randint(10, 60)
        self._most_tokens = self.limits["num_blocks"] // len(windows) * self.limits["block_size"] // 3
        self._drafts = drafts
        self._depth, self._under_way = 1 + overlaps, list[tuple[Any, Any]]()

    def go(self) -> None:
        for _ in range(MOST_TURNS):
            if not (self._made < self._total or self.scheduler.requests or self._under_way):
                break
            self._arrive()
            self._sometimes(0.05, self._abort)
            self._sometimes(0.05, self._turn_a_knob)
            self._sometimes(0.03, lambda: self.hook.commands.append(lambda hook: hook.pause(True)))
            self._sometimes(0.2, lambda: self.hook.commands.append(lambda hook: hook.pause(False)))
            self._turn()
        assert not self.scheduler.requests
        self._take(idle=True)
        self.writer.close()

    def _sometimes(self, share: float, act: Any) -> None:
        if self.random.random() < share:
            act()

    def _arrive(self) -> None:
        rng = self.random
        while self._made < self._total and self._comes_now():
            length, first = rng.randint(1, min(200, self._most_tokens)), 1000 * rng.randint(0, 3)
            prompt = [first + i if i < length // 2 else 977 * self._made + i for i in range(length)]
            more = {"priority": rng.randint(0, 2), "arrival_time": float(self._made)}
            tokens = rng.randint(1, min(60, self._most_tokens))
            request = self._requests.make(f"r{self._made}", prompt, tokens, **more)
            if not self.limits["pooling"]:
                request.sampling_params.stop_token_ids = [STOP]
            request.skip_reading_prefix_cache = rng.random() < 0.15  # as a request for prompt_logprobs does
            self.scheduler.add_request(request)
            self._made += 1

    def _comes_now(self) -> bool:
        return self.random.random() < 0.5 or not self.scheduler.requests

    def _abort(self) -> None:
        from vllm.v1.request import RequestStatus

        if self.scheduler.requests:
            names = self.random.choices(list(self.scheduler.requests), k=self.random.randint(1, 4))
            self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def _turn_a_knob(self) -> None:
        rng, most = self.random, self.scheduler.scheduler_config.max_num_batched_tokens
        values = {
            "max_num_seqs": rng.randint(1, self.limits["max_num_seqs"]),
            "max_num_scheduled_tokens": rng.randint(16, most),
            "max_num_batched_tokens": rng.randint(16, self.limits["max_num_batched_tokens"]),
            "watermark": rng.choice([0.0, 0.02]),
        }
        name = rng.choice(list(values))

        def turn(hook: Hook) -> None:  # the engine refuses a budget above the rows, which may be fewer by now
            rows = self.scheduler.scheduler_config.max_num_batched_tokens
            value = min(values[name], rows) if name == "max_num_scheduled_tokens" else values[name]
            set_limits(hook, with_consequences({name: value}), "test")

        self.hook.commands.append(turn)

    def _turn(self) -> None:
        scheduler = self.scheduler
        if scheduler.has_requests():
            output = scheduler.schedule()
            chunks = {name: scheduler.requests[name].is_prefill_chunk for name in output.num_scheduled_tokens}
            self._under_way.append((output, chunks))
            more = output.num_scheduled_tokens or scheduler.has_requests()
            if len(self._under_way) < self._depth and more:
                return
        if self._under_way:
            self._settle(*self._under_way.pop(0))
        self._take(idle=not self._under_way and self.random.random() < 0.5)

    def _settle(self, output: Any, chunks: dict[str, bool]) -> None:
        import torch
        from vllm.v1.outputs import ModelRunnerOutput

        self._sometimes(0.1, self._abort)
        proposed, rng = output.scheduled_spec_decode_tokens, self.random
        counts = [
            0 if is_chunk else 1 + rng.randint(0, len(proposed.get(name, ()))) for name, is_chunk in chunks.items()
        ]
        result = ModelRunnerOutput(
            req_ids=list(chunks),
            req_id_to_index={name: place for place, name in enumerate(chunks)},
            sampled_token_ids=[[STOP if rng.random() < 0.02 else 7 for _ in range(count)] for count in counts],
        )
        if self.limits["pooling"]:
            result.sampled_token_ids = [[] for _ in counts]
            result.pooler_output = [torch.zeros(1) if count else None for count in counts]
        self.scheduler.update_from_output(output, result)
        if self._drafts and self._depth == 1:
            self._propose(dict(zip(chunks, counts, strict=True)))

    def _propose(self, counts: dict[str, int]) -> None:
        """Drafts for whoever got a token, as an n-gram drafter finds them or not."""
        from vllm.v1.outputs import DraftTokenIds

        found = [[7] * self.random.randint(0, self._drafts) if count else [] for count in counts.values()]
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(counts), found))

    def _take(self, idle: bool) -> None:
        while self.hook.log:
            record = self.records.take(self.hook.log.popleft())
            if record is not None:
                self.writer.write(record)
        record = self.records.idle(self.hook.now_s()) if idle else None
        if record is not None:
            self.writer.write(record)
        assert not self.hook.errors
        if idle and not self._under_way:
            self._compare_tables()

    def _compare_tables(self) -> None:
        """What the records tell of block tables is what vLLM's managers hold."""
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        for state in self.records.snapshot(0.0).requests:
            reported = [np.frombuffer(table, dtype=np.int32).tolist() for table in (state.table, *state.further)]
            held = [
                [block.block_id - 1 for block in manager.req_to_blocks.get(state.arrival.id, ())]
                for manager in managers
            ]
            assert reported == held or not any(held + reported)
        counts = [
            sum(not block.is_null for table in manager.req_to_blocks.values() for block in table)
            for manager in managers
        ]
        assert len(counts) == 1 or self.records.pool.group_blocks == tuple(counts)


class LateRun(RandomRun):
    """The same, recorded only from somewhere in the middle on; `recorded` says whether it came to that. `pauses`: now
    and then everybody has left before the next one comes."""

    def __init__(self, seed: int, path: Path, overlaps: bool, drafts: int = 0, pauses: bool = False) -> None:
        super().__init__(seed, path.with_suffix(".whole"), overlaps, drafts)
        self._pauses, self._total = pauses, 60
        self.recorded, self._path = False, path
        self._whole, self._late, self._left = self.writer, LiveState(), random.Random(seed).randint(3, 20)

    def _comes_now(self) -> bool:
        if self._pauses and self._made % 6 == 0 and (self.scheduler.requests or self._under_way):
            return False
        return super()._comes_now()

    def _take(self, idle: bool) -> None:
        super()._take(idle)
        self._left -= 1
        if self._left == 0:
            self._whole.close()
            self._late.start_afresh(self.records.snapshot(self.hook.now_s()))
            self.writer = RecordingWriter(str(self._path), self.hook.facts.header, self._late.snapshot)
            self.recorded = True
