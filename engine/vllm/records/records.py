"""Notes become step records, one at a time, numbered in the order of their schedules.

A record is made when its step is settled; notes that came after its schedule wait for the next one. So the known state
of requests is always that of the records so far, however many steps are under way.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import (
    PREFIX_KEY_BYTES,
    Arrival,
    Blocks,
    Finish,
    FinishReason,
    Head,
    Header,
    KnobChange,
    Limiter,
    Preemption,
    RowFlag,
    Snapshot,
    StepRecord,
    Totals,
)
from schedtop.engine.vllm.events import (
    Added,
    Applied,
    Drafted,
    Ended,
    Event,
    PauseSeen,
    Scheduled,
    Updated,
    is_step,
    left_of,
)
from schedtop.engine.vllm.records.batch import Ints, ServerBatch, flag_late, row_bytes, take_batch
from schedtop.engine.vllm.records.blocks import Pool
from schedtop.engine.vllm.records.deliveries import deliver, outside_reason
from schedtop.engine.vllm.records.preempted import give_way
from schedtop.engine.vllm.records.reasons import Fixed, head_of
from schedtop.engine.vllm.records.requests import (
    COMPUTED,
    GONE,
    HIGH_WATER,
    NUMBER,
    RELEASED,
    WAITING,
    ServerRequest,
    ServerRequests,
)
from schedtop.engine.vllm.records.tables import new_tables

COUNTED = (
    "scheduled_tokens",
    "recomputed_tokens",
    "draft_tokens",
    "token_budget",
    "input_rows",
    "input_budget",
)
"""Fields of a record that are summed into the totals of the same name."""

_CHILD = re.compile(r"\d+_(.+)")
"""vLLM names each child of a request for several answers by its place, before the request's id."""

_BLANK: dict[str, Any] = {
    **dict.fromkeys((*COUNTED, "decode_tokens", "prefill_tokens"), 0),
    **dict.fromkeys(("rows", "itl_s", "grown", "grown_blocks"), b""),
    **dict.fromkeys(("ttft_s", "admissions", "refusals"), ()),
    "executed": False,
    "schedule_s": None,
    "execute_s": 0.0,
    "update_s": None,
    "head": None,
    "limiter": Limiter.NONE.value,
}
"""The fields of a record in which nothing ran."""


@dataclass(slots=True)
class RecordExtras:
    """What the next record reports besides its step."""

    arrivals: list[Arrival] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    knobs: list[KnobChange] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    pauses: int = 0
    paused_by: str = ""

    def __bool__(self) -> bool:
        return bool(self.arrivals or self.finishes or self.knobs or self.preemptions or self.pauses)


