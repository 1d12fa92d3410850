"""A small made-up engine that speaks real telemetry: what it plans is plausible, and its books balance."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from schedtop.engine.contract.telemetry import (
    PROTOCOL,
    Admission,
    Arrival,
    BlockClass,
    Blocks,
    Finish,
    Head,
    Header,
    KnobChange,
    Limiter,
    Preemption,
    RequestState,
    RowFlag,
    Snapshot,
    StepRecord,
    Totals,
)

BLOCK = 16
KNOBS = {
    "max_num_batched_tokens": 2048,
    "max_num_scheduled_tokens": 512,
    "max_num_seqs": 16,
    "max_num_active_seqs": None,
    "long_prefill_token_threshold": 256,
    "watermark": 0.02,
    "scheduler_reserve_full_isl": True,
    "enable_prefix_caching": True,
    "num_speculative_tokens": 3,
    "rate": 4.0,
}


@dataclass(eq=False)
class Job:
    arrival: Arrival
    outputs: int = 0
    computed: int = 0
    table: list[int] = field(default_factory=list)
    cached: int = 0
    preemptions: int = 0
    queued_s: float = 0.0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def needed(self) -> int:
        return self.arrival.prompt_tokens + self.outputs


class SyntheticEngine:
    """Steps of 20-60 ms with chunked prefill, drafts, a watermark and preemption of the newest request."""

    def __init__(self, seed: int = 7, num_blocks: int = 1024, rate: float = 4.0, **knobs: Any) -> None:
        self.random = random.Random(seed)
        self.knobs: dict[str, Any] = {**KNOBS, "rate": rate, **knobs}
        self.launch = dict(self.knobs)
        self.num_blocks = num_blocks
        self.clock_s, self.step, self.seq, self.version = 0.0, 0, -1, 1
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.free = list(range(num_blocks))[::-1]
        self.classes = np.zeros(num_blocks, dtype=np.uint8)
        self.next_arrival_s, self.next_number = 0.3, 391
        self.totals: dict[str, float] = {}
        self.paused = False

    @property
    def budget(self) -> int:
        """Tokens of one step."""
        return int(self.knobs["max_num_scheduled_tokens"] or self.knobs["max_num_batched_tokens"])

    def header(self, **changes: Any) -> Header:
        values: dict[str, Any] = {
            "protocol": PROTOCOL,
            "engine": "schedtop",
            "engine_version": "0.1.0",
            "model": "smollm2-135m",
            "device": "cpu-8t",
            "policy": "fcfs",
            "block_size": BLOCK,
            "num_blocks": self.num_blocks,
            "max_model_len": 8192,
            "config": {**self.launch, "max_batched_tokens_ceiling": 2048, "max_seqs_ceiling": 64, "policy": "fcfs"},
            "workload": {"source": "mixed", "seed": 7, "rate": self.launch["rate"]},
            "started_at": 1_760_000_000.0,
            "simulated_clock": False,
        }
        return Header(**{**values, **changes})

    def snapshot(self) -> Snapshot:
        return Snapshot(
            seq=self.seq,
            step=self.step,
            clock_s=self.clock_s,
            requests=[self._state(job) for job in (*self.running, *self.waiting)],
            waiting=[job.arrival.number for job in self.waiting],
            running=[job.arrival.number for job in self.running],
            block_classes=self.classes.tobytes(),
            knobs=dict(self.knobs),
            knobs_version=self.version,
            paused=self.paused,
            totals=self._totals(),
        )

    def _state(self, job: Job) -> RequestState:
        return RequestState(
            arrival=job.arrival,
            status="running" if job in self.running else "waiting",
            output_tokens=job.outputs,
            computed_tokens=job.computed,
            cached_tokens=job.cached,
            preemptions=job.preemptions,
            first_scheduled_s=job.first_scheduled_s,
            first_token_s=job.first_token_s,
            last_token_s=job.last_token_s,
            table=np.array(job.table, dtype=np.int32).tobytes(),
            queued_s=job.queued_s,
        )

    def _totals(self) -> Totals:
        return Totals(**{name: value if name == "busy_s" else int(value) for name, value in self.totals.items()})

    def _count(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.totals[name] = self.totals.get(name, 0) + amount

    def set_knobs(self, values: dict[str, Any], by: str = "key") -> list[KnobChange]:
        changes = [KnobChange(name, self.knobs[name], new, by) for name, new in values.items()]
        self.knobs.update(values)
        self.version += 1
        return changes

    def records(self, num: int) -> list[StepRecord]:
        return [self.run_step() for _ in range(num)]

    def run_step(self, knobs: dict[str, Any] | None = None) -> StepRecord:
        changes = self.set_knobs(knobs) if knobs else []
        before = self.classes.copy()
        start_s = self.clock_s
        arrivals = self._arrivals()
        rows, preemptions, budget = self._running_pass()
        admissions, head, limiter, budget = self._admit(rows, preemptions, budget)
        grown = [(job.arrival.number, len(new)) for job, _, _, new, _ in rows if new]
        grown_blocks = [block for _, _, _, new, _ in rows for block in new]
        planned = [(job, job.computed, job.needed, len(job.table)) for job, *_ in rows]
        scheduled = sum(row[1] for row in rows)
        elapsed_s = 0.018 + 6e-5 * scheduled + self.random.random() * 0.002
        self.clock_s += elapsed_s
        matrix, itl, ttft, finishes, accepted = self._settle(rows, planned)
        self._recount(before)
        self.step += 1
        self.seq += 1
        drafts = int(matrix[2].sum())
        decode = int(matrix[1][(matrix[8] & RowFlag.DECODE) > 0].sum()) - drafts
        self._count(
            steps=1,
            submitted=len(arrivals),
            admitted=sum(not item.resumed for item in admissions),
            finished=len(finishes),
            preemptions=len(preemptions),
            scheduled_tokens=scheduled,
            draft_tokens=drafts,
            rejected_draft_tokens=drafts - accepted,
            output_tokens=int(matrix[6].sum()),
            prompt_tokens=sum(self._find(item.number, rows).arrival.prompt_tokens for item in admissions),
            cached_tokens=sum(item.cached_tokens for item in admissions),
            token_budget=self.budget,
            busy_s=elapsed_s,
        )
        counts = np.bincount(self.classes, minlength=4).tolist()
        return StepRecord(
            seq=self.seq,
            step=self.step,
            executed=True,
            start_s=start_s,
            end_s=self.clock_s,
            schedule_s=4e-5,
            execute_s=elapsed_s - 9e-5,
            update_s=5e-5,
            token_budget=self.budget,
            input_budget=self.knobs["max_num_batched_tokens"],
            scheduled_tokens=scheduled,
            decode_tokens=decode,
            prefill_tokens=scheduled - decode - drafts,
            draft_tokens=drafts,
            recomputed_tokens=0,
            input_rows=scheduled,
            limiter=limiter,
            rows=matrix.tobytes(),
            itl_s=itl.tobytes(),
            ttft_s=tuple(ttft),
            running=len(self.running),
            waiting=len(self.waiting),
            oldest_wait_s=max((self.clock_s - job.queued_s for job in self.waiting), default=None),
            head=head,
            blocks=Blocks(
                held=counts[BlockClass.HELD],
                shared=counts[BlockClass.SHARED],
                cached_free=counts[BlockClass.CACHED_FREE],
                empty=counts[BlockClass.EMPTY],
                stored_tokens=sum(job.computed for job in self.running),
                watermark=self._watermark(),
            ),
            changed_blocks=self._changed(before),
            grown=np.array(grown, dtype=np.int32).tobytes(),
            grown_blocks=np.array(grown_blocks, dtype=np.int32).tobytes(),
            arrivals=tuple(arrivals),
            admissions=tuple(admissions),
            refusals=(),
            finishes=tuple(finishes),
            preemptions=tuple(preemptions),
            knobs=tuple(changes),
            knobs_version=self.version,
            paused=self.paused,
            totals=self._totals(),
        )

    def _find(self, number: int, rows: list[Any]) -> Job:
        return next(row[0] for row in rows if row[0].arrival.number == number)

    def _watermark(self) -> int:
        return int(self.knobs["watermark"] * self.num_blocks)

    def _arrivals(self) -> list[Arrival]:
        arrivals = []
        while self.next_arrival_s <= self.clock_s:
            long = self.random.random() < 0.25
            prompt = self.random.randint(900, 1600) if long else self.random.randint(40, 400)
            arrival = Arrival(
                number=self.next_number,
                id=f"r-{self.next_number:04d}",
                arrival_s=self.next_arrival_s,
                prompt_tokens=prompt,
                max_tokens=self.random.choice((64, 128, 256)),
            )
            self.next_number += 1
            self.next_arrival_s += self.random.expovariate(self.knobs["rate"])
            self.waiting.append(Job(arrival, queued_s=arrival.arrival_s))
            arrivals.append(arrival)
        return arrivals

    def _grow(self, job: Job, tokens: int) -> list[int] | None:
        """New blocks so that `tokens` more fit; None if the pool has too few."""
        need = -(-(job.computed + tokens) // BLOCK) - len(job.table)
        if need > len(self.free):
            return None
        new = [self.free.pop() for _ in range(max(0, need))]
        job.table.extend(new)
        return new

    def _running_pass(self) -> tuple[list[Any], list[Preemption], int]:
        budget = self.budget
        rows: list[Any] = []
        preemptions: list[Preemption] = []
        for job in list(self.running):
            if job not in self.running:
                continue
            decode = job.needed - job.computed == 1
            drafts = min(self.knobs["num_speculative_tokens"], budget - 1) if decode and budget > 1 else 0
            tokens = min(job.needed - job.computed + drafts, budget)
            if not decode:
                tokens = min(tokens, self.knobs["long_prefill_token_threshold"] or tokens)
            new = self._grow(job, tokens)
            while new is None and self.running[-1] is not job:
                preemptions.append(self._preempt(self.running.pop(), job))
                new = self._grow(job, tokens)
            if new is None:
                preemptions.append(self._preempt(self.running.pop(), job))
                break
            budget -= tokens
            rows.append((job, tokens, min(drafts, max(0, tokens - 1)) if decode else 0, new, 0))
        return rows, preemptions, budget

    def _preempt(self, job: Job, by: Job) -> Preemption:
        freed, lost = len(job.table), job.computed
        usage = 1 - len(self.free) / self.num_blocks
        self.free.extend(reversed(job.table))
        job.table.clear()
        job.computed = 0
        job.preemptions += 1
        job.queued_s = self.clock_s
        self.waiting.insert(0, job)
        return Preemption(
            number=job.arrival.number,
            count=job.preemptions,
            lost_tokens=lost,
            freed_blocks=freed,
            usage_before=usage,
            usage_after=1 - len(self.free) / self.num_blocks,
            for_number=by.arrival.number,
        )

    def _admit(self, rows: list[Any], preemptions: list[Any], budget: int) -> Any:
        admissions: list[Admission] = []
        head, limiter = None, str(Limiter.NONE)
        while self.waiting:
            job = self.waiting[0]
            need = -(-job.needed // BLOCK)
            blocked = self._blocked(job, need, bool(preemptions), budget)
            if blocked is not None:
                limiter, head = blocked.reason, blocked
                break
            self.waiting.pop(0)
            self.running.append(job)
            resumed = job.first_scheduled_s is not None
            cached = (
                0 if resumed else (job.arrival.prompt_tokens // BLOCK // 3 * BLOCK if job.arrival.number % 3 else 0)
            )
            new = self._grow(job, cached) or []
            job.computed = cached
            tokens = min(job.needed - cached, budget, self.knobs["long_prefill_token_threshold"] or budget)
            new += self._grow(job, tokens) or []
            waited = self.clock_s - job.queued_s
            admissions.append(Admission(job.arrival.number, cached, max(0.0, waited), resumed))
            job.first_scheduled_s = self.clock_s if job.first_scheduled_s is None else job.first_scheduled_s
            job.cached = job.cached or cached
            rows.append((job, tokens, 0, new, RowFlag.RESUMED if resumed else RowFlag.NEW))
            budget -= tokens
        return admissions, head, limiter, budget

    def _blocked(self, job: Job, need: int, preempted: bool, budget: int) -> Head | None:
        free, number, since = len(self.free), job.arrival.number, job.queued_s
        if preempted:
            return Head(number, Limiter.PREEMPTED_NOW, since_s=since)
        if len(self.running) >= self.knobs["max_num_seqs"]:
            return Head(number, Limiter.SEQUENCE_CAP, self.knobs["max_num_seqs"], len(self.running), since_s=since)
        if budget <= 0:
            return Head(number, Limiter.TOKEN_BUDGET, self.budget, 0, since_s=since)
        if need > free:
            return Head(number, Limiter.BLOCKS, need, free, since_s=since)
        if self.running and free - need < self._watermark():
            return Head(number, Limiter.WATERMARK, need, free, self._watermark(), since_s=since)
        return None

    def _settle(self, rows: list[Any], planned: list[Any]) -> Any:
        matrix = np.zeros((9, len(rows)), dtype=np.int32)
        itl = np.full(len(rows), np.nan, dtype=np.float32)
        ttft: list[tuple[int, float]] = []
        finishes: list[Finish] = []
        total_accepted = 0
        for index, ((job, tokens, drafts, _, flags), (_, computed, needed, blocks)) in enumerate(
            zip(rows, planned, strict=True)
        ):
            decode = needed - computed == 1
            samples = computed + tokens - drafts >= needed
            accepted = self.random.randint(0, drafts) if drafts and samples else 0
            emitted = accepted + 1 if samples else 0
            job.computed = computed + tokens - (drafts - accepted)
            total_accepted += accepted
            flags |= (RowFlag.DECODE if decode else 0) | (RowFlag.SAMPLED if samples else 0)
            number = job.arrival.number
            matrix[:, index] = (number, tokens, drafts, accepted, computed, needed, emitted, blocks, flags)
            if samples:
                if job.first_token_s is None:
                    job.first_token_s = self.clock_s
                    ttft.append((number, self.clock_s - job.arrival.arrival_s))
                else:
                    itl[index] = self.clock_s - (job.last_token_s or 0.0)
                job.last_token_s = self.clock_s
                job.outputs += emitted
            if job.outputs >= job.arrival.max_tokens:
                finishes.append(self._finish(job))
        return matrix, itl, ttft, finishes, total_accepted

    def _finish(self, job: Job) -> Finish:
        self.running.remove(job)
        self.free[:0] = job.table
        job.table.clear()
        first, arrival = job.first_token_s or self.clock_s, job.arrival
        return Finish(
            number=arrival.number,
            reason="length",
            output_tokens=job.outputs,
            ttft_s=first - arrival.arrival_s,
            e2e_s=self.clock_s - arrival.arrival_s,
            tpot_s=(self.clock_s - first) / max(1, job.outputs - 1),
            queue_s=(job.first_scheduled_s or 0.0) - arrival.arrival_s,
            preemptions=job.preemptions,
        )

    def _recount(self, before: Any) -> None:
        """Classes after the step: tables are held (the first blocks of some shared), what was used is cached."""
        now = np.where(before > BlockClass.EMPTY, BlockClass.CACHED_FREE, BlockClass.EMPTY).astype(np.uint8)
        stale = self.free[: max(0, len(self.free) - 200)]
        now[stale] = BlockClass.EMPTY
        for job in self.running:
            now[job.table] = BlockClass.HELD
            now[job.table[: job.cached // BLOCK]] = BlockClass.SHARED
        self.classes = now

    def _changed(self, before: Any) -> bytes:
        changed = np.flatnonzero(before != self.classes).astype(np.int32)
        packed: bytes = (changed * 4 + self.classes[changed]).astype(np.int32).tobytes()
        return packed
