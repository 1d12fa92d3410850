"""Every setting of the scheduler, once: flags, validation, the console's knob panel and help derive from here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KnobValue = int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: type and bounds, what it trades, and vLLM's name for it.

    `low` and `high` are inclusive; `high` None means unbounded but for a ceiling (`ceiling` names the start-up
    setting that bounds it). `optional` knobs accept None, which means "as the default rule says". `also` is what the
    scheduler calls the limit, where that is another name. `follows` names the knob whose value this one has while it
    is None, and whose change makes it None again.
    """

    name: str
    kind: type
    default: KnobValue
    effect: str
    up: str
    down: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    live: bool = False
    optional: bool = False
    ceiling: str | None = None
    choices: tuple[str, ...] = ()
    flag: str = ""
    vllm: bool = True
    vllm_flag: str = ""
    step: float = 1
    also: str = ""
    follows: str = ""

    @property
    def option(self) -> str:
        """The command-line flag, spelt as vLLM's where it has one."""
        return self.flag or "--" + self.name.replace("_", "-")

    @property
    def vllm_option(self) -> str:
        """vLLM's own flag for it; empty where it has none."""
        return self.vllm_flag or (self.option if self.vllm else "")


class KnobError(ValueError):
    """A refused knob value; the text names the knob, the value and the bound."""