class Records:
    """Takes every note; `knobs` are the live limits at their start."""

    def __init__(self, header: Header, knobs: dict[str, Any], fixed: Fixed) -> None:
        self.lives = ServerRequests()
        self.pool = Pool(header.num_blocks, len(fixed.groups))
        self.knobs, self.knobs_version = dict(knobs), 0
        self.paused = False
        self.seq = self.step = 0
        self.errors: list[str] = []
        self.wants_rescan = False
        self._fixed = fixed
        self._by_priority = header.policy == "priority"
        self._caching: bool = header.config["enable_prefix_caching"]
        self._counts: dict[str, float] = dict.fromkeys(Totals.__struct_fields__, 0)
        self._pending: deque[Event] = deque()
        self._reported = RecordExtras()
        self._drafted: dict[str, int] = {}
        self._updated_s = 0.0
        self._watermark = int(header.config.get("watermark", 0.0) * (header.num_blocks + 1))
        most = header.config["max_num_batched_tokens"]
        self._budgets = (header.config["max_num_scheduled_tokens"] or most, most)

    def take(self, event: Event) -> StepRecord | None:
        """One more note; the record that it completes."""
        if not isinstance(event, Updated):
            self._pending.append(event)
            if isinstance(event, Scheduled) and len(self._fixed.groups) > 1:
                for _, tables in new_tables(event.output):
                    self.pool.belong(tables)
            return None
        scheduled = self._reach(event.output)
        self._take_blocks(event)
        if scheduled is None or not is_step(scheduled):
            self._updated_s = event.ended_s
            return None
        return self._record(scheduled, event)

    def idle(self, now_s: float) -> StepRecord | None:
        """A record of what happened outside steps; None if nothing did, or a step is under way."""
        if any(map(is_step, self._pending)):
            return None
        while self._pending:
            self._outside(self._pending.popleft())
        if not self._reported:
            return None
        queue = self.lives.queue(self._by_priority) if self.paused else []
        if not queue:
            return self._tell(now_s)
        head = Head(queue[0].number, Limiter.PAUSED, since_s=queue[0].queued_s)
        return self._tell(now_s, limiter=Limiter.PAUSED.value, head=head)

    def _reach(self, output: Any) -> Scheduled | None:
        """Take in the notes before the schedule of `output`; returns that schedule, None if it was not noted."""
        if not any(isinstance(event, Scheduled) and event.output is output for event in self._pending):
            return None
        while True:
            event = self._pending.popleft()
            if isinstance(event, Scheduled) and event.output is output:
                return event
            self._outside(event)

    def _outside(self, event: Event) -> None:
        match event:
            case Added():
                self._arrive(event)
            case Ended():
                self._end(event)
            case Applied():
                self._apply(event)
            case PauseSeen():
                self.paused = event.paused
                self._reported.pauses += 1
                self._reported.paused_by = event.by
            case Drafted():
                self._drafted = dict(zip(event.ids, event.counts, strict=True))
            case Scheduled():  # one without a batch, or with results never noted
                self._preempt(event, event.began_s)

    def _arrive(self, event: Added) -> None:
        keys = b"".join(key[:PREFIX_KEY_BYTES] for key in event.hashes if isinstance(key, bytes))
        arrival = Arrival(
            self.lives.next_number(),
            event.id,
            event.at_s,
            event.prompt_tokens,
            event.max_tokens,
            event.priority,
            keys,
            event.client_wait_s,
            skip_reading_prefix_cache=event.skips_cache,
            parent=child[1] if (child := _CHILD.fullmatch(event.id)) else "",
        )
        self.lives.add(arrival, event.has_stop_strings)
        self._reported.arrivals.append(arrival)

    def _end(self, event: Ended) -> None:
        for name in event.ids:
            life = self.lives.by_id.get(name)
            if life is None:
                continue
            ambiguous = life.has_stop_strings and not event.by_console and "ABORT" in event.status
            if life.first_token_s is None:
                self._counts["aborted_prefill_tokens"] += self._prefilled(life)
            reason = FinishReason.STOP_OR_ABORT if ambiguous else outside_reason(event.status)
            self._reported.finishes.append(self.lives.end(life, reason.value, self.step, event.at_s))

    def _prefilled(self, life: ServerRequest) -> int:
        """Prompt tokens that were computed for it, those of the prefix cache not counted."""
        high, computed = (int(self.lives.columns[row, life.slot]) for row in (HIGH_WATER, COMPUTED))
        return max(0, max(high, computed) - life.cached_tokens)

    def _apply(self, event: Applied) -> None:
        if event.error:
            self.errors.append(f"a limit could not be set ({event.error})")
            return
        for name, value in event.values.items():
            if self.knobs.get(name) != value:
                self._reported.knobs.append(KnobChange(name, self.knobs.get(name), value, event.by))
        self.knobs.update(event.values)
        self.knobs_version += 1
        rows = self.knobs["max_num_batched_tokens"]
        self._budgets = (self.knobs["max_num_scheduled_tokens"] or rows, rows)
        if "watermark" in event.values:
            self._watermark = int(event.values["watermark"] * (self.pool.num_blocks + 1))

    def _take_blocks(self, event: Updated) -> None:
        self.pool.take(event.blocks)
        if self.pool.num_free != event.num_free and not event.whole:
            self.wants_rescan = True

    def _preempt(self, seen: Scheduled, now_s: float, among: Container[str] | None = None) -> None:
        """Requeue the requests that a schedule preempted, or only those `among` some."""
        for place, victim in enumerate(seen.preempted):
            if among is None or victim.id in among:
                reported = give_way(self.lives, seen, place, now_s, self._by_priority, self.pool.num_blocks)
                self._reported.preemptions += [] if reported is None else [reported]

    def _record(self, seen: Scheduled, updated: Updated) -> StepRecord:
        lives, now_s = self.lives, updated.ended_s
        planned_s, overlaps = seen.began_s, seen.began_s < self._updated_s
        start_s, self._updated_s = max(planned_s, self._updated_s), now_s
        if seen.preempted:
            self._preempt(seen, planned_s)
        batch = take_batch(lives, seen.output, seen.running, planned_s, self._fixed, seen.threshold, overlaps)
        flag_late(lives, batch, left_of(self._pending))
        self.step += 1
        self.paused, self._watermark = seen.paused, seen.watermark_blocks
        self._budgets = (seen.token_budget, seen.input_budget)
        emitted, gaps_s, firsts, ended = deliver(lives, updated.outputs, now_s)
        accepted, rejected = self._reject(batch, emitted)
        rows = row_bytes(lives, batch, emitted, accepted)
        names = {life.id for life, _ in ended}
        # An end before the preemption is reported: both are reported together.
        for event in self._pending:
            if names and isinstance(event, Scheduled):
                self._preempt(event, event.began_s, names)
        self._reported.finishes += [lives.end(life, reason, self.step) for life, reason in ended]
        head, limiter = self._waiting(seen, batch)
        step = self._timing(seen, updated, start_s) | self._tokens(batch, seen)
        self._count(batch, step, int(emitted.sum()), int(accepted.sum()), rejected, now_s - start_s)
        record = self._tell(
            now_s,
            **step,
            step=self.step,
            executed=True,
            limiter=limiter,
            rows=rows,
            itl_s=gaps_s[batch.order].astype(np.float32).tobytes(),
            ttft_s=tuple(firsts),
            head=head,
            planned_s=planned_s,
            blocks_in_use=self.pool.num_blocks - seen.num_free,
            running=updated.num_running,
            waiting=updated.num_waiting,
            grown=np.array(batch.growth.pairs, dtype=np.int32).tobytes(),
            grown_blocks=np.array(batch.growth.blocks, dtype=np.int32).tobytes(),
            grown_groups=bytes(batch.growth.groups) if len(self._fixed.groups) > 1 else b"",
            admissions=tuple(batch.admissions),
            proposed=self._cut_drafts(batch),
        )
        lives.forget(self.step)
        return record

    def _waiting(self, seen: Scheduled, batch: ServerBatch) -> tuple[Head | None, str]:
        """The head of the queue with its reason, and the step's limiter."""
        lives = self.lives
        prefills = bool((batch.flags & (RowFlag.DECODE | RowFlag.NEW | RowFlag.RESUMED) == 0).any())
        waiting = lives.by_id.get(seen.head.id) if seen.head is not None else None
        if waiting is None and seen.head is not None and lives.knows(seen.head.id):  # it has ended in the meantime
            slot = lives.slots([seen.head.id])[0]
            head = head_of(seen, int(lives.columns[NUMBER, slot]), self._fixed, prefills)
            return head, head.reason
        if waiting is None:
            full = int(batch.tokens.sum()) >= seen.token_budget and batch.was_cut
            return None, (Limiter.TOKEN_BUDGET if full else Limiter.NONE).value
        head = head_of(seen, waiting.number, self._fixed, prefills)
        return msgspec.structs.replace(
            head, since_s=waiting.queued_s, inverted=self._inverted(waiting)
        ), head.reason

    def _inverted(self, waiting: ServerRequest) -> bool:
        if not self._by_priority:
            return False
        lives = self.lives
        return any(lives.by_id[name].arrival.priority > waiting.arrival.priority for name in lives.running)

    def _reject(self, batch: ServerBatch, emitted: Ints) -> tuple[Ints, int]:
        """Accepted drafts of each row, and how many were not; those are taken back."""
        if not batch.drafts.any():
            return batch.drafts, 0
        columns, got = self.lives.columns, emitted[batch.slots]
        accepted = np.minimum(np.maximum(got - 1, 0), batch.drafts)
        rejected = np.where(got > 0, batch.drafts - accepted, 0)
        columns[COMPUTED, batch.slots] -= rejected * (columns[WAITING, batch.slots] == 0)
        return accepted, int(rejected.sum())

    def _cut_drafts(self, batch: ServerBatch) -> bytes:
        """`StepRecord.proposed`."""
        drafted, self._drafted = self._drafted, {}
        if not drafted:
            return b""
        names = list(filter(self.lives.knows, drafted))
        slots = self.lives.slots(names)
        used = np.zeros(self.lives.columns.shape[1], dtype=np.int64)
        used[batch.slots] = batch.drafts
        counts = np.array([drafted[name] for name in names], dtype=np.int64)
        cut = counts > used[slots]
        pairs = np.stack([self.lives.columns[NUMBER, slots[cut]], counts[cut]], axis=1)
        return pairs.astype(np.int32).tobytes()

    def _timing(self, seen: Scheduled, updated: Updated, start_s: float) -> dict[str, Any]:
        return {
            "start_s": start_s,
            "schedule_s": seen.ended_s - seen.began_s,
            "execute_s": max(0.0, updated.began_s - max(seen.ended_s, start_s)),
            "update_s": updated.ended_s - updated.began_s,
        }

    def _tokens(self, batch: ServerBatch, seen: Scheduled) -> dict[str, Any]:
        tokens, drafts = int(batch.tokens.sum()), int(batch.drafts.sum())
        decodes = int(np.count_nonzero(batch.flags & int(RowFlag.DECODE)))
        return {
            "token_budget": seen.token_budget,
            "input_budget": seen.input_budget,
            "scheduled_tokens": tokens,
            "decode_tokens": decodes,
            "prefill_tokens": tokens - decodes - drafts,
            "draft_tokens": drafts,
            "recomputed_tokens": batch.recomputed,
            "input_rows": tokens + self._fixed.draft_slots * len(batch.slots),
        }

    def _count(
        self, batch: ServerBatch, step: dict[str, Any], outputs: int, accepted: int, rejected: int, busy_s: float
    ) -> None:
        counts = self._counts
        counts["steps"] += 1
        counts["output_tokens"] += outputs
        counts["rejected_draft_tokens"] += rejected
        if step["draft_tokens"]:
            counts["drafts"] += int(np.count_nonzero(batch.drafts))
            counts["accepted_draft_tokens"] += accepted
        counts["busy_s"] += busy_s
        for name in COUNTED:
            counts[name] += step[name]
        for admission, life in zip(batch.admissions, batch.admitted, strict=True):
            if admission.resumed:
                counts["reused_tokens"] += admission.cached_tokens
            else:
                counts["admitted"] += 1
                counts["prompt_tokens"] += life.arrival.prompt_tokens
                counts["cached_tokens"] += admission.cached_tokens
                if self._caching and not life.arrival.skip_reading_prefix_cache:
                    counts["cache_queries"] += life.arrival.prompt_tokens

    def _tell(self, now_s: float, **step: Any) -> StepRecord:
        """The next record: `step` are the fields of one that ran, and what is to be reported beside it."""
        reported, self._reported = self._reported, RecordExtras()
        counts, self.seq = self._counts, self.seq + 1
        aborted = sum(finish.reason == FinishReason.ABORT for finish in reported.finishes)
        counts["submitted"] += len(reported.arrivals)
        counts["submitted_prompt_tokens"] += sum(arrival.prompt_tokens for arrival in reported.arrivals)
        counts["preemptions"] += len(reported.preemptions)
        counts["aborted"] += aborted
        counts["finished"] += len(reported.finishes) - aborted
        lives = self.lives
        oldest = min((life.queued_s for life in self._queued()), default=None)
        fields: dict[str, Any] = {
            **_BLANK,
            "start_s": now_s,
            "token_budget": self._budgets[0],
            "input_budget": self._budgets[1],
            "step": self.step,
            "running": len(lives.running),
            "waiting": len(lives.front) + len(lives.back),
            **step,
        }
        return StepRecord(
            seq=self.seq,
            end_s=now_s,
            oldest_wait_s=None if oldest is None else max(0.0, now_s - oldest),
            blocks=self._blocks(),
            group_blocks=self.pool.group_blocks,
            changed_blocks=self.pool.drain(),
            arrivals=tuple(reported.arrivals),
            finishes=tuple(reported.finishes),
            preemptions=tuple(reported.preemptions),
            knobs=tuple(reported.knobs),
            knobs_version=self.knobs_version,
            paused=self.paused,
            paused_by=reported.paused_by,
            totals=self.totals(),
            **fields,
        )

    def _queued(self) -> list[ServerRequest]:
        """The longest wait in both parts of the queue."""
        lives = self.lives
        ends = (next(iter(lives.front), None), next(iter(lives.back), None))
        return [lives.by_id[name] for name in ends if name is not None]

    def _blocks(self) -> Blocks:
        columns, groups = self.lives.columns, self._fixed.groups
        runs = columns[WAITING] + columns[GONE] == 0
        if self._pending:
            runs[self.lives.slots(filter(self.lives.knows, left_of(self._pending)))] = False
        size, keep_tokens = self._fixed.block_size, sum(not group.is_state for group in groups)
        stored = int((columns[COMPUTED] * runs).sum()) * keep_tokens
        if self._fixed.gives_back:
            stored -= int((columns[RELEASED] * runs).sum())
            for group, held in zip(groups, self.pool.group_blocks, strict=False):
                # A state fills its block, whatever length it stands for.
                stored += held * min(group.size, size) if group.is_state else 0
        return self.pool.counts(stored, size, self._watermark)

    def totals(self) -> Totals:
        return Totals(*self._counts.values())  # type: ignore[arg-type]

    def snapshot(self, now_s: float) -> Snapshot:
        """The state according to the records so far."""
        lives = self.lives
        return Snapshot(
            seq=self.seq,
            step=self.step,
            clock_s=now_s,
            requests=[lives.state(life) for life in lives.by_id.values()],
            waiting=[life.number for life in lives.queue(self._by_priority)],
            running=[lives.by_id[name].number for name in lives.running],
            block_classes=self.pool.classes.tobytes(),
            knobs=dict(self.knobs),
            knobs_version=self.knobs_version,
            paused=self.paused,
            totals=self.totals(),
        )
