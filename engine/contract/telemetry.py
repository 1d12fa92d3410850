"""The engine's telemetry: one frozen record per step, and the messages around it.

Everything the console, recordings, reports and metrics show comes from these structs. They are encoded as
msgpack arrays, so a field may only be appended (with a default); any other change raises `PROTOCOL`.

Times ending in `_s` are seconds on the engine's clock (simulated or real), zero at the engine's start.
Requests are named by `number`, unique within a session; `Arrival` gives the text id that belongs to it.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import msgspec

PROTOCOL = 4
"""Version of everything here and in `commands.py`; both ends of a channel and a recording's reader compare it."""

OLDEST_RECORDED = 3
"""Oldest protocol of recordings that can still be read: what they lack is at its default."""

PREFIX_KEY_BYTES = 4
"""Of a prompt block's key. These bytes and those of all blocks before it identify a block, so two prompts look alike
by chance only if they part right there; keys do not compress, so their size is what recordings pay for."""

MOST_DRAFTS = 8
"""Draft tokens of a row in one step, as `num_speculative_tokens` allows."""


class Limiter(StrEnum):
    """What stopped the scheduler from scheduling more; also why the waiting head waits."""

    NONE = "none"
    TOKEN_BUDGET = "token_budget"
    INPUT_BUDGET = "input_budget"
    SEQUENCE_CAP = "sequence_cap"
    BLOCKS = "blocks"
    WATERMARK = "watermark"
    FULL_SEQUENCE = "full_sequence"
    CHUNKING_OFF = "chunking_off"
    PAUSED = "paused"
    PREEMPTED_NOW = "preempted_now"
    GRAMMAR = "grammar"
    REMOTE_KV = "remote_kv"
    STREAMING_INPUT = "streaming_input"
    STALE_OUTPUT = "stale_output"
    LORA = "lora"
    RESERVED = "reserved"
    ENCODER = "encoder"
    DP_THROTTLE = "dp_throttle"


DEFERRED = (Limiter.GRAMMAR, Limiter.REMOTE_KV, Limiter.STREAMING_INPUT, Limiter.STALE_OUTPUT)
"""Reasons why a request is not ready. Admission passes it over; it keeps its place."""


class FinishReason(StrEnum):
    """Why a request ended. `LENGTH` covers `max_tokens` and the model length.

    `STOP_OR_ABORT`: vLLM's front end ended it, on a stop string or because the client left; the engine cannot tell.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    KV_CAPACITY = "kv_capacity"
    REFUSED = "refused"
    ERROR = "error"
    REPETITION = "repetition"
    STOP_OR_ABORT = "stop_or_abort"


class BlockClass(IntEnum):
    """Every usable block is in exactly one of these."""

    EMPTY = 0
    CACHED_FREE = 1
    HELD = 2
    SHARED = 3


class RowFlag(IntEnum):
    """Bits of the `flags` field of a row."""

    DECODE = 1  # its one token without state is its newest; otherwise the row is prefill (or recompute)
    NEW = 2  # admitted for the first time in this step
    RESUMED = 4  # admitted again after a preemption in this step
    SAMPLED = 8  # the model's output at its last position was used
    LATE = 16  # the request had ended, or had been preempted, before the results came


ROW_FIELDS = ("request", "tokens", "drafts", "accepted", "computed", "needed", "emitted", "blocks", "flags")
"""Columns of `StepRecord.rows`: request number; tokens scheduled, of which drafts, of which the model agreed with so
many, whether or not all were delivered; tokens computed before the step; `num_tokens` when it was scheduled; outputs
delivered by the step; blocks held after scheduling; `RowFlag` bits."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of everything sent over a channel or stored in a recording."""


class Arrival(Message, frozen=True):
    """A request the scheduler received. `prefix_keys` joins `PREFIX_KEY_BYTES` of each full prompt block's key.

    `client` is the sender, where the request names it. `images` are offsets, lengths and names; `adapter` 0 is none,
    `adapter_name` what its workload calls it. `parent` is the same for requests that answer one question, as vLLM makes
    them of `n`.
    """

    number: int
    id: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    prefix_keys: bytes = b""
    client_wait_s: float | None = None
    preview: str = ""
    client: str = ""
    adapter: int = 0
    skip_reading_prefix_cache: bool = False
    images: tuple[tuple[int, int, str], ...] = ()
    adapter_name: str = ""
    parent: str = ""

    @property
    def adapter_label(self) -> str:
        """Its adapter's name; empty if it has none."""
        return self.adapter_name or (str(self.adapter) if self.adapter else "")