KNOBS: tuple[Knob, ...] = (
    Knob(
        "max_num_batched_tokens",
        int,
        2048,
        low=1,
        high=1 << 24,
        unit="tokens",
        live=True,
        ceiling="max_batched_tokens_ceiling",
        step=64,
        also="input_budget",
        effect="Rows of model input in one step; also sets the token budget.",
        up="Prompts drain faster: TTFT and throughput gain, ITL grows while prompts run.",
        down="Smaller prompt chunks: ITL is steadier, TTFT grows.",
    ),
    Knob(
        "max_num_scheduled_tokens",
        int,
        None,
        low=1,
        high=1 << 24,
        unit="tokens",
        live=True,
        optional=True,
        step=64,
        ceiling="max_batched_tokens_ceiling",
        also="token_budget",
        follows="max_num_batched_tokens",
        effect="Tokens of work in one step; as max_num_batched_tokens unless set.",
        up="More prompt work beside each decode: better TTFT, longer steps.",
        down="Shorter steps: smoother ITL, slower prompts.",
    ),
    Knob(
        "max_num_seqs",
        int,
        128,
        low=1,
        high=1 << 16,
        unit="requests",
        live=True,
        ceiling="max_seqs_ceiling",
        effect="Requests that may run at once; a lower value drains, nothing running is stopped.",
        up="Shorter queue and more throughput while blocks last; more preemptions when they do not.",
        down="Fewer requests compete for blocks: fewer preemptions, a longer queue.",
    ),
    Knob(
        "max_num_active_seqs",
        int,
        None,
        low=1,
        high=1 << 16,
        unit="requests",
        live=True,
        optional=True,
        also="seq_cap",
        follows="max_num_seqs",
        ceiling="max_seqs_ceiling",
        effect="Admission cap below max_num_seqs; as max_num_seqs unless set.",
        up="Admits sooner.",
        down="Holds new requests back, leaves the buffers as they are.",
    ),
    Knob(
        "long_prefill_token_threshold",
        int,
        0,
        low=0,
        high=1 << 24,
        unit="tokens",
        live=True,
        step=64,
        effect="Most tokens of one request in one step while others are there; 0 is off.",
        up="Long prompts finish sooner and crowd the others more.",
        down="Long prompts leave room for short ones behind them.",
    ),
    Knob(
        "watermark",
        float,
        0.0,
        low=0.0,
        high=0.5,
        unit="share of blocks",
        live=True,
        step=0.01,
        effect="Blocks that admission leaves free while anything runs.",
        up="Headroom for growth: fewer preemptions, later admission.",
        down="Fuller pool: earlier admission, more preemptions.",
    ),
    Knob(
        "scheduler_reserve_full_isl",
        bool,
        True,
        live=True,
        also="reserve_full_isl",
        effect="Admit only if the whole sequence so far fits, not just its next chunk.",
        up="No admission that must be undone half-way through its prompt.",
        down="Earlier starts on long prompts; they may be preempted before their first token.",
    ),
    Knob(
        "enable_prefix_caching",
        bool,
        True,
        live=True,
        effect="Reuse blocks of equal prefixes.",
        up="Shared prefixes are computed once.",
        down="No hits; no hashing cost.",
    ),
    Knob(
        "num_speculative_tokens",
        int,
        0,
        low=0,
        high=8,
        unit="tokens",
        live=True,
        vllm_flag="--spec-tokens",
        effect="Draft tokens verified per request and step.",
        up="Fewer steps per output where drafts are accepted; rejected drafts take budget.",
        down="No wasted rows when text is unpredictable or the batch is large.",
    ),
    Knob(
        "rate",
        float,
        None,
        low=0.0,
        high=1e6,
        unit="requests/s",
        live=True,
        optional=True,
        vllm=False,
        step=0.5,
        effect="Arrival rate of the generated workload; a trace is scaled to it.",
        up="More load.",
        down="Less load.",
    ),
    Knob(
        "policy",
        str,
        "fcfs",
        choices=("fcfs", "priority"),
        flag="--scheduling-policy",
        effect="Order of the queue and choice of the victim. Under priority a lower number is more urgent.",
        up="",
        down="",
    ),
    Knob(
        "block_size",
        int,
        16,
        low=1,
        high=1 << 14,
        unit="tokens",
        effect="Tokens per KV block.",
        up="Fewer, larger blocks: less bookkeeping, coarser sharing.",
        down="Finer sharing, more blocks.",
    ),
    Knob(
        "num_blocks",
        int,
        None,
        low=1,
        high=1 << 24,
        unit="blocks",
        optional=True,
        vllm=False,
        vllm_flag="--num-gpu-blocks-override",
        effect="Usable KV blocks; from the device's memory unless set.",
        up="More requests fit at once.",
        down="A smaller pool, to see it under pressure.",
    ),
    Knob(
        "max_model_len",
        int,
        None,
        low=2,
        high=1 << 24,
        unit="tokens",
        optional=True,
        effect="Longest sequence, prompt and outputs together; the model's own unless set.",
        up="",
        down="",
    ),
    Knob(
        "enable_chunked_prefill",
        bool,
        True,
        effect="Split prompts that do not fit a step's budget.",
        up="",
        down="",
    ),
    Knob(
        "long_prefill_token_threshold_adaptive",
        bool,
        False,
        effect="Raise the threshold when few requests share the step.",
        up="",
        down="",
    ),
    Knob(
        "draft_slots",
        int,
        0,
        low=0,
        high=1 << 16,
        unit="rows",
        vllm=False,
        effect="Rows of input a drafter appends per request.",
        up="",
        down="",
    ),
    Knob(
        "sliding_window",
        int,
        None,
        low=1,
        high=1 << 24,
        unit="tokens",
        optional=True,
        vllm=False,
        effect="Attention window; blocks before it are released.",
        up="",
        down="",
    ),
    Knob(
        "disable_hybrid_kv_cache_manager",
        bool,
        False,
        effect="Keep the state of all layers alike: those with a sliding window keep everything, too.",
        up="Any prefix can be found again; windowed layers hold blocks that nothing reads.",
        down="Windowed layers give blocks back behind their window.",
    ),
    Knob(
        "prefix_cache_retention_interval",
        int,
        None,
        low=0,
        high=1 << 24,
        unit="tokens",
        optional=True,
        effect="With windows: keep what a prefix of each multiple of it needs, not just that of a whole prompt (0).",
        up="",
        down="",
    ),
    Knob(
        "kv_host_memory_bytes",
        int,
        0,
        low=0,
        high=1 << 46,
        unit="bytes",
        flag="--kv-host-memory",
        vllm=False,
        step=1 << 30,
        effect="Host memory that keeps the KV state of ended requests, as 16GiB; 0 is none. For simulated devices.",
        up="Longer-lived prefixes: what the pool evicted is loaded instead of computed.",
        down="Less memory; more is computed again.",
    ),
    Knob(
        "kv_load_failure_policy",
        str,
        "recompute",
        choices=("recompute", "fail"),
        effect="After a failed load from the host's memory: compute what was lost, or end the request.",
        up="",
        down="",
    ),
    Knob(
        "kv_load_failure_rate",
        float,
        0.0,
        low=0.0,
        high=1.0,
        unit="share of loads",
        vllm=False,
        step=0.01,
        effect="Loads from the host's memory that fail, to see what that does.",
        up="",
        down="",
    ),
    Knob(
        "preemption_mode",
        str,
        "recompute",
        choices=("recompute", "swap"),
        effect="A preempted request's state is dropped and computed again, or copied to the host's memory and back.",
        up="",
        down="",
    ),
    Knob(
        "encoder_budget",
        int,
        None,
        low=1,
        high=1 << 24,
        unit="tokens",
        optional=True,
        vllm=False,
        effect="Image tokens that one step encodes; as max_num_batched_tokens where requests have images.",
        up="Images are encoded sooner.",
        down="Fewer images in one step; chunks end before one that has no room.",
    ),
    Knob(
        "encoder_cache",
        int,
        None,
        low=1,
        high=1 << 24,
        unit="tokens",
        optional=True,
        vllm=False,
        effect="Image tokens kept until the prompt has passed them; as encoder_budget unless set.",
        up="More images wait encoded.",
        down="An image waits until others have been passed.",
    ),
    Knob(
        "disable_chunked_mm_input",
        bool,
        False,
        effect="Let no chunk of a prompt end inside an image.",
        up="",
        down="",
    ),
    Knob(
        "pooling",
        bool,
        False,
        vllm=False,
        effect="Requests have no outputs and end with their prompt, as for embeddings. For simulated devices.",
        up="",
        down="",
    ),
    Knob(
        "max_loras",
        int,
        0,
        low=0,
        high=1 << 16,
        unit="adapters",
        effect="LoRA adapters that one step can compute together; 0: they are not counted. For simulated devices.",
        up="Fewer requests wait for a slot of their adapter.",
        down="Fewer adapters share a step; others are passed over.",
    ),
    Knob(
        "async_scheduling",
        bool,
        None,
        optional=True,
        effect="Plan the next step while this one runs; for simulated devices.",
        up="The device does not wait for the scheduler; what arrives waits one step longer.",
        down="Each step is planned after the results of the one before.",
    ),
    Knob(
        "max_batched_tokens_ceiling",
        int,
        None,
        low=1,
        high=1 << 24,
        unit="tokens",
        optional=True,
        vllm=False,
        effect="Most that max_num_batched_tokens may be raised to while running.",
        up="",
        down="",
    ),
    Knob(
        "max_seqs_ceiling",
        int,
        None,
        low=1,
        high=1 << 16,
        unit="requests",
        optional=True,
        vllm=False,
        effect="Most that max_num_seqs may be raised to while running.",
        up="",
        down="",
    ),
)

