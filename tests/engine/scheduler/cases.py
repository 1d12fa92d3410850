"""Random cases: small pools, small budgets, shared prefixes, so that every rule is met often."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from schedtop.engine.contract.config import KVConnector, SchedulerConfig
from schedtop.engine.contract.kv_groups import Entry, KVGroup
from schedtop.engine.golden.case import Case, CaseAbort, CaseKnob
from schedtop.engine.golden.case_requests import CaseExternal, CaseImage, CaseRequest

LAST_ARRIVAL = 15
LAST_EVENT = 40


@st.composite
def configs(draw: st.DrawFn, further: bool = False) -> SchedulerConfig:
    """Any scheduler that can schedule something; `further`: with KV groups, adapters and drafters' caches, too."""
    slots = draw(st.sampled_from([0, 0, 0, 1, 3]))
    block_size = draw(st.sampled_from([4, 1, 2, 4, 8, 16]))
    groups = draw(st.none() | st.none() | kv_groups(block_size)) if further else None
    drafts = draw(st.sampled_from([0, 0, 1, 2, 4]))
    drafter = further and drafts > 0 and draw(st.booleans())
    intervals = [None, None, 0, 2 * block_size, 4 * block_size] if further else [None]
    extra = draw(st.sampled_from(["", "", "adapters", "" if drafter else "images"])) if further else ""
    return SchedulerConfig(
        kv_groups=groups,
        prefix_cache_retention_interval=draw(st.sampled_from(intervals)),
        drop_last_cached_block=drafter,
        num_lookahead_tokens=drafts if drafter else 0,
        prefill_lookahead=draw(st.sampled_from([1, drafts])) if drafter else 0,
        encoder_budget=8 if extra == "images" else None,
        pooling=further and draw(st.sampled_from([False, False, False, True])),
        max_loras=draw(st.integers(1, 2)) if extra == "adapters" else 0,
        block_size=block_size,
        num_blocks=max(1, draw(st.integers(24, 96) | st.integers(1, 96)) // block_size),
        max_num_batched_tokens=draw(st.integers(slots + 1, 64)),
        max_num_scheduled_tokens=draw(st.none() | st.none() | st.integers(1, 64)),
        max_num_seqs=draw(st.sampled_from([8, 8, 1, 2, 3])),
        max_num_active_seqs=draw(st.sampled_from([None, None, None, None, 1, 3])),
        max_model_len=draw(st.just(120) | st.just(120) | st.integers(2, 120)),
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=draw(st.sampled_from([True, True, False])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.3, 0.5])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 8, 20])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        num_speculative_tokens=drafts,
        draft_slots=slots,
        sliding_window=draw(st.none() | st.none() | st.integers(1, 40)) if groups is None else None,
    )


def kv_groups(block_size: int) -> st.SearchStrategy[tuple[Entry, ...]]:
    """Layouts of some models; block sizes that divide twice the usual one."""
    window = st.integers(1, 40)
    twice = 2 * block_size
    return st.one_of(
        st.tuples(st.just("full"), window),
        st.tuples(st.just("full"), window, window),
        st.tuples(window, window),
        st.tuples(st.just("full"), st.just("full")),
        st.tuples(st.just("full"), st.builds(KVGroup, window=window, block_size=st.just(twice))),
        st.tuples(st.just(KVGroup(full=True, block_size=twice)), window),
        st.just(("full", KVGroup(mamba="align"))),
        st.just(("full", KVGroup(mamba="align"), KVGroup(mamba="align"))),
        st.just(("full", KVGroup(mamba="none"))),
    )


@st.composite
def prompt_parts(draw: st.DrawFn, own_seed: int) -> list[tuple[int, int]]:
    """A prompt that shares its beginning with others, or is another's, or is its own."""
    shared, own = draw(st.sampled_from([0, 4, 8, 16, 33])), draw(st.sampled_from([0, 1, 1, 2, 7, 20, 60]))
    parts = [(draw(st.integers(1, 2)), shared), (own_seed, own)]
    return [part for part in parts if part[1]]


