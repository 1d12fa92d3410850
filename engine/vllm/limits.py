"""What a vLLM scheduler can do, by capability, and how its limits are read and set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schedtop.engine.contract.telemetry import PROTOCOL, Header
from schedtop.engine.vllm.events import Applied
from schedtop.engine.vllm.groups import block_size_of, keys_are_blocks, settings_of, specs_of, undecided_of

QUEUES = ("kv_holding_waiting", "skipped_waiting", "waiting")
"""In the order in which they are served; no version has all of them."""

_CAPABILITIES = {
    "max_num_active_reqs": "a lower max_num_seqs is set again before each step",
    "set_pause_state": "admissions cannot be paused",
    "_preempt_request": "preemptions do not give lost tokens or the beneficiary",
    "scheduler_reserve_full_isl": "the full-sequence check cannot be changed",
}
"""What a scheduler may lack, and what is lost without it."""


@dataclass(slots=True)
class ServerFacts:
    """A scheduler at its start. `missing` says in words what its version cannot report or do.

    `keys_are_blocks`: one hash per block, so that equal prefixes can be recognised. `cap` is an admission cap that a
    scheduler without one of its own is given again before each step.
    """

    header: Header
    knobs: dict[str, Any]
    reports_preemptions: bool
    keys_are_blocks: bool
    missing: list[str] = field(default_factory=list)
    cap: int | None = None
    pause_found: Any = None

    @classmethod
    def of(cls, scheduler: Any) -> ServerFacts:
        """Raises `AttributeError` for a scheduler without the parts every version has."""
        missing = [words for name, words in _CAPABILITIES.items() if not hasattr(scheduler, name)]
        if not hasattr(scheduler.kv_cache_manager, "watermark_blocks"):
            missing.append("there is no watermark")
        config = scheduler_settings(scheduler)
        return cls(
            header=_header(scheduler, config, missing),
            knobs=_knobs(scheduler, config),
            reports_preemptions=hasattr(scheduler, "_preempt_request"),
            keys_are_blocks=keys_are_blocks(scheduler),
            missing=missing,
        )

    @staticmethod
    def queues(scheduler: Any) -> list[Any]:
        """Its queues of waiting requests."""
        return [getattr(scheduler, name) for name in QUEUES if hasattr(scheduler, name)]

    @staticmethod
    def skipped(scheduler: Any) -> Any:
        """Waiting requests that the last schedule passed over."""
        return getattr(scheduler, "deferred_waiting", ())

    @staticmethod
    def is_paused(scheduler: Any) -> bool:
        """Whether admissions, or everything, are paused, by anyone."""
        return bool(getattr(scheduler, "pause_state", 0))


def limits_of(scheduler: Any, cap: int | None = None) -> tuple[int, int, int, int, bool, int]:
    """Token budget, input budget, admission cap, long-prefill threshold, full-sequence check, watermark in blocks."""
    config = scheduler.scheduler_config
    return (
        scheduler.max_num_scheduled_tokens,
        config.max_num_batched_tokens,
        getattr(scheduler, "max_num_active_reqs", cap or scheduler.max_num_running_reqs),
        config.long_prefill_token_threshold,
        getattr(scheduler, "scheduler_reserve_full_isl", False),
        getattr(scheduler.kv_cache_manager, "watermark_blocks", 0),
    )


def scheduler_settings(scheduler: Any) -> dict[str, Any]:
    """Its start-up settings under this project's names (which are vLLM's)."""
    config, vllm_config = scheduler.scheduler_config, scheduler.vllm_config
    speculative = getattr(vllm_config, "speculative_config", None)
    most_tokens, most_seqs = config.max_num_batched_tokens, scheduler.max_num_running_reqs
    token_budget = scheduler.max_num_scheduled_tokens
    cap = getattr(scheduler, "max_num_active_reqs", most_seqs)
    return {
        "num_blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,  # block 0 is never handed out
        "block_size": block_size_of(scheduler),
        "max_num_batched_tokens": most_tokens,
        "max_num_scheduled_tokens": None if token_budget == most_tokens else token_budget,
        "max_num_seqs": most_seqs,
        "max_num_active_seqs": None if cap == most_seqs else cap,
        "max_model_len": scheduler.max_model_len,
        "enable_prefix_caching": bool(scheduler.kv_cache_manager.enable_caching),
        "enable_chunked_prefill": bool(getattr(config, "enable_chunked_prefill", True)),
        "policy": getattr(scheduler.policy, "value", str(scheduler.policy)),
        "watermark": float(getattr(config, "watermark", 0.0) or 0.0),
        "scheduler_reserve_full_isl": bool(getattr(scheduler, "scheduler_reserve_full_isl", False)),
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "long_prefill_token_threshold_adaptive": bool(getattr(scheduler, "adaptive_long_prefill_threshold", False)),
        "num_speculative_tokens": int(getattr(scheduler, "num_spec_tokens", 0) or 0),
        **_drafter(scheduler),
        "draft_slots": int(getattr(speculative, "max_num_new_slots_for_drafting", 0) or 0),
        "async_scheduling": is_async(scheduler),
        "pooling": _pools(scheduler),
        "max_batched_tokens_ceiling": most_tokens,
        "max_seqs_ceiling": most_seqs,
        **settings_of(scheduler),
    }


def _pools(scheduler: Any) -> bool:
    """Whether its requests have no outputs and end with their prompts."""
    return bool(getattr(scheduler.vllm_config.model_config, "runner_type", "") == "pooling")


def _drafter(scheduler: Any) -> dict[str, Any]:
    """How far a drafter with a cache of its own (EAGLE, MTP) reaches into the blocks."""
    drops = getattr(scheduler, "use_eagle_block_drop", getattr(scheduler, "use_eagle", False))
    return {
        "drop_last_cached_block": bool(drops),
        "num_lookahead_tokens": int(getattr(scheduler, "num_lookahead_tokens", 0) or 0),
        "prefill_lookahead": int(getattr(scheduler, "num_prefill_lookahead", 0) or 0),
    }


def _knobs(scheduler: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs available here, at their start-up values."""
    names = ["max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_seqs", "long_prefill_token_threshold"]
    if hasattr(scheduler.kv_cache_manager, "watermark_blocks"):
        names.append("watermark")
    if hasattr(scheduler, "scheduler_reserve_full_isl"):
        names.append("scheduler_reserve_full_isl")
    knobs = {name: config[name] for name in names}
    return {**knobs, "max_num_seqs": config["max_num_active_seqs"] or config["max_num_seqs"]}