BY_NAME: Mapping[str, Knob] = {knob.name: knob for knob in KNOBS}
LIVE: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.live)


def check_value(
    name: str, value: Any, ceilings: Mapping[str, int | None] | None = None, called: str = ""
) -> KnobValue:
    """`value` as the knob's type; raises `KnobError` for an unknown name, a wrong type or a value out of bounds.

    `ceilings` maps the names of ceiling settings to their start-up values. `called`: what the user calls the knob
    where that is not its name.
    """
    knob = BY_NAME.get(name)
    if knob is None:
        raise KnobError(_unknown(name))
    if value is None:
        if knob.optional:
            return None
        raise KnobError(f"{called or name} needs a value")
    typed = _typed(knob, value, called or name)
    if knob.choices and typed not in knob.choices:
        raise KnobError(f"{called or name}={typed}: must be one of {', '.join(knob.choices)}")
    low, high, source = bounds(knob, ceilings or {})
    if isinstance(typed, int | float) and not isinstance(typed, bool):
        if low is not None and typed < low:
            raise KnobError(f"{called or name}={typed}: must be at least {low}")
        if high is not None and typed > high:
            raise KnobError(f"{called or name}={typed}: must be at most {high} ({source})")
    return typed


def _unknown(name: str) -> str:
    from schedtop.engine.contract.nearest_name import (
        nearest,  # whoever imports the table loads nothing else of the engine
    )

    known = {spelt: knob.name for knob in KNOBS for spelt in (knob.also, knob.flag.strip("-"), knob.name) if spelt}
    near = nearest(name, known)
    hint = "" if near is None else f"did you mean {known[near]}? "
    return f"no knob is called {name!r}: {hint}`schedtop run --help` lists them"


