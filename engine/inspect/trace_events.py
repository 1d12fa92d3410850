"""A recording as Chrome trace events (the JSON that Perfetto and chrome://tracing open).

Format: "Trace Event Format", Google, 2016: duration events B and E nest on their thread, C are counters, i are
instants, M names processes and threads; `ts` is in microseconds and never decreases here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import Arrival, RowFlag, Snapshot, StepRecord

Event = dict[str, Any]

SCHEDULER_PID, REQUESTS_PID = 1, 2
STEP_TID, EVENT_TID = 1, 2
_CATEGORIES = {SCHEDULER_PID: "step", REQUESTS_PID: "request"}


class TraceEvents:
    """Turns records into events, in order of time. One track per request: queued, prefill chunks, decode, starved (it
    runs, and steps give it no token), preempted, chunks of a recompute.

    `start` first, then `add` each record, then `finish`: each yields what is certain to come next.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[float, int, Event]] = []
        self._pushed = 0
        self._reported_us = 0.0
        self._open: dict[int, str] = {}
        self._prompts: dict[int, int] = {}
        self._last_start_s = 0.0
        self._end_s = 0.0

    def start(self, snapshot: Snapshot, model: str) -> Iterator[Event]:
        """Names of the fixed tracks, and requests that were there before the first record."""
        yield _name("process_name", SCHEDULER_PID, 0, f"scheduler, {model}")
        yield _name("process_name", REQUESTS_PID, 0, "requests")
        yield _name("thread_name", SCHEDULER_PID, STEP_TID, "steps")
        yield _name("thread_name", SCHEDULER_PID, EVENT_TID, "events")
        self._last_start_s = self._end_s = snapshot.clock_s
        waiting = set(snapshot.waiting)
        for item in snapshot.requests:
            yield self._track(item.arrival)
            if item.arrival.number in waiting:
                state = "preempted" if item.preemptions else "queued"
                self._begin(item.arrival.number, state, snapshot.clock_s)

    def add(self, record: StepRecord) -> Iterator[Event]:
        """The events that nothing can precede any more."""
        for arrival in record.arrivals:
            yield self._track(arrival)
            self._begin(arrival.number, "queued", arrival.arrival_s, _asked(arrival))
        self._happenings(record)
        if record.executed:
            self._step(record)
        for finish in record.finishes:
            self._close(finish.number, record.end_s, {"reason": finish.reason, "outputs": finish.output_tokens})
            self._prompts.pop(finish.number, None)
        self._counters(record)
        self._end_s = max(self._end_s, record.end_s)
        # The next record describes what began after this one did.
        yield from self._flush(self._last_start_s)
        self._last_start_s = record.start_s

    def finish(self) -> Iterator[Event]:
        """The remaining events; open slices end with the recording."""
        for number in list(self._open):
            self._close(number, self._end_s, {"reason": "the recording ends"})
        yield from self._flush(float("inf"))

    # Slices

    def _step(self, record: StepRecord) -> None:
        args = {
            "step": record.step,
            "tokens": record.scheduled_tokens,
            "rows": record.input_rows,
            "requests": record.running,
            "limiter": record.limiter,
        }
        if record.head is not None:
            args["head"] = describe_head(record.head)
        self._push(record.start_s, _slice("B", f"step {record.step}", SCHEDULER_PID, STEP_TID, args))
        rows = row_columns(record)
        for values in zip(*(column.tolist() for column in rows.values()), strict=True):
            self._row(record, dict(zip(rows, values, strict=True)))
        self._push(record.end_s, _slice("E", f"step {record.step}", SCHEDULER_PID, STEP_TID))

    def _row(self, record: StepRecord, row: dict[str, int]) -> None:
        number = row["request"]
        lasting = "starved" if not row["tokens"] else "decode" if row["flags"] & RowFlag.DECODE else None
        if lasting is not None:
            if self._open.get(number) != lasting:
                self._begin(number, lasting, record.start_s)
            return
        again = row["needed"] > self._prompts.get(number, row["needed"])
        chunk = {"tokens": row["tokens"], "after": row["computed"]}
        self._begin(number, "recompute" if again else "prefill", record.start_s, chunk)
        self._close(number, record.end_s)

    def _happenings(self, record: StepRecord) -> None:
        for refusal in record.refusals:
            self._close(refusal.number, record.start_s, {"refused": refusal.reason})
            self._instant(record.start_s, f"refused {refusal.id}", {"reason": refusal.reason})
        for change in record.knobs:
            words = f"{change.name} {change.old} -> {change.new}"
            self._instant(record.start_s, words, {"by": change.by})
        for victim in record.preemptions:
            args = {"for": victim.for_number, "lost": victim.lost_tokens, "freed": victim.freed_blocks}
            self._begin(victim.number, "preempted", record.start_s, args)
            self._instant(record.start_s, "preemption", {"request": victim.number, **args})
        for admission in record.admissions:
            self._close(admission.number, record.start_s, {"cached": admission.cached_tokens})

    def _begin(self, number: int, state: str, clock_s: float, args: Event | None = None) -> None:
        """Open a slice on a request's track, after closing the one that is open."""
        self._close(number, clock_s)
        self._open[number] = state
        self._push(clock_s, _slice("B", state, REQUESTS_PID, number + 1, args))

    def _close(self, number: int, clock_s: float, args: Event | None = None) -> None:
        state = self._open.pop(number, None)
        if state is not None:
            self._push(clock_s, _slice("E", state, REQUESTS_PID, number + 1, args))

    # Others

    def _counters(self, record: StepRecord) -> None:
        blocks = record.blocks
        classes = {name: getattr(blocks, name) for name in ("held", "shared", "cached_free", "empty")}
        series = {
            "blocks": classes,
            "running": {"requests": record.running},
            "waiting": {"requests": record.waiting},
        }
        if record.executed:
            unused = max(0, record.token_budget - record.scheduled_tokens)
            series["budget"] = {
                "decode": record.decode_tokens,
                "prefill": record.prefill_tokens,
                "draft": record.draft_tokens,
                "unused": unused,
            }
        for name, args in series.items():
            self._push(record.start_s, {"name": name, "ph": "C", "pid": SCHEDULER_PID, "tid": 0, "args": args})

    def _instant(self, clock_s: float, name: str, args: Event) -> None:
        event = {"name": name, "ph": "i", "s": "p", "pid": SCHEDULER_PID, "tid": EVENT_TID, "args": args}
        self._push(clock_s, event)

    def _track(self, arrival: Arrival) -> Event:
        self._prompts[arrival.number] = arrival.prompt_tokens
        return _name("thread_name", REQUESTS_PID, arrival.number + 1, arrival.id)

    # Order

    def _push(self, clock_s: float, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._pending, (clock_s, self._pushed, event))

    def _flush(self, until_s: float) -> Iterator[Event]:
        pending = self._pending
        while pending and pending[0][0] <= until_s:
            clock_s, _, event = heapq.heappop(pending)
            self._reported_us = max(self._reported_us, round(clock_s * 1e6, 3))
            yield {**event, "ts": self._reported_us}


def _slice(phase: str, name: str, pid: int, tid: int, args: Event | None = None) -> Event:
    event: Event = {"name": name, "ph": phase, "pid": pid, "tid": tid, "cat": _CATEGORIES[pid]}
    return {**event, "args": args} if args else event


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _asked(arrival: Arrival) -> Event:
    asked: Event = {"prompt": arrival.prompt_tokens, "max": arrival.max_tokens, "priority": arrival.priority}
    also = {"adapter": arrival.adapter_label, "parent": arrival.parent, "images": len(arrival.images)}
    return asked | {name: value for name, value in also.items() if value}


def trace_events(snapshot: Snapshot, records: Iterable[StepRecord], model: str) -> Iterator[Event]:
    """All events of a recording that begins with `snapshot`."""
    trace = TraceEvents()
    yield from trace.start(snapshot, model)
    for record in records:
        yield from trace.add(record)
    yield from trace.finish()
