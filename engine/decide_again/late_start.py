"""From which step a server's late recording can be verified, and how the scheduler is put into that state.

A snapshot says who holds which block and which free blocks are cached, but neither their order in the free queue nor
their contents. Both follow from what came later: free blocks were handed out in their order, and who got a block from
the cache had its content. What nobody took stays unknown and decides nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np
from schedtop.engine.contract.prefixes.paths import recorded_keys
from schedtop.engine.contract.reading import block_changes, table_growth
from schedtop.engine.contract.telemetry import Arrival, BlockClass, Header, RequestState, Snapshot, StepRecord
from schedtop.engine.decide_again.recorded_inputs import request_of, with_following
from schedtop.engine.handoff.request import Request, Status
from schedtop.engine.kv.prefix_cache import extend_keys
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.scheduler.books.ending import stop_at
from schedtop.engine.scheduler.scheduler import Scheduler

Contents = dict[int, bytes]
"""Keys of blocks that were filled before the start."""


def first_decidable(
    header: Header, path: str, snapshot: Snapshot, records: Iterable[StepRecord]
) -> tuple[int, Snapshot]:
    """How many of `records`, which follow `snapshot`, cannot be replayed, and the state after them.

    A snapshot has no step under way and no drafts: servers that have them are decided from the first moment on
    at which they were idle. Raises `RecordingError` where there is none, or no snapshot in the middle.
    """
    where, config = f"{path} begins at step {snapshot.step} of its engine, ", header.config
    if config.get("kv_groups") or config.get("sliding_window"):
        raise RecordingError(where + "which has layers that do not keep all blocks: record it from its start")
    if not (config.get("async_scheduling") or config.get("num_speculative_tokens")):
        return 0, snapshot
    found = _first_quiet(snapshot, records)
    if found is None:
        what = "steps under way" if config.get("async_scheduling") else "drafts"
        raise RecordingError(
            f"{where}with {what} from before, and was never idle after it: record it from its start"
        )
    return found


def _first_quiet(snapshot: Snapshot, records: Iterable[StepRecord]) -> tuple[int, Snapshot] | None:
    live = {state.arrival.number for state in snapshot.requests}
    knobs = dict(snapshot.knobs)
    classes = np.frombuffer(snapshot.block_classes, dtype=np.uint8).copy()
    for place, (record, following) in enumerate(with_following(records), 1):
        live.update(arrival.number for arrival in record.arrivals)
        live.difference_update(finish.number for finish in record.finishes)
        knobs.update({change.name: change.new for change in record.knobs})
        blocks, values = block_changes(record)
        classes[blocks] = values
        later = next((each.planned_s for each in following if each.executed), None)
        if not live and later is not None and later >= record.end_s:
            quiet = Snapshot(
                seq=record.seq,
                step=record.step,
                clock_s=record.end_s,
                requests=[],
                waiting=[],
                running=[],
                block_classes=classes.tobytes(),
                knobs=knobs,
                knobs_version=record.knobs_version,
                paused=record.paused,
                totals=record.totals,
            )
            return place, quiet
    return None


def take_up(scheduler: Scheduler, snapshot: Snapshot, records: Iterable[StepRecord], block_size: int) -> None:
    """Put a fresh scheduler into the state of `snapshot`; `records` are those after it."""
    books, kv = scheduler.state, scheduler.state.kv
    states = {state.arrival.number: state for state in snapshot.requests}
    requests = {number: _at_rest(state, block_size) for number, state in states.items()}
    later = _LaterRecords(snapshot, block_size)
    for record in records:
        later.take(record)
    contents = later.contents(requests)
    empty, cached = later.free_blocks()
    keys = [contents.get(block) or b"unknown %d" % block for block in cached]
    kv.pool.take_up([request.block_ids for request in requests.values()], empty, cached, keys)
    for number in snapshot.running:
        _run(scheduler, requests[number], states[number])
    for number in reversed(snapshot.waiting) if books.config.policy == "fcfs" else snapshot.waiting:
        request = requests[number]
        request.status = Status(states[number].status)
        books.waiting.put_back(request) if books.config.policy == "fcfs" else books.waiting.add(request)
    books.requests.update(requests)
    kv.pool.discard_changes()
    scheduler.resume_at(max([later.next_number - 1, *requests], default=-1) + 1)


def _at_rest(state: RequestState, block_size: int) -> Request:
    request = request_of(state.arrival)
    request.number = state.arrival.number
    request.output_token_ids = array("i", [0]) * state.output_tokens
    request.gaps_s = array("f", [float("nan")]) * state.output_tokens
    request.block_ids = np.frombuffer(state.table, dtype=np.int32).tolist()
    request.cached_tokens, request.num_preemptions = state.cached_tokens, state.preemptions
    request.first_scheduled_s, request.first_token_s = state.first_scheduled_s, state.first_token_s
    request.last_token_s, request.requeued_s = state.last_token_s, state.requeued_s
    request.queued_since_s = state.arrival.arrival_s if state.queued_s is None else state.queued_s
    extend_keys(request, request.num_tokens // block_size, block_size)
    return request


def _run(scheduler: Scheduler, request: Request, state: RequestState) -> None:
    """Give a request its row; blocks that another request filled first keep that request's content."""
    books, kv = scheduler.state, scheduler.state.kv
    known = min(state.computed_tokens, request.num_tokens)
    request.status = Status.RUNNING
    for place, block in enumerate(request.block_ids[: len(request.block_keys)]):
        held = kv.pool.key_of(block)
        request.block_keys[place] = held or request.block_keys[place]
        if held is not None:
            request.num_registered = place + 1
    kv.register(request, known)
    row = books.table.append(request, state.computed_tokens, stop_at(books, request), kv.standing(request))
    books.table.next_full[row] = kv.next_full(known)
    books.table.decoding[row] = state.output_tokens > 0 and state.computed_tokens == request.num_tokens - 1
    books.table.mid_prompt[row] = state.computed_tokens < request.num_tokens - 1


