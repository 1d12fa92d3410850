"""The inputs of a recorded run: arrivals, knob changes and the model's results, record by record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.config import ConfigError, SchedulerConfig
from schedtop.engine.contract.kv_groups import size_of
from schedtop.engine.contract.prefixes.paths import recorded_keys
from schedtop.engine.contract.reading import row_columns, table_growth
from schedtop.engine.contract.telemetry import Arrival, FinishReason, Header, Limiter, StepRecord
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.handoff.request import Image, Request
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.step.engine import Engine

MAX_PROMPT_TOKENS = 1 << 24
VLLM = "vllm"
"""`Header.source` of a server that the hook is in."""


class RecordedClock:
    """A clock that stands where the recording says."""

    simulated = True

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.end_s = 0.0

    def now_s(self) -> float:
        return self.clock_s

    def advance(self, elapsed_s: float | None) -> float:
        self.clock_s = self.end_s
        return self.end_s

    def skip_to(self, time_s: float) -> bool:
        return True


class RecordedWorker:
    """Returns what the recorded step returned: how many outputs each row got, who stopped, and the drafts."""

    simulated = True

    def __init__(self) -> None:
        self.emitted: dict[int, int] = {}
        self.accepted: dict[int, int] = {}
        self.stopped: list[int] = []
        self.drafts: dict[int, int] | int = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """All outputs are the same token; a request's keys carry its number, so that no two are alike."""
        numbers = plan.numbers.tolist()
        counts = np.array([self.emitted.get(number, 0) for number in numbers], dtype=np.int32)
        sampled = np.zeros((plan.num_rows, int(counts.max(initial=1))), dtype=np.int32)
        accepted = np.array([self.accepted.get(number, 0) for number in numbers], dtype=np.int32)
        result = StepResult(sampled, counts, stopped=self.stopped, accepted=accepted)
        proposed = self._proposals(numbers)
        if proposed.any():
            result.drafts = np.zeros((plan.num_rows, int(proposed.max())), dtype=np.int32)
            result.num_drafts = np.where(counts > 0, proposed, 0).astype(np.int32)
        return result

    def _proposals(self, numbers: list[int]) -> Any:
        if isinstance(self.drafts, int):
            return np.full(len(numbers), self.drafts, dtype=np.int32)
        return np.array([self.drafts.get(number, 0) for number in numbers], dtype=np.int32)


class Driver:
    """This scheduler, fed with a recording's inputs. `play` each record in turn; it returns what was decided here.

    Prefix keys are the identity of prompt blocks. A block of outputs has no recorded identity: where an admission
    got such a block from the cache, the recorded block table says which one it was.
    Raises `RecordingError` for a header that is not an engine of ours, and for a server with what is not decided here.
    """

    def __init__(self, header: Header, path: str) -> None:
        self.path = path
        _check_decidable(header, path)
        self.clock, self.worker = RecordedClock(), RecordedWorker()
        self.engine = Engine(Scheduler(_config_of(header, path)), self.worker, None, self.clock, header)
        self._groups = self.engine.scheduler.config.groups()
        self.drafts_every_time = header.simulated_clock

    @property
    def doubt(self) -> str:
        """Why a difference would mean nothing; empty if it would."""
        return ""

    @property
    def num_ahead(self) -> int:
        """How many following steps must be known to play one: that many may be planned ahead."""
        return self.engine.scheduler.config.max_concurrent_batches

    def play(self, record: StepRecord, following: Sequence[StepRecord]) -> StepRecord | None:
        """This scheduler's record in place of `record`; None if it has nothing to run.

        `following` are the next records: they say which drafts were proposed, and what is planned ahead.
        """
        engine, ran = self.engine, [each for each in following if each.executed]
        self._outside(record)
        self.clock.clock_s, self.clock.end_s = record.start_s, record.end_s
        engine.paused = record.paused
        if not record.executed:
            for planned in ran[: self.num_ahead] if record.turns else ():
                self._learn_contents(planned)
            return self._idle(record)
        if not engine.has_work:
            return None
        for planned in (record, *ran)[: self.num_ahead]:
            self._learn_contents(planned)
        self._set_results(record, ran[0] if ran else None)
        if engine.paused:
            engine.step_once()
        return engine.step()

    def _idle(self, record: StepRecord) -> StepRecord:
        """Events outside steps, and the turns that followed them."""
        engine = self.engine
        for _ in range(record.turns):
            engine.turn()
        return engine.observer.idle_record(record.start_s, record.knobs_version, record.paused, record.turns)

    def _outside(self, record: StepRecord) -> None:
        """Knob changes, arrivals and aborts that came before the step."""
        self._turn_knobs(record)
        reasons = {deferral.number: deferral.reason for deferral in record.deferrals if deferral.reason}
        for arrival in record.arrivals:
            self._submit(arrival, reasons.get(arrival.number))
        for finish in record.finishes:
            if finish.reason == FinishReason.ABORT:
                self._abort(finish.number, record.start_s)
        for deferral in record.deferrals:
            request = self.engine.scheduler.state.requests.get(deferral.number)
            if not deferral.reason and request is not None and request.deferred is not Limiter.STALE_OUTPUT:
                self.engine.scheduler.make_ready(deferral.number)

    def _abort(self, number: int, at_s: float) -> None:
        self.clock.clock_s = at_s
        self.engine.abort(number)

    def _turn_knobs(self, record: StepRecord) -> None:
        values = {change.name: change.new for change in record.knobs}
        if values:
            self.engine.knobs_version = record.knobs_version - 1
            reply = self.engine.set_knobs(values, by=record.knobs[0].by)
            if not reply.ok:
                raise RecordingError(f"{self.path}: step {record.step} changed a limit beyond reach: {reply.text}")
        self.engine.knobs_version = record.knobs_version

    def _submit(self, arrival: Arrival, deferred: str | None) -> None:
        request = request_of(arrival)
        request.deferred = Limiter(deferred) if deferred else None
        self.engine.submit(request)
        if request.number != arrival.number:
            raise RecordingError(
                f"{self.path}: request {arrival.id!r} has number {arrival.number} where {request.number} is next:"
                " some arrivals are missing"
            )

    def _learn_contents(self, record: StepRecord) -> None:
        """Where an admission hit blocks whose content only the model knew, adopt their content."""
        state = self.engine.scheduler.state
        tables: dict[int, list[bytes]] = {}
        for number, ids in table_growth(record.grown, record.grown_blocks):
            tables.setdefault(number, []).append(ids)
        for admission in record.admissions:
            request = state.requests.get(admission.number)
            for group, table in enumerate(tables.get(admission.number, ()) if request is not None else ()):
                assert request is not None
                num_cached = admission.cached_tokens // size_of(self._groups[group])
                for place, block in enumerate(np.frombuffer(table, dtype=np.int32)[:num_cached].tolist()):
                    self._learn(request, group, place, block)

    def _learn(self, request: Request, group: int, place: int, block: int) -> None:
        state = self.engine.scheduler.state
        kv, known = state.kv, state.requests.values()
        key = kv.key_of(request, group, place)
        if key is None or kv.pool.index.find(key) is not None or not 0 <= block < kv.pool.num_blocks:
            return
        if any(other is not request and kv.key_of(other, group, place) == key for other in known):
            return  # a prompt block of another live request, which may be filled in this very step
        held = kv.pool.key_of(block)
        if held is not None:
            kv.learn_key(request, group, place, held)

    def _set_results(self, record: StepRecord, following: StepRecord | None) -> None:
        rows = row_columns(record)
        numbers = rows["request"].tolist()
        self.worker.emitted = dict(zip(numbers, rows["emitted"].tolist(), strict=True))
        self.worker.accepted = dict(zip(numbers, rows["accepted"].tolist(), strict=True))
        self.worker.stopped = [finish.number for finish in record.finishes if finish.reason == FinishReason.STOP]
        if self.drafts_every_time:
            self.worker.drafts = self.engine.scheduler.state.limits.num_speculative_tokens
        else:
            self.worker.drafts = {} if following is None else _drafts_of(following)


