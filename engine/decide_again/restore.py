"""From a snapshot back to an engine: the same requests, with the same progress, in the same places."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.prefixes.paths import recorded_keys
from schedtop.engine.contract.telemetry import Arrival, Header, Limiter, RequestState, Snapshot
from schedtop.engine.decide_again.under_way import set_out_again
from schedtop.engine.handoff.request import Image, Request, Status
from schedtop.engine.recording.arrivals import prefix_ids
from schedtop.engine.scheduler.books.ending import stop_at
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.features import StepCost
from schedtop.engine.sim.host_store import HostLink, HostStore, open_host_store
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.clock import SimulatedClock
from schedtop.engine.step.engine import Engine
from schedtop.engine.workload.build import RequestBuilder
from schedtop.engine.workload.paced import Ask

DEFAULT_VOCAB_SIZE = 32_000


def restore(header: Header, snapshot: Snapshot, cost: StepCost, recent: Sequence[Arrival] = ()) -> Engine:
    """An engine on simulated time, without a workload, that continues from `snapshot`.

    Tokens are made up: shared prefixes are shared again, contents are lost. Which blocks are cached but free is not
    in a snapshot; the prompts of `recent` arrivals (oldest first) are taken to have passed through the cache. What the
    host's memory holds is; blocks that are still on their way to it are there, and free in the pool.
    """
    config, clock = config_at(header, snapshot), SimulatedClock()
    tier = _open_tier(header, snapshot, config, clock)
    engine = Engine(
        Scheduler(config, tier),
        SimWorker(
            cost,
            vocab_size(header),
            num_speculative_tokens=snapshot.knobs.get("num_speculative_tokens", 0),
            keeps_drafts=bool(header.config.get("async_scheduling")),
        ),
        None,
        clock,
        header,
        tier,
    )
    engine.clock.skip_to(snapshot.clock_s)
    builder = recorded_builder(header)
    live = {state.arrival.number for state in snapshot.requests}
    for arrival in recent:
        if arrival.number not in live and arrival.prefix_keys:
            _pass_through_cache(engine.scheduler, make_request(builder, arrival, header.block_size))
    states = {state.arrival.number: state for state in snapshot.requests}
    requests = {number: _at_rest(builder, state, header.block_size) for number, state in states.items()}
    for number in snapshot.running:
        _run_again(engine.scheduler, requests[number], states[number], bool(snapshot.under_way))
    holding = _hold_again(engine.scheduler, snapshot, requests)
    for number in snapshot.waiting:
        requests[number].status = Status(states[number].status)
        if number in holding:
            continue
        deferred = states[number].deferred
        # A load missing from the snapshot starts again.
        loads_again = tier is not None and deferred == Limiter.REMOTE_KV
        requests[number].deferred = Limiter(deferred) if deferred and not loads_again else None
        engine.scheduler.state.waiting.add(requests[number])
    engine.scheduler.state.requests.update(requests)
    engine.scheduler.state.waiting.deferrals.clear()
    set_out_again(engine, snapshot, requests, lambda arrival: make_request(builder, arrival, header.block_size))
    engine.scheduler.state.kv.pool.discard_changes()
    engine.scheduler._next_number = max([*requests, *(arrival.number for arrival in recent)], default=-1) + 1
    return engine


def _open_tier(
    header: Header, snapshot: Snapshot, config: SchedulerConfig, clock: SimulatedClock
) -> HostStore | None:
    """The host tier with the snapshot's contents; empty for an older recording."""
    link = header.settings.get("host_link")
    if not link:
        return None
    tier = open_host_store(config, HostLink(*link), clock.now_s, int(header.settings.get("seed") or 0))
    if snapshot.host is not None:
        tier.take_over(snapshot.host)
    return tier


def _hold_again(scheduler: Scheduler, snapshot: Snapshot, requests: Mapping[int, Request]) -> set[int]:
    """Give blocks, while any are free, to requests that load or have just loaded; returns those that got them."""
    kv, loads = scheduler.state.kv, scheduler.state.loads
    held = set[int]()
    if snapshot.host is None or loads is None or not isinstance(loads.store, HostStore):
        return held
    for load in snapshot.host.loads:
        request = requests[load.number]
        hit = kv.look_up(request, load.tokens + 1)
        whole = msgspec.structs.replace(hit, num_tokens=load.tokens)
        if kv.shortage(whole, 0, load.tokens, full=False, reserve=False, reserved=0) is not None:
            continue
        kv.admit_load(request, whole)
        loads.take_over(request, load)
        if load.due_s is not None:
            loads.store.go_on_loading(request, load)
        held.add(load.number)
    return held