class _LaterRecords:
    """What later records describe the blocks at the start. `next_number` is that of the first request that came."""

    def __init__(self, snapshot: Snapshot, block_size: int) -> None:
        classes = np.frombuffer(snapshot.block_classes, dtype=np.uint8)
        self._free = {int(b): int(classes[b]) for b in np.flatnonzero(classes <= BlockClass.CACHED_FREE)}
        self._block_size = block_size
        self._taken: dict[int, None] = {}
        self._writers: dict[int, tuple[int, int]] = {}
        self._lengths: dict[int, int] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._hits: list[tuple[int, int, int, tuple[int, int] | None]] = []
        self.next_number = 0
        for state in snapshot.requests:
            table = np.frombuffer(state.table, dtype=np.int32).tolist()
            self._lengths[state.arrival.number] = len(table)
            for place, block in enumerate(table):
                self._writers.setdefault(block, (state.arrival.number, place))

    def take(self, record: StepRecord) -> None:
        if not self._arrivals and record.arrivals:
            self.next_number = record.arrivals[0].number
        self._arrivals.update((arrival.number, arrival) for arrival in record.arrivals)
        cached = {entry.number: entry.cached_tokens // self._block_size for entry in record.admissions}
        for number, ids in table_growth(record.grown, record.grown_blocks):
            start = 0 if number in cached else self._lengths.get(number, 0)
            for place, block in enumerate(np.frombuffer(ids, dtype=np.int32).tolist(), start):
                if place < cached.get(number, 0):
                    self._hits.append((number, place, block, self._writers.get(block)))
                else:
                    self._taken.setdefault(block)
                    self._writers[block] = (number, place)
            self._lengths[number] = start + len(ids) // 4

    def free_blocks(self) -> tuple[list[int], list[int]]:
        """Free blocks without and with content, next to be allocated first; those never allocated come last."""
        order = [*(block for block in self._taken if block in self._free)]
        order += [block for block in self._free if block not in self._taken]
        empty, cached = ([block for block in order if self._free[block] == kind] for kind in (0, 1))
        return empty, cached

    def contents(self, requests: Mapping[int, Request]) -> Contents:
        """Of blocks that were filled before the start and found in the cache later.

        Requests from before the start have made-up keys; where a later request hit their blocks, its keys replace them.
        """
        found: Contents = {}
        known = {number: recorded_keys(arrival.prefix_keys) for number, arrival in self._arrivals.items()}
        for number, place, block, writer in sorted(self._hits, key=lambda hit: hit[0] not in known):
            own = requests[number].block_keys if number in requests else known.get(number, [])
            if place >= len(own):
                continue
            if writer is None:
                key = found.setdefault(block, own[place])
            elif writer[0] in requests and place < len(requests[writer[0]].block_keys):
                theirs = requests[writer[0]].block_keys
                if number in known:
                    theirs[place] = own[place]
                key = theirs[place]
            else:
                continue
            if number in requests:
                own[place] = key
        return found