def _header(scheduler: Any, config: dict[str, Any], missing: list[str]) -> Header:
    vllm_config = scheduler.vllm_config
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    device = getattr(getattr(vllm_config, "device_config", None), "device_type", None) or "gpu"
    return Header(
        protocol=PROTOCOL,
        engine="vllm",
        engine_version=_version(),
        model=getattr(model, "served_model_name", None) or getattr(model, "model", "") or "",
        device=str(device),
        policy=config["policy"],
        block_size=config["block_size"],
        num_blocks=config["num_blocks"],
        max_model_len=config["max_model_len"],
        config=config,
        workload={},
        started_at=time.time(),
        simulated_clock=False,
        source="vllm",
        settings={
            "tensor_parallel_size": getattr(parallel, "tensor_parallel_size", 1),
            "pipeline_parallel_size": getattr(parallel, "pipeline_parallel_size", 1),
            "vocab_size": int(getattr(getattr(model, "hf_text_config", None), "vocab_size", 0) or 0),
            "rank": rank_of(vllm_config),
            "missing": missing,
            "undecidable": _undecidable(scheduler),
        },
    )


def is_async(scheduler: Any) -> bool:
    """Whether a step is decided while the one before still runs."""
    return bool(getattr(scheduler.scheduler_config, "async_scheduling", False))