class Admission(Message, frozen=True):
    """A request taken from the queue. `cached_tokens` came from the prefix cache, of them `external_tokens` from the
    host's memory."""

    number: int
    cached_tokens: int
    waited_s: float
    resumed: bool = False
    external_tokens: int = 0


class Refusal(Message, frozen=True):
    """A request turned away at submission: what it needs, what there is, and `setting`, the flag that raises that."""

    number: int
    id: str
    reason: str
    need: int | None = None
    capacity: int | None = None
    setting: str = ""


class Finish(Message, frozen=True):
    """A request that ended, with the figures of its life (None where it has none).

    `ended_s`: when, where somebody outside a vLLM server's steps ended it.
    """

    number: int
    reason: str
    output_tokens: int
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    queue_s: float | None = None
    requeued_s: float = 0.0
    itl_p95_s: float | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    ended_s: float | None = None


class Preemption(Message, frozen=True):
    """One line of the preemption ledger. `usage_*` are shares of the pool; `was_planned`: already in the step;
    `swapped`: what it had is in the host's memory, not lost."""

    number: int
    count: int
    lost_tokens: int
    freed_blocks: int
    usage_before: float
    usage_after: float
    for_number: int
    was_planned: bool = False
    loop: bool = False
    swapped: bool = False


class Head(Message, frozen=True):
    """Why the head of the queue waits. `need`, `have` and `reserve` are blocks, tokens or requests by reason."""

    number: int
    reason: str
    need: int | None = None
    have: int | None = None
    reserve: int = 0
    inverted: bool = False
    since_s: float | None = None


class Deferral(Message, frozen=True):
    """A waiting request that is not ready, and why; an empty reason: it is ready now."""

    number: int
    reason: str = ""


class KnobChange(Message, frozen=True):
    """A limit changed at this step. `by` names the cause (a key, a command, a schedule)."""

    name: str
    old: Any
    new: Any
    by: str = ""


class Host(Message, frozen=True):
    """What the host gave the engine's process over the last `span_s` of wall time; None where unknown.

    `cpu` is processor time in cores, of all threads; `delay` the share of time in which the stepping thread was ready
    and waited for a processor. `gpu_busy` is a share, clocks are MHz.
    """

    span_s: float
    cpu: float
    delay: float | None = None
    gpu_busy: float | None = None
    gpu_clock_mhz: int | None = None
    gpu_top_clock_mhz: int | None = None


class Blocks(Message, frozen=True):
    """The pool after the step, when its finishers have freed theirs: the four classes add up to it. `stored_tokens` lie
    in held and shared blocks. See `blocks_in_use` for the instant after scheduling."""

    held: int
    shared: int
    cached_free: int
    empty: int
    stored_tokens: int
    watermark: int


class Totals(Message, frozen=True):
    """Counters since the session began, so that a gap in the records loses no total.

    `finished` ended by stop or length; `kv_capacity` were cut off by a full pool, `failed` ended by an error. `drafts`
    are rows that carried any; `accepted_draft_tokens` those that the model agreed with, delivered or not.
    `cache_queries` are prompt tokens of first admissions that looked into the prefix cache, `external_tokens` those of
    `cached_tokens` from the host's memory. `aborted_prefill_tokens` were computed for requests that were aborted
    before their first output.
    """

    steps: int = 0
    submitted: int = 0
    admitted: int = 0
    finished: int = 0
    refused: int = 0
    aborted: int = 0
    preemptions: int = 0
    submitted_prompt_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reused_tokens: int = 0
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0
    draft_tokens: int = 0
    rejected_draft_tokens: int = 0
    output_tokens: int = 0
    token_budget: int = 0
    input_rows: int = 0
    input_budget: int = 0
    busy_s: float = 0.0
    kv_capacity: int = 0
    drafts: int = 0
    accepted_draft_tokens: int = 0
    cache_queries: int = 0
    aborted_prefill_tokens: int = 0
    external_tokens: int = 0
    failed: int = 0