@st.composite
def images(draw: st.DrawFn, parts: list[tuple[int, int]]) -> list[CaseImage]:
    """Images that any encoder can take, one after the other within the prompt; those of a name are alike."""
    found: list[CaseImage] = []
    place, end = draw(st.integers(0, 9)), sum(length for _, length in parts)
    for name, length in draw(st.lists(st.sampled_from([("cat", 3), ("dog", 8), (None, 5)]), max_size=3)):
        if place + length > end:
            break
        found.append(CaseImage(place, length, name))
        place += length + draw(st.sampled_from([0, 1, 7]))
    return found


def knob_values(config: SchedulerConfig) -> st.SearchStrategy[dict[str, Any]]:
    """A change of one or two live knobs, within what the engine would accept."""
    rows = st.integers(config.draft_slots + 1, 96)
    options: list[st.SearchStrategy[dict[str, Any]]] = [
        st.fixed_dictionaries({"max_num_batched_tokens": rows}),
        st.fixed_dictionaries({"max_num_scheduled_tokens": st.none() | st.integers(1, 80)}),
        st.fixed_dictionaries({"max_num_seqs": st.integers(1, 8)}),
        st.fixed_dictionaries({"max_num_active_seqs": st.none() | st.integers(1, 8)}),
        st.fixed_dictionaries({"long_prefill_token_threshold": st.sampled_from([0, 1, 2, 16])}),
        st.fixed_dictionaries({"watermark": st.sampled_from([0.0, 0.05, 0.25, 0.5])}),
        st.fixed_dictionaries({"scheduler_reserve_full_isl": st.booleans()}),
        st.fixed_dictionaries({"enable_prefix_caching": st.booleans()}),
        st.fixed_dictionaries({"num_speculative_tokens": st.integers(0, 8)}),
    ]
    one = st.one_of(options)
    return one | st.tuples(one, one).map(lambda pair: {**pair[0], **pair[1]})


@st.composite
def cases(draw: st.DrawFn, most_requests: int = 10) -> Case:
    """A case with requests, knob changes and aborts; some of its requests may be impossible."""
    config = draw(configs(further=True))
    count = draw(st.integers(3, most_requests) | st.integers(1, 3))
    prompts = [draw(prompt_parts(100 + ordinal)) for ordinal in range(count)]
    requests = [
        CaseRequest(
            id=f"r{ordinal}",
            arrival_step=draw(st.integers(0, LAST_ARRIVAL)),
            max_tokens=0 if config.pooling else draw(st.integers(8, 40) | st.integers(1, 40)),
            prompt_parts=parts,
            priority=draw(st.integers(0, 2)),
            lora=draw(st.sampled_from([None, None, 1, 2, 3])),
            cache_salt=draw(st.sampled_from([None, None, None, "red"])),
            images=draw(images(parts)) if config.encoder_budget else [],
            skip_reading_prefix_cache=draw(st.sampled_from([False, False, False, True])),
        )
        for ordinal, parts in enumerate(prompts)
    ]
    steps = st.integers(0, LAST_EVENT)
    knobs = st.lists(st.builds(CaseKnob, step=steps, set=knob_values(config)), max_size=4)
    ids = st.sampled_from([request.id for request in requests])
    aborts = st.lists(st.builds(CaseAbort, step=steps, id=ids), max_size=3)
    case = Case(config=config, requests=requests, name="random", knobs=draw(knobs), aborts=draw(aborts))
    return msgspec.structs.replace(case, requests=sorted(requests, key=lambda request: request.arrival_step))