def bounds(knob: Knob, ceilings: Mapping[str, int | None]) -> tuple[float | None, float | None, str]:
    """Lowest and highest value of a knob (None: unbounded), and where the highest comes from."""
    ceiling = ceilings.get(knob.ceiling) if knob.ceiling else None
    if ceiling is not None and (knob.high is None or ceiling <= knob.high):
        return knob.low, ceiling, f"start-up ceiling {knob.ceiling}"
    return knob.low, knob.high, "the knob's range"


def live_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The live knobs among `values`, in the table's order."""
    return {knob.name: values[knob.name] for knob in LIVE if knob.name in values}


def with_followers(change: Mapping[str, Any]) -> dict[str, Any]:
    """A change with its consequences: a knob that follows a changed one becomes None unless it is given too."""
    taken_along = {knob.name: None for knob in LIVE if knob.follows in change and knob.name not in change}
    return {**change, **taken_along}


def in_force(values: Mapping[str, Any], name: str) -> Any:
    """The value a knob has among `values`: its own, or that of the knob it follows."""
    value, follows = values.get(name), BY_NAME[name].follows
    return in_force(values, follows) if value is None and follows else value


def parse_assignments(items: Iterable[str]) -> dict[str, str]:
    """`name=value` strings as a dict; raises `KnobError` for one without `=` and for a repeated name."""
    pairs: dict[str, str] = {}
    for item in items:
        name, sep, value = item.partition("=")
        if not sep:
            raise KnobError(f"{item!r}: write name=value")
        if (name := name.strip()) in pairs:
            raise KnobError(f"{name} is set twice: give it one value")
        pairs[name] = value.strip()
    return pairs


def _typed(knob: Knob, value: Any, called: str) -> int | float | bool | str:
    try:
        if knob.kind is bool:
            return value if isinstance(value, bool) else _TRUTH[str(value).strip().lower()]
        if knob.kind is int:
            return _as_int(as_bytes(value) if knob.unit == "bytes" else value)
        if knob.kind is float:
            number = float(value)
            if isinstance(value, bool) or number != number or number in (float("inf"), float("-inf")):
                raise ValueError
            return number
        return str(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        if knob.unit == "bytes":
            raise KnobError(f"{called}={value!r}: must be bytes, as in 500MB or 16GiB") from None
        kind = {bool: "true or false", int: "a whole number", float: "a finite number"}.get(knob.kind, "text")
        raise KnobError(f"{called}={value!r}: must be {kind}") from None


_TRUTH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
_SIZE = re.compile(r"(\d+\.?\d*)\s*([kmgt]?)(i?b)?")


def as_bytes(value: Any) -> Any:
    """`2GiB` or `500M` as a number of bytes; anything else as it is."""
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        return value
    base = 1024 if match[3] == "ib" or not match[3] else 1000
    return int(float(match[1]) * base ** " kmgt".index(match[2] or " "))


def _as_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)