class StepRecord(Message, tag=1, frozen=True):
    """One step of the engine, whole. A record with `executed` false carries events of an idle engine.

    `rows` is an int32 matrix (`len(ROW_FIELDS)`, rows), every running request in order, admitted ones last;
    `itl_s` float32, one per row, NaN where the step delivered no second or later output. `grown` are int32 pairs: a
    request, and how many blocks its table gained, or holds from its admission on; `grown_blocks` the ids of those
    blocks (int32), end to end: see `table_growth`. `schedule_s` and `update_s` are None on a simulated clock, where
    they are part of the device's cost. `changed_blocks` is int32 `block * 4 + BlockClass`. `deferrals`: who became
    deferred or ready; `deferred`: how many of the waiting are, by reason. `blocks_in_use`: held and shared blocks
    right after scheduling, which is what the head met and the step ran with.
    Step n + 1 may be planned before the record of step n is written: at `planned_s`, on the clock. What was decided is
    of that time (`limiter`, `head`, rows, admissions, preemptions), what there is (`running`, `waiting`, `blocks`) of
    `end_s`. With several KV groups, `grown` has an entry for each that gained blocks, whose group is in `grown_groups`
    (uint8), and `group_blocks` are the blocks in each group's tables, a shared one counted by each holder.
    `turns` counts turns that followed the events of a record that is not `executed`, before those of the next record:
    steps were planned, none ran.
    `start_s` is not before the end of the step before; `execute_s` counts from when the device took it up.
    `paused_by` says who paused or resumed the engine since the last record.

    `host` comes about once a second of wall time. `host_blocks` is what the host's memory holds of the KV cache: blocks
    used, and all; loads and sends under way. `proposed` are int32 pairs: a request, and how many drafts it had before
    the step, where its row shows fewer: some were cut off, or all dropped with its place in the batch.
    `encoder_tokens`: of the images encoded in the step.
    """

    seq: int
    step: int
    executed: bool
    start_s: float
    end_s: float
    schedule_s: float | None
    execute_s: float
    update_s: float | None
    token_budget: int
    input_budget: int
    scheduled_tokens: int
    decode_tokens: int
    prefill_tokens: int
    draft_tokens: int
    recomputed_tokens: int
    input_rows: int
    limiter: str
    rows: bytes
    itl_s: bytes
    ttft_s: tuple[tuple[int, float], ...]
    running: int
    waiting: int
    oldest_wait_s: float | None
    head: Head | None
    blocks: Blocks
    changed_blocks: bytes
    grown: bytes
    grown_blocks: bytes
    arrivals: tuple[Arrival, ...]
    admissions: tuple[Admission, ...]
    refusals: tuple[Refusal, ...]
    finishes: tuple[Finish, ...]
    preemptions: tuple[Preemption, ...]
    knobs: tuple[KnobChange, ...]
    knobs_version: int
    paused: bool
    totals: Totals
    deferrals: tuple[Deferral, ...] = ()
    deferred: tuple[tuple[str, int], ...] = ()
    blocks_in_use: int | None = None
    planned_s: float | None = None
    grown_groups: bytes = b""
    group_blocks: tuple[int, ...] = ()
    host: tuple[Host, ...] = ()
    host_blocks: tuple[int, ...] = ()
    turns: int = 0
    paused_by: str = ""
    proposed: bytes = b""
    encoder_tokens: int = 0


class RequestState(Message, frozen=True):
    """A live request inside a snapshot. `table` is its block ids, int32; `further` those in the other KV groups."""

    arrival: Arrival
    status: str
    output_tokens: int
    computed_tokens: int
    cached_tokens: int
    preemptions: int
    first_scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    table: bytes
    queued_s: float | None = None
    requeued_s: float = 0.0
    deferred: str = ""
    further: tuple[bytes, ...] = ()


class Header(Message, tag=2, frozen=True):
    """Opens a channel and a recording: which engine this is. `config` and `workload` are plain JSON values.

    Where the last minutes follow on a channel, `newest_s` is the engine's clock at the newest record of them.

    `settings` is what else a run of the same engine needs: seed, parallel sizes, `vocab_size`; of a real model also
    `eos_token_ids` and the `sampling` it advises.
    """

    protocol: int
    engine: str
    engine_version: str
    model: str
    device: str
    policy: str
    block_size: int
    num_blocks: int
    max_model_len: int
    config: dict[str, Any]
    workload: dict[str, Any]
    started_at: float
    simulated_clock: bool
    source: str = "embedded"
    settings: dict[str, Any] = {}
    newest_s: float | None = None


class Trial(Message, frozen=True):
    """A knob change that the engine reverts unless it is confirmed, or at once when an SLO breaks.

    `before` is what it goes back to; `left_s` wall time remained when this was said, none once the trial is over.
    `slo_s` bounds the p95 of `ttft` and `itl`, seconds.
    """

    number: int
    values: dict[str, Any]
    before: dict[str, Any]
    left_s: float
    slo_s: dict[str, float] = {}