def _drafts_of(record: StepRecord) -> dict[int, int]:
    """Drafts that requests had before a step, scheduled or not."""
    rows, cut = row_columns(record), np.frombuffer(record.proposed, dtype=np.int32).reshape(-1, 2)
    scheduled = zip(rows["request"].tolist(), rows["drafts"].tolist(), strict=True)
    return {**dict(scheduled), **dict(zip(*cut.T.tolist(), strict=True))}


def with_following(
    records: Iterable[StepRecord], count: int = 1
) -> Iterator[tuple[StepRecord, Sequence[StepRecord]]]:
    """Every record with its successors up to the `count`th executed one, as `Driver.play` takes them."""
    held: deque[StepRecord] = deque()
    num_executed = 0
    for record in records:
        held.append(record)
        num_executed += record.executed
        while num_executed - held[0].executed >= count:
            first = held.popleft()
            num_executed -= first.executed
            yield first, tuple(held)
    while held:
        yield held.popleft(), tuple(held)


def request_of(arrival: Arrival) -> Request:
    """A request of the recorded lengths and shared prefixes; its tokens are made up."""
    length = min(max(arrival.prompt_tokens, 0), MAX_PROMPT_TOKENS)
    return Request(
        id=arrival.id,
        prompt_token_ids=np.broadcast_to(np.int32(0), (length,)),
        max_tokens=arrival.max_tokens,
        arrival_s=arrival.arrival_s,
        priority=arrival.priority,
        client_wait_s=arrival.client_wait_s,
        preview=arrival.preview,
        client=arrival.client,
        adapter=arrival.adapter,
        adapter_name=arrival.adapter_name,
        parent=arrival.parent,
        skip_reading_prefix_cache=arrival.skip_reading_prefix_cache,
        images=tuple(Image(*image) for image in arrival.images),
        block_keys=recorded_keys(arrival.prefix_keys),
        key_hasher=sha256(str(arrival.number).encode()),
    )


def _check_decidable(header: Header, path: str) -> None:
    """Some inputs to decisions are in no recording."""
    found = list(header.settings.get("undecidable", ()))
    if header.source == VLLM and "async_scheduling" not in header.config:
        found.insert(0, "an older hook, which did not tell in which order things happened")
    if found:
        raise RecordingError(
            f"{path} is of an engine with {', '.join(found)}, whose decisions cannot be made again here"
        )


def _config_of(header: Header, path: str) -> SchedulerConfig:
    try:
        config: SchedulerConfig = msgspec.convert(header.config, SchedulerConfig)
        Scheduler(config)
    except (msgspec.ValidationError, ConfigError, MemoryError, ValueError) as error:
        raise RecordingError(f"{path}: its scheduler settings cannot be used here: {error}") from None
    return config