def rank_of(vllm_config: Any) -> int:
    """Which of several data-parallel engines this is."""
    parallel = vllm_config.parallel_config
    rank = getattr(parallel, "data_parallel_index", None)
    return int(getattr(parallel, "data_parallel_rank", 0) if rank is None else rank)


def _undecidable(scheduler: Any) -> list[str]:
    """What this server does that makes its recordings impossible to verify."""
    vllm_config, found = scheduler.vllm_config, undecided_of(scheduler)
    if getattr(scheduler, "connector", None) is not None:
        found.append("a KV connector")
    if getattr(vllm_config, "lora_config", None) is not None:
        found.append("LoRA")
    if getattr(scheduler, "dynamic_sd_lookup", None) is not None:
        found.append("a number of drafts that follows the batch")
    if _pools(scheduler) and is_async(scheduler):  # which vLLM advises against: it plans a row for nothing
        found.append("a pooling model under asynchronous scheduling")
    if getattr(vllm_config, "diffusion_config", None) is not None:
        found.append("diffusion")
    coordinator = getattr(scheduler.kv_cache_manager, "coordinator", None)
    marked = getattr(coordinator, "eagle_group_ids", ())
    if marked and len(marked) < len(specs_of(scheduler)):
        found.append("a drafter that keeps its state in some of the KV groups")
    if getattr(scheduler, "max_num_encoder_input_tokens", 0):
        found.append("multimodal inputs")
    if getattr(vllm_config.parallel_config, "pipeline_parallel_size", 1) > 1:
        found.append("pipeline parallelism")
    if getattr(vllm_config.parallel_config, "data_parallel_size", 1) > 1:
        found.append("data parallelism, where prefills may be throttled")
    return found


def _version() -> str:
    try:
        from vllm.version import __version__
    except Exception:  # an installation from source may have none
        return "unknown"
    return str(__version__)


def set_limits(hook: Any, values: Mapping[str, Any], by: str) -> None:
    """Set checked limits, on the engine's thread."""
    error = ""
    try:
        for name, value in values.items():
            _set(hook, name, value)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    hook.log.append(Applied(hook.now_s(), dict(values), by, error))


def _set(hook: Any, name: str, value: Any) -> None:
    scheduler = hook.scheduler
    config = scheduler.scheduler_config
    match name:
        case "max_num_batched_tokens":
            config.max_num_batched_tokens = value
        case "max_num_scheduled_tokens":
            # Work beyond the input budget would trip an assertion of vLLM's.
            scheduler.max_num_scheduled_tokens = min(value or 1 << 30, config.max_num_batched_tokens)
        case "max_num_seqs":
            # Never max_num_running_reqs itself below what runs: vLLM asserts it, and its death is every client's.
            if hasattr(scheduler, "max_num_active_reqs"):
                scheduler.max_num_active_reqs = value
            else:
                hook.facts.cap = value
        case "long_prefill_token_threshold":
            config.long_prefill_token_threshold = value
        case "watermark":
            manager = scheduler.kv_cache_manager
            manager.watermark_blocks = int(value * manager.block_pool.num_gpu_blocks)
        case "scheduler_reserve_full_isl":
            scheduler.scheduler_reserve_full_isl = value
        case _:
            raise ValueError(f"{name} cannot be set here")


def hold_cap(facts: ServerFacts, scheduler: Any) -> None:
    """Before 0.32 admission stops at equality, so a lower cap follows what still runs."""
    if facts.cap is not None:
        scheduler.max_num_running_reqs = max(facts.cap, len(scheduler.running))


def set_pause(facts: ServerFacts, scheduler: Any, paused: bool) -> None:
    """Pause admissions, or take our own pause back: /pause, sleep and weight updates share the same state."""
    state = scheduler.pause_state
    states = type(state)
    if paused and state == states.UNPAUSED:
        facts.pause_found = state
        scheduler.set_pause_state(states.PAUSED_NEW)
    elif not paused and facts.pause_found is not None and state == states.PAUSED_NEW:
        scheduler.set_pause_state(facts.pause_found)
    if not paused:
        facts.pause_found = None
