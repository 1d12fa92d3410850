"""A recorded run that continues differently: its state after a record, and the inputs that followed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

import msgspec
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.telemetry import Arrival, FinishReason, Limiter, Snapshot, StepRecord
from schedtop.engine.decide_again.recorded_inputs import Driver, request_of, with_following
from schedtop.engine.decide_again.recorded_scenario import outside_events
from schedtop.engine.decide_again.restore import make_request, recorded_builder, restore, vocab_size
from schedtop.engine.decide_again.scenario import KnobEvent
from schedtop.engine.decide_again.server_log import driver_of
from schedtop.engine.handoff.request import Request
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.recording.reader import Recording
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.features import StepCost
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.clock import SimulatedClock
from schedtop.engine.step.engine import Engine
from schedtop.engine.workload.paced import Ask, PacedSource, Tempo
from schedtop.engine.workload.source import RequestSource

_NOT_TO_DECIDE = (AssertionError, IndexError, KeyError, RecordingError, ValueError)


class Fork:
    """Where a run branches off its recording: after record `index`. Every `engine` is the same, ready to continue.

    Its past is decided again, so that its queue, blocks and cache are the recorded ones. Where that cannot be (the
    recording begins late, another scheduler wrote it), the state is taken from `snapshot`, the one after the record;
    `notes` then say so. `cost` is how long steps take from there on; `seed` is the recorded device's.
    Raises `ConfigError` without a snapshot.
    """

    def __init__(
        self, recording: Recording, index: int, cost: StepCost, seed: int, snapshot: Snapshot | None = None
    ) -> None:
        self.recording, self.index, self.cost, self.seed = recording, index, cost, seed
        self.clock_s = recording.record(index).end_s
        self.notes: list[str] = []
        self._stopped: dict[int, int] = {}
        self._deferred: dict[int, Limiter] = {}
        self._ready: list[tuple[float, int]] = []
        later: list[Arrival] = []
        for record in recording.records(index + 1):
            later += record.arrivals
            new = {arrival.number for arrival in record.arrivals}
            for deferral in record.deferrals:
                if not deferral.reason:
                    self._ready.append((record.start_s, deferral.number))
                elif deferral.number in new:
                    self._deferred[deferral.number] = Limiter(deferral.reason)
            for finish in record.finishes:
                if finish.reason == FinishReason.STOP:
                    self._stopped[finish.number] = finish.output_tokens
        self.arrivals = [self._as_long(arrival) for arrival in later]
        self.events: tuple[KnobEvent, ...] = outside_events(recording, index, 0.0)
        self._snapshot = snapshot
        self._from_snapshot = False
        self._decided: Engine | None = None

    def engine(self, on_progress: Callable[[float], None] = lambda share: None) -> Engine:
        """An engine on simulated time whose source is everything that follows. `on_progress` gets the share done."""
        if not self._from_snapshot:
            try:
                if self._decided is None:
                    self._decided = self._decide_again(on_progress)
                engine = copied(self._decided)
                engine.source = self._source(engine.scheduler, request_of)
                engine.clock = SimulatedClock()
                if engine.tier is not None:
                    engine.tier.go_by(engine.clock.now_s)
            except _NOT_TO_DECIDE as error:
                if self._snapshot is None:
                    raise ConfigError(f"the state of this step cannot be built again: {error}") from None
                self._from_snapshot = True
                self.notes.append(
                    f"the state is taken from a snapshot, without knowing which free blocks were cached: {error}"
                )
        if self._from_snapshot:
            engine = self._restored()  # on a clock that its host's memory goes by, too
        engine.clock.skip_to(self.clock_s)
        engine.paused = False
        return engine

    def _as_long(self, arrival: Arrival) -> Arrival:
        """With the outputs it got, where the model later ended it."""
        return msgspec.structs.replace(arrival, max_tokens=self._stopped.get(arrival.number, arrival.max_tokens))

    # The past, replayed

    def _decide_again(self, on_progress: Callable[[float], None]) -> Engine:
        recording = self.recording
        snapshot, _ = recording.keyframe_before(0)
        if snapshot.step or snapshot.requests:
            raise ValueError(f"the recording begins at step {snapshot.step} of its engine")
        header = recording.header
        driver = driver_of(header, recording.path)
        worker = SimWorker(
            self.cost,
            vocab_size(header),
            self.seed,
            num_speculative_tokens=header.config.get("num_speculative_tokens") or 0,
            keeps_drafts=bool(header.config.get("async_scheduling")),
        )
        if header.simulated_clock:
            # Its outputs and drafts are known and continue unchanged.
            driver.engine.worker = worker
        ahead = driver.num_ahead
        for at, (record, following) in enumerate(
            islice(with_following(recording.records(), ahead), self.index + 1)
        ):
            if at % 64 == 0:
                on_progress(at / (self.index + 1))
            _play(driver, self._lengthened(record), following)
        engine = driver.engine
        worker.num_speculative_tokens = engine.knobs.get("num_speculative_tokens") or 0
        engine.worker = worker
        return engine

    def _lengthened(self, record: StepRecord) -> StepRecord:
        if not record.arrivals:
            return record
        return msgspec.structs.replace(record, arrivals=tuple(map(self._as_long, record.arrivals)))

    # Or restored from a snapshot

    def _restored(self) -> Engine:
        assert self._snapshot is not None
        header = self.recording.header
        requests = [
            msgspec.structs.replace(state, arrival=self._as_long(state.arrival))
            for state in self._snapshot.requests
        ]
        snapshot = msgspec.structs.replace(self._snapshot, requests=requests)
        engine = restore(header, snapshot, self.cost)
        engine.observer.step = snapshot.step
        builder = recorded_builder(header)
        engine.source = self._source(
            engine.scheduler, lambda arrival: make_request(builder, arrival, header.block_size)
        )
        return engine

    # What follows

    def _source(self, scheduler: Scheduler, build: Callable[[Arrival], Request]) -> RequestSource:
        arrivals = {arrival.number: arrival for arrival in self.arrivals}
        span_s = self.arrivals[-1].arrival_s - self.arrivals[0].arrival_s if self.arrivals else 0.0
        per_own_s = (len(self.arrivals) - 1) / span_s if span_s > 0 else None

        def made(ask: Ask, arrival_s: float) -> Request:
            request = build(msgspec.structs.replace(arrivals[ask.ordinal], arrival_s=arrival_s))
            request.deferred = self._deferred.get(ask.ordinal)
            return request

        description = {**self.recording.header.workload}
        paced = PacedSource(self._asks(), Tempo(per_own_s, 1.0), made, description)
        return ReadyingSource(paced, scheduler, self._ready) if self._ready else paced

    def _asks(self) -> Iterator[Ask]:
        """In the order in which they were taken; a client's clock may say otherwise."""
        at_s = 0.0
        for arrival in self.arrivals:
            at_s = max(at_s, arrival.arrival_s)
            yield Ask(at_s, arrival.number, arrival.id, arrival.prompt_tokens, arrival.max_tokens, arrival.priority)