def config_at(header: Header, snapshot: Snapshot) -> SchedulerConfig:
    """The scheduler's settings, with the live knobs as in the snapshot."""
    fields = {**header.config, **snapshot.knobs}
    known = {name: value for name, value in fields.items() if name in SchedulerConfig.__struct_fields__}
    return msgspec.convert(known, SchedulerConfig)


def vocab_size(header: Header) -> int:
    """Tokens are made up below this."""
    return int(header.settings.get("vocab_size") or DEFAULT_VOCAB_SIZE)


def ask_of(arrival: Arrival, block_size: int, ordinal: int, own_s: float) -> Ask:
    """A request of the same lengths and prefix; the rest is unique, by `ordinal`."""
    keys = prefix_ids(arrival)
    return Ask(
        own_s,
        ordinal,
        arrival.id,
        arrival.prompt_tokens,
        arrival.max_tokens,
        arrival.priority,
        keys,
        block_size,
        adapter=arrival.adapter_label,
        images=tuple(Image(*image) for image in arrival.images),
        skip_reading_prefix_cache=arrival.skip_reading_prefix_cache,
        parent=arrival.parent,
        block_keys=tuple(recorded_keys(arrival.prefix_keys)),
    )


class RecordedBuilder(RequestBuilder):
    """Blocks of prompts keep the keys by which a recording and its snapshots know them (`recorded_keys`)."""

    def __call__(self, ask: Ask, arrival_s: float) -> Request:
        request = super().__call__(ask, arrival_s)
        if ask.shared is not None:
            request.block_keys = list(ask.block_keys[: len(ask.shared)])
            request.key_hasher = sha256(str(ask.ordinal).encode())
        return request


def recorded_builder(header: Header, seed: int = 0) -> RecordedBuilder:
    """Makes the requests of an engine that continues from a snapshot."""
    return RecordedBuilder(seed, vocab_size(header), header.max_model_len)


def make_request(builder: RequestBuilder, arrival: Arrival, block_size: int) -> Request:
    """The request that `arrival` describes, its number included."""
    request = builder(ask_of(arrival, block_size, arrival.number, arrival.arrival_s), arrival.arrival_s)
    request.number = arrival.number
    return request


def _at_rest(builder: RequestBuilder, state: RequestState, block_size: int) -> Request:
    request = make_request(builder, state.arrival, block_size)
    first = request.number * 7919  # modulo a prime: outputs unlike any other request's
    request.output_token_ids = array("i", [(first + i) % 31_991 for i in range(state.output_tokens)])
    request.gaps_s = array("f", [float("nan")] * state.output_tokens)
    request.cached_tokens = state.cached_tokens
    request.num_preemptions = state.preemptions
    request.first_scheduled_s = state.first_scheduled_s
    request.first_token_s = state.first_token_s
    request.last_token_s = state.last_token_s
    request.requeued_s = state.requeued_s
    request.queued_since_s = state.arrival.arrival_s if state.queued_s is None else state.queued_s
    if state.status == Status.PREEMPTED:
        request.high_water = max(request.num_tokens - 1, 0)
    return request


def _run_again(scheduler: Scheduler, request: Request, state: RequestState, under_way: bool) -> None:
    """Give a request its blocks and its row; without its blocks it waits, as if preempted."""
    books = scheduler.state
    computed, kv = state.computed_tokens, books.kv
    if not under_way:
        # As older recordings have it, and servers: steps under way are computed again.
        computed = min(computed, request.num_tokens - 1)
    hit = kv.look_up(request, min(computed + 1, request.num_tokens))
    if kv.shortage(hit, computed - hit.num_tokens, computed, full=False, reserve=False) is not None:
        request.status = Status.PREEMPTED
        books.waiting.put_back(request)
        return
    kv.admit(request, hit, computed - hit.num_tokens)
    kv.release_before_window(request, computed)
    request.status = Status.RUNNING
    known = min(computed, request.num_tokens)
    kv.register(request, known)
    row = books.table.append(request, computed, stop_at(books, request), kv.standing(request))
    books.table.next_full[row] = kv.next_full(known)
    books.table.decoding[row] = state.output_tokens > 0 and computed >= request.num_tokens - 1
    books.table.mid_prompt[row] = computed < request.num_tokens - 1


def _pass_through_cache(scheduler: Scheduler, request: Request) -> None:
    """Leave the full blocks of a prompt in the prefix cache, free to be reused."""
    kv = scheduler.state.kv
    num_full = request.num_prompt_tokens // kv.block_size
    hit = kv.look_up(request, request.num_prompt_tokens)
    missing = num_full * kv.block_size - hit.num_tokens
    if not kv.caching or missing < 0 or kv.shortage(hit, missing, missing, full=False, reserve=False) is not None:
        return
    kv.admit(request, hit, missing)
    kv.register(request, num_full * kv.block_size)
    kv.free(request)