class UnderWay(Message, frozen=True):
    """A step in a snapshot that is planned, its results to come. Fields are what its record will say of the plan.

    `grown`: how many blocks each running request got, `grown_groups` how many of them in each KV group, where there
    are several. `gone`: requests that it admits and that have ended since.
    """

    planned_s: float
    rows: bytes
    token_budget: int
    input_budget: int
    limiter: str
    head: Head | None
    blocks_in_use: int
    recomputed_tokens: int
    grown: dict[int, int]
    admissions: tuple[Admission, ...]
    preemptions: tuple[Preemption, ...]
    ended: tuple[Finish, ...]
    grown_groups: dict[int, tuple[int, ...]] = {}
    gone: tuple[Arrival, ...] = ()
    encoder_tokens: int = 0


class HostLoad(Message, frozen=True):
    """A request that holds blocks ahead of the queue: `tokens` of it are in them, or will be at `due_s` (None: they
    are); `local_tokens` of those are from the pool. `first_lost`: place of the first block that will not come."""

    number: int
    tokens: int
    local_tokens: int
    due_s: float | None = None
    first_lost: int | None = None
    failed: bool = False


class HostTier(Message, frozen=True):
    """What the host's memory holds. `keys` joins the path keys (`prefixes.paths`) of its blocks, the longest unused
    first, those on their way to it last; `swapped` are tokens of preempted requests, by number.

    `loads` are the requests before the queue, in order; `free_s`: when the link is free to the pool, and to the host.
    `num_loads` have started so far.
    """

    keys: bytes = b""
    swapped: dict[int, int] = {}
    loads: tuple[HostLoad, ...] = ()
    free_s: tuple[float, float] = (0.0, 0.0)
    num_loads: int = 0


class Snapshot(Message, tag=3, frozen=True):
    """The whole present state: sent when a console joins or lost records, and as a recording's keyframe.

    `under_way`: steps that are planned, oldest first; `stages_free_s`: when each stage of a pipeline is through with
    what it has; `host`: the memory behind the pool, where there is one.
    """

    seq: int
    step: int
    clock_s: float
    requests: list[RequestState]
    waiting: list[int]
    running: list[int]
    block_classes: bytes
    knobs: dict[str, Any]
    knobs_version: int
    paused: bool
    totals: Totals
    dropped: int = 0
    trial: Trial | None = None
    under_way: tuple[UnderWay, ...] = ()
    stages_free_s: tuple[float, ...] = ()
    host: HostTier | None = None


class Stage(Message, tag=4, frozen=True):
    """The engine's current stage before it can serve."""

    name: str
    elapsed_s: float


WORKLOAD_ENDED = "the workload has ended"
"""The start of the notice of it."""


class Notice(Message, tag=5, frozen=True):
    """One line for the operator: something failed or was adjusted, and serving continues.

    `trial` is there where a change went on trial, or its trial ended.
    """

    level: str
    text: str
    trial: Trial | None = None


class TextDelta(Message, tag=6, frozen=True):
    """Output text of a request as it grows."""

    number: int
    text: str


class Reply(Message, tag=7, frozen=True):
    """The answer to one command.

    `number` answers a `Submit`: the request's, also where it can never be served (`ok` false); -1 if it was not
    taken, which may be different later.
    """

    command: int
    ok: bool
    text: str
    knobs_version: int
    warnings: list[str] = []
    number: int = -1


class Bye(Message, tag=8, frozen=True):
    """The engine ends, and why; the last message."""

    reason: str
    step: int


class Ending(Message, frozen=True):
    """A client's request has ended; `reason` is a `FinishReason`."""

    number: int
    reason: str
    cached_tokens: int = 0


class TokenLogprob(Message, frozen=True):
    """Log probability of an output, and those of the likeliest token ids, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Output(Message, tag=9, frozen=True):
    """What a step produced for the requests of one client.

    `numbers` are requests and `counts` how many tokens each got, both int32; `token_ids` (int32) are end to end in
    that order. `ends` are requests that end with these tokens. `logprobs`: of those who asked, one entry per token.
    """

    numbers: bytes
    counts: bytes
    token_ids: bytes
    ends: tuple[Ending, ...] = ()
    logprobs: tuple[tuple[int, tuple[TokenLogprob, ...]], ...] = ()


Outgoing = StepRecord | Header | Snapshot | Stage | Notice | TextDelta | Reply | Bye | Output