class ReadyingSource:
    """A source that also lets deferred requests become ready when they did, by `ready`: clock and number, in order."""

    def __init__(self, source: RequestSource, scheduler: Scheduler, ready: Iterable[tuple[float, int]]) -> None:
        self.description = source.description
        self._source = source
        self._scheduler = scheduler
        self._ready = deque(ready)

    def take(self, clock_s: float, step: int) -> list[Request]:
        while self._ready and self._ready[0][0] <= clock_s:
            _, number = self._ready.popleft()
            request = self._scheduler.state.requests.get(number)
            # Late results are awaited at this engine's own pace.
            if request is not None and request.deferred is not Limiter.STALE_OUTPUT:
                self._scheduler.make_ready(number)
        return self._source.take(clock_s, step)

    def next_arrival_s(self) -> float | None:
        next_s = self._source.next_arrival_s()
        if not self._ready:
            return next_s
        return self._ready[0][0] if next_s is None else min(next_s, self._ready[0][0])

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        self._source.set_rate(rate, clock_s)


def copied(engine: Engine) -> Engine:
    """Another engine in the same state, without a workload. What never changes is shared."""
    state = engine.scheduler.state
    started = [entry.request for batch in state.under_way for entry in batch.planned.started]
    requests = [*state.requests.values(), *started]
    if (loads := state.loads) is not None:
        requests += [*loads.kept, *loads.failed, *loads.errors, *loads.done, *loads.sent]
    memo: dict[int, Any] = {id(request.key_hasher): request.key_hasher.copy() for request in requests}
    memo |= {id(request.prompt_token_ids): request.prompt_token_ids for request in requests}
    source, engine.source = engine.source, None
    copy = deepcopy(engine, memo)
    engine.source = source
    return copy


def _play(driver: Driver, record: StepRecord, following: Sequence[StepRecord]) -> None:
    """Replay a record. Raises `ValueError` if the outcome differs from the recorded one."""
    decided = driver.play(record, following)
    if decided is None or decided.rows != record.rows or decided.waiting != record.waiting:
        raise ValueError(f"step {record.step} is decided otherwise here")
