"""The live requests of a vLLM engine as the notes describe them: columns of numbers, and the rest of each life."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import Arrival, Finish, RequestState
from schedtop.engine.handoff.request import GroupBlocks
from schedtop.engine.scheduler.books.ending import percentile_of_gaps
from schedtop.engine.vllm.records.gaps import Gaps

COLUMNS = (
    "number",
    "prompt",
    "outputs",
    "computed",
    "blocks",
    "high_water",
    "decoding",
    "waiting",
    "gone",
    "stop_at",
    "entered",
    "release",
    "released",
    "last",
    "scratch",
)
NUMBER, PROMPT, OUTPUTS, COMPUTED, BLOCKS, HIGH_WATER, DECODING, WAITING, GONE, STOP_AT, ENTERED, *_REST = range(
    len(COLUMNS)
)
RELEASE, RELEASED, LAST, SCRATCH = _REST
"""`decoding`: it was due an output since it was admitted; `gone`: it ended, but a step with it may be under way;
`stop_at`: tokens at which it ends by length; `entered`: how many were admitted before it, so the place of running
ones in a step; `blocks`: held in all KV groups; `release`: computed tokens from which a block before a window is given
back; `released`: tokens of the blocks that were, in all groups; `last`: tokens of the newest step."""

KEPT_STEPS = 16
"""For which the numbers of an ended request are kept: more than any vLLM has under way."""

Slots = npt.NDArray[np.intp]


@dataclass(slots=True, eq=False)
class ServerRequest:
    """What does not fit in a column. `tables` are its block ids by KV group."""

    slot: int
    id: str
    arrival: Arrival
    has_stop_strings: bool = False
    cached_tokens: int = 0
    preemptions: int = 0
    loop_length: int = 0
    finished_before: int = -1
    recomputed_tokens: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    queued_s: float = 0.0
    requeued_s: float = 0.0
    tables: list[GroupBlocks] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.arrival.number


class ServerRequests:
    """All requests in flight. `columns` is int64 (`len(COLUMNS)`, slots), `last_s` float64: the newest delivery.

    `running` and `front`/`back` (the queue in two parts: victims go before all others, the newest first) are in the
    engine's order.
    """

    def __init__(self) -> None:
        self.columns: npt.NDArray[np.int64] = np.zeros((len(COLUMNS), 256), dtype=np.int64)
        self.last_s: npt.NDArray[np.float64] = np.full(256, np.nan)
        self.gaps = Gaps(256)
        self.by_id: dict[str, ServerRequest] = {}
        self.by_slot: dict[int, ServerRequest] = {}
        self.running: dict[str, None] = {}
        self.front: dict[str, None] = {}
        self.back: dict[str, None] = {}
        self.num_finished = 0
        self._slot_of: dict[str, int] = {}
        self._free = list(range(255, -1, -1))
        self._gone: deque[tuple[int, str, int]] = deque()
        self._next_number = 0
        self._num_entered = 0

    def next_number(self) -> int:
        """Assign a number to an arriving request."""
        self._next_number += 1
        return self._next_number - 1

    def add(self, arrival: Arrival, has_stop_strings: bool) -> ServerRequest:
        """A request enters the queue."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        life = ServerRequest(slot, arrival.id, arrival, has_stop_strings, queued_s=arrival.arrival_s)
        self.columns[:, slot] = 0
        self.columns[NUMBER, slot] = arrival.number
        self.columns[PROMPT, slot] = arrival.prompt_tokens
        self.columns[STOP_AT, slot] = arrival.prompt_tokens + arrival.max_tokens
        self.columns[WAITING, slot] = 1
        self.last_s[slot] = np.nan
        self.by_id[arrival.id] = self.by_slot[slot] = life
        self._slot_of[arrival.id] = slot
        self.back[arrival.id] = None
        return life

    def _grow(self) -> None:
        size = self.columns.shape[1]
        self.columns = np.concatenate([self.columns, np.zeros_like(self.columns)], axis=1)
        self.last_s = np.concatenate([self.last_s, np.full(size, np.nan)])
        self.gaps.grow()
        self._free = list(range(2 * size - 1, size - 1, -1))

    def slots(self, ids: Iterable[str]) -> Slots:
        """Where these requests are. Raises `KeyError` for one that never arrived."""
        return np.array([*map(self._slot_of.__getitem__, ids)], dtype=np.intp)

    def admit(self, life: ServerRequest, now_s: float) -> float:
        """It leaves the queue to run; returns its wait, seconds."""
        waited_s = max(0.0, now_s - life.queued_s)
        if life.first_scheduled_s is None:
            life.first_scheduled_s = max(now_s, life.arrival.arrival_s)
        else:
            life.requeued_s += waited_s
        self.columns[WAITING, life.slot] = 0
        self.columns[ENTERED, life.slot] = self._num_entered
        self._num_entered += 1
        self._leave_queue(life.id)
        self.running[life.id] = None
        return waited_s

    def put_back(self, life: ServerRequest, computed: int, now_s: float) -> None:
        """It was preempted: its outputs are kept, its state is not."""
        columns, slot = self.columns, life.slot
        columns[HIGH_WATER, slot] = max(columns[HIGH_WATER, slot], computed)
        columns[COMPUTED, slot] = columns[BLOCKS, slot] = columns[DECODING, slot] = 0
        columns[RELEASE, slot] = columns[RELEASED, slot] = columns[LAST, slot] = 0
        columns[WAITING, slot] = 1
        life.preemptions += 1
        same = life.finished_before == self.num_finished
        life.loop_length = life.loop_length + 1 if same else 1
        life.finished_before = self.num_finished
        life.queued_s, life.tables = now_s, []
        self.running.pop(life.id, None)
        self.front[life.id] = None

    def end(self, life: ServerRequest, reason: str, step: int, ended_s: float | None = None) -> Finish:
        """It has ended; `step` is the newest one. `ended_s`: when, if not by a step."""
        slot = life.slot
        outputs, last_s = int(self.columns[OUTPUTS, slot]), float(self.last_s[slot])
        self.columns[GONE, slot] = 1
        self.num_finished += 1
        del self.by_id[life.id]
        self.running.pop(life.id, None)
        self._leave_queue(life.id)
        self._gone.append((step, life.id, slot))
        return _finish(life, reason, outputs, last_s, self.gaps.take(slot), ended_s)

    def knows(self, name: str) -> bool:
        """It is in flight, or ended so recently that a step with it may be under way."""
        return name in self._slot_of

    def forget(self, step: int) -> None:
        """Give back the slots of those that ended long before `step`."""
        while self._gone and self._gone[0][0] < step - KEPT_STEPS:
            _, name, slot = self._gone.popleft()
            self._free.append(slot)
            del self.by_slot[slot]
            if self._slot_of.get(name) == slot:
                del self._slot_of[name]

    def _leave_queue(self, name: str) -> None:
        if self.back.pop(name, self) is self:
            self.front.pop(name, None)

    def queue(self, by_priority: bool) -> list[ServerRequest]:
        """Waiting requests, head first."""
        waiting = [self.by_id[name] for name in (*reversed(self.front), *self.back)]
        if by_priority:
            waiting.sort(key=lambda life: (life.arrival.priority, life.arrival.arrival_s, life.number))
        return waiting

    def state(self, life: ServerRequest) -> RequestState:
        """One request for a snapshot."""
        column = self.columns[:, life.slot]
        last_s, waiting = float(self.last_s[life.slot]), bool(column[WAITING])
        tables = [np.array(held.block_ids, dtype=np.int32).tobytes() for held in life.tables] or [b""]
        return RequestState(
            arrival=life.arrival,
            status="running" if not waiting else "preempted" if life.preemptions else "waiting",
            output_tokens=int(column[OUTPUTS]),
            computed_tokens=int(column[COMPUTED]),
            cached_tokens=life.cached_tokens,
            preemptions=life.preemptions,
            first_scheduled_s=life.first_scheduled_s,
            first_token_s=life.first_token_s,
            last_token_s=None if last_s != last_s else last_s,
            table=tables[0],
            queued_s=life.queued_s if waiting else None,
            requeued_s=life.requeued_s,
            further=tuple(tables[1:]),
        )


def _finish(
    life: ServerRequest, reason: str, outputs: int, last_s: float, gaps_s: array[float], ended_s: float | None
) -> Finish:
    arrival_s, first_s = life.arrival.arrival_s, life.first_token_s
    ttft_s = e2e_s = tpot_s = None
    if first_s is not None:
        ttft_s, e2e_s = first_s - arrival_s, last_s - arrival_s
        tpot_s = (last_s - first_s) / (outputs - 1) if outputs > 1 else None
    return Finish(
        number=life.number,
        reason=reason,
        output_tokens=outputs,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        tpot_s=tpot_s,
        queue_s=None if life.first_scheduled_s is None else life.first_scheduled_s - arrival_s,
        requeued_s=life.requeued_s,
        itl_p95_s=percentile_of_gaps(gaps_s, 0.95),
        preemptions=life.preemptions,
        recomputed_tokens=life.recomputed_tokens,
        ended_s=ended_s,
    )