@st.composite
def overlapped(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A case with several steps under way: planned ahead of results, over stages, or both."""
    case = draw(of)
    ahead, stages = draw(st.sampled_from([(True, 1), (True, 1), (True, 2), (True, 3), (False, 2), (False, 3)]))
    config = msgspec.structs.replace(case.config, async_scheduling=ahead, pipeline_depth=stages)
    knobs = case.knobs
    if not ahead:
        config = msgspec.structs.replace(
            config,
            num_speculative_tokens=0,
            drop_last_cached_block=False,
            num_lookahead_tokens=0,
            prefill_lookahead=0,
        )
        knobs = [knob for knob in knobs if "num_speculative_tokens" not in knob.set]
    if stages > 1:
        config = msgspec.structs.replace(config, max_loras=0)
    return msgspec.structs.replace(case, config=config, knobs=knobs)


@st.composite
def interrupted(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A case in which some requests become ready late, and some stop early."""
    case = draw(of)
    requests = [
        msgspec.structs.replace(
            asked,
            ready_step=draw(st.sampled_from([0, 0, asked.arrival_step + 1, asked.arrival_step + 9])),
            stop_after=None if case.config.pooling else draw(st.sampled_from([None, None, 1, 2, 7])),
        )
        for asked in case.requests
    ]
    return msgspec.structs.replace(case, requests=requests)


@st.composite
def deferred(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A case in which some requests are not ready when they come, and some end by a stop token."""
    case = draw(of)
    requests = [
        msgspec.structs.replace(
            request,
            ready_step=draw(st.sampled_from([0, 0, request.arrival_step + 1, request.arrival_step + 6])),
            stop_after=None if case.config.pooling else draw(st.sampled_from([None, None, 1, 2, 5])),
        )
        for request in case.requests
    ]
    return msgspec.structs.replace(case, requests=requests)


@st.composite
def connected(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A case with a store outside the pool: what it holds, how long loads and sends take, and which loads fail."""
    case = draw(of)
    mode = draw(st.sampled_from(["async", "async", "sync"]))
    connector = KVConnector(
        mode=mode,
        on_failure=draw(st.sampled_from(["recompute", "recompute", "fail"])),
        reuse=draw(st.booleans()),
        load_steps=draw(st.integers(0, 3)),
        send_steps=draw(st.sampled_from([0, 0, 2])),
    )
    groups = case.config.kv_groups
    if groups is not None and any(isinstance(group, KVGroup) and group.mamba for group in groups):
        groups = ("full", 9)
    config = msgspec.structs.replace(
        case.config,
        kv_connector=connector,
        kv_groups=groups,
        enable_prefix_caching=True,
        encoder_budget=None,
        pooling=False,
        num_lookahead_tokens=0,
        drop_last_cached_block=False,
        prefill_lookahead=0,
    )
    requests = [
        msgspec.structs.replace(
            request,
            max_tokens=max(request.max_tokens, 1),
            images=[],
            external=draw(st.none() | externals()) if _length(request) > 1 else None,
            send_steps=draw(st.sampled_from([None, None, 0, 1, 4])),
        )
        for request in case.requests
    ]
    return msgspec.structs.replace(case, config=config, requests=requests)


def _length(request: CaseRequest) -> int:
    return sum(length for _, length in request.prompt_parts)


@st.composite
def roomy(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A case whose pool holds any one request: alone, none has to give way to itself.

    Where it would, this scheduler waits for the results under way instead (`docs/scheduler.md`). Pooling requests have
    no drafts.
    """
    case = draw(of)
    config = case.config
    groups = len(config.kv_groups or (1,))
    blocks = groups * (-(-(config.max_model_len + 8) // config.block_size) + 3)
    drafts = 0 if config.pooling else config.num_speculative_tokens
    room = draw(st.sampled_from([1, 1, 2]))
    config = msgspec.structs.replace(config, num_blocks=room * blocks, num_speculative_tokens=drafts, watermark=0.0)
    knobs = [knob for knob in case.knobs if not {"watermark", "num_speculative_tokens"} & knob.set.keys()]
    return msgspec.structs.replace(case, config=config, knobs=knobs)


@st.composite
def externals(draw: st.DrawFn) -> CaseExternal:
    return CaseExternal(
        tokens=draw(st.sampled_from([1, 8, 16, 33, 60])),
        load_steps=draw(st.sampled_from([None, 0, 1, 5])),
        known_step=draw(st.sampled_from([0, 0, 0, 5])),
        fail_block=draw(st.sampled_from([None, None, None, "all", 0, 2])),
    )


def longest_run(case: Case) -> int:
    """Steps after which a case must have ended: some request advances in every step.

    First come first served, the oldest running request gets a token in each step and is never preempted for
    another; by priority, one that is may lose all its work to each more urgent one.
    """
    config = case.config
    work = [
        min(sum(length for _, length in request.prompt_parts) + request.max_tokens, config.max_model_len) + 2
        for request in case.requests
    ]
    times = len(work) if config.policy == "priority" else 1
    return LAST_ARRIVAL + LAST_EVENT + times * sum(work)
