"""Start-up settings, frozen and checked once. A changed value is a new object, never an edit."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from schedtop.engine.contract import knobs
from schedtop.engine.contract.kv_groups import Entry, GroupError, KVGroup, common_size, read_groups


class ConfigError(ValueError):
    """An unusable setting; the text names it and says what to do."""


class KVConnector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A store outside the pool. `reuse`: it answers at every admission, else until its first load began.

    `load_steps` and `send_steps` are what requests take that say nothing of their own.
    """

    mode: Literal["async", "sync"] = "async"
    on_failure: Literal["recompute", "fail"] = "recompute"
    role: Literal["kv_both", "kv_consumer", "kv_producer"] = "kv_both"
    reuse: bool = False
    load_steps: int = 0
    send_steps: int = 0


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the scheduler and its pool. Names are vLLM's; `knobs.py` describes each.

    `cache_unexecuted_blocks`: under priority, a request can be preempted after the step had planned it; vLLM keeps
    the prefix-cache entries of blocks that the step would have filled. Decisions equal vLLM's only with them,
    outputs are right only without: an engine that runs a real model turns this off. `pipeline_depth`: stages that each
    hold a batch; with `async_scheduling`, a further step is planned while they run.

    `kv_groups`: groups of layers that keep state alike, instead of one; each "full", a window in tokens, or a
    `KVGroup`; with `disable_hybrid_kv_cache_manager` all layers keep everything in one.
    `prefix_cache_retention_interval`: window and Mamba groups keep in the cache what lies behind each multiple of it
    and behind the prompt's end (0: the latter alone; None: all). A drafter with its own cache (EAGLE, MTP) makes
    a hit lose its last block (`drop_last_cached_block`), needs slots for `num_lookahead_tokens` more, and must not be
    left with fewer than `prefill_lookahead` tokens of a prompt. `max_loras`: adapters that one step can compute
    together; 0: no limit. `pooling`: requests have no outputs and end with their prompt. `encoder_budget`: image
    tokens per step, `encoder_cache` those kept (None: the budget); with `disable_chunked_mm_input` no chunk ends
    inside an image; `refuses_images`: one that can never fit is turned away with its request, which would otherwise
    stand before it. `own_model_len`: what the model itself takes at most, where that is known.
    """

    num_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    max_num_seqs: int = 128
    max_num_active_seqs: int | None = None
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    num_speculative_tokens: int = 0
    draft_slots: int = 0
    sliding_window: int | None = None
    max_batched_tokens_ceiling: int | None = None
    max_seqs_ceiling: int | None = None
    cache_unexecuted_blocks: bool = True
    kv_groups: tuple[Entry, ...] | None = None
    disable_hybrid_kv_cache_manager: bool = False
    prefix_cache_retention_interval: int | None = None
    drop_last_cached_block: bool = False
    num_lookahead_tokens: int = 0
    prefill_lookahead: int = 0
    max_loras: int = 0
    pooling: bool = False
    encoder_budget: int | None = None
    encoder_cache: int | None = None
    disable_chunked_mm_input: bool = False
    refuses_images: bool = False
    kv_connector: KVConnector | None = None
    kv_host_memory_bytes: int = 0
    kv_load_failure_policy: str = "recompute"
    kv_load_failure_rate: float = 0.0
    preemption_mode: str = "recompute"
    async_scheduling: bool = False
    pipeline_depth: int = 1
    own_model_len: int | None = None

    def groups(self) -> tuple[KVGroup, ...]:
        """The KV groups with their block sizes; one if none are named. Raises `GroupError`."""
        entries = self.kv_groups if self.has_groups else (self.sliding_window or "full",)
        return read_groups(entries or (), self.block_size, self.max_model_len)

    @property
    def has_groups(self) -> bool:
        """Whether groups are named, and in use."""
        return self.kv_groups is not None and not self.disable_hybrid_kv_cache_manager

    @property
    def max_concurrent_batches(self) -> int:
        """Steps that may be planned before the results of the first of them are applied, that one included."""
        return self.pipeline_depth + self.async_scheduling

    @property
    def ceilings(self) -> dict[str, int | None]:
        """The start-up ceilings that bound live knobs; None means unbounded."""
        return {
            "max_batched_tokens_ceiling": self.max_batched_tokens_ceiling,
            "max_seqs_ceiling": self.max_seqs_ceiling,
        }


def check_scheduler_config(config: SchedulerConfig) -> SchedulerConfig:
    """`config` itself if every value and combination can be used; raises `ConfigError` otherwise."""
    values = msgspec.structs.asdict(config)
    for name, value in values.items():
        if name not in knobs.BY_NAME:
            continue
        try:
            knobs.check_value(name, value, config.ceilings)
        except knobs.KnobError as error:
            raise ConfigError(str(error)) from None
    if config.pipeline_depth < 1:
        raise ConfigError(f"pipeline_depth={config.pipeline_depth}: must be at least 1")
    if config.pipeline_depth > 1 and config.num_speculative_tokens and not config.async_scheduling:
        raise ConfigError(
            f"num_speculative_tokens={config.num_speculative_tokens}: drafts over pipeline stages need async scheduling"
        )
    if config.max_num_batched_tokens <= config.draft_slots:
        raise ConfigError(
            f"max_num_batched_tokens={config.max_num_batched_tokens} leaves no row beside"
            f" draft_slots={config.draft_slots}: nothing could ever be scheduled"
        )
    _check_kv(config)
    return config


def _check_kv(config: SchedulerConfig) -> None:
    try:
        groups = config.groups()
    except GroupError as error:
        raise ConfigError(str(error)) from None
    if config.has_groups and config.sliding_window is not None:
        raise ConfigError("sliding_window: the model's own windows hold (kv_groups); leave it out")
    _check_together(config)
    for name in (
        "max_loras",
        "encoder_budget",
        "encoder_cache",
        "num_lookahead_tokens",
        "prefill_lookahead",
        "prefix_cache_retention_interval",
    ):
        if (getattr(config, name) or 0) < 0:
            raise ConfigError(f"{name}={getattr(config, name)}: must not be negative")
    interval = config.prefix_cache_retention_interval
    common = common_size(tuple(group for group in groups if group.mamba != "none"))
    if interval and interval % common:
        raise ConfigError(
            f"prefix_cache_retention_interval={interval}: must be 0 or a multiple of {common},"
            " the least common multiple of the block sizes"
        )


def _check_together(config: SchedulerConfig) -> None:
    """Refuse settings that would leave a request waiting forever; vLLM accepts them."""
    _check_host_memory(config)
    depth, role = config.pipeline_depth, config.kv_connector and config.kv_connector.role
    if config.max_loras and config.encoder_budget is not None:
        raise ConfigError(f"max_loras={config.max_loras}: adapters cannot be served beside images (encoder_budget)")
    if config.max_loras and depth > 1:
        raise ConfigError(
            f"max_loras={config.max_loras}: adapters cannot be served over {depth} pipeline stages (pipeline_depth)"
        )
    if role == "kv_producer" and config.max_concurrent_batches > 1:
        raise ConfigError("kv_connector: the role kv_producer needs one batch at a time: no async_scheduling")


def _check_host_memory(config: SchedulerConfig) -> None:
    if not config.kv_host_memory_bytes:
        for name in ("kv_load_failure_policy", "kv_load_failure_rate", "preemption_mode"):
            if getattr(config, name) != knobs.BY_NAME[name].default:
                raise ConfigError(
                    f"{name}={getattr(config, name)}: there is no host memory: give kv_host_memory_bytes"
                )
        return
    if config.has_groups or config.sliding_window:
        states = any(group.mamba for group in config.groups())
        alike = config.has_groups and not states
        raise ConfigError(
            f"kv_host_memory_bytes={config.kv_host_memory_bytes}: a block there holds tokens of all layers alike, and"
            f" this model has {'states of fixed size' if states else 'windows'} beside full attention:"
            f" {'set disable_hybrid_kv_cache_manager, or ' if alike else ''}leave it out"
        )


def knob_values(config: SchedulerConfig, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The live knobs at their start-up values."""
    return knobs.live_values({**msgspec.structs.asdict(config), **(extra or {})})


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests come from: a generator's name or a trace file, and how it is cut and scaled.

    `rate` requests/s; `scale` multiplies lengths; `limit` is a number of requests; `time_scale` multiplies the gaps
    between a trace's arrivals; `start_s`/`end_s` cut a window out of a trace. None leaves as is. Requests that name no
    LoRA adapter are spread over `adapters` of them. A trace's images have `image_tokens` each (None: they are left
    out).
    """

    source: str = "mixed"
    seed: int = 0
    rate: float | None = None
    scale: float = 1.0
    limit: int | None = None
    time_scale: float = 1.0
    start_s: float | None = None
    end_s: float | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    prefix_block_tokens: int | None = None
    skip_bad: bool = False
    adapters: int = 0
    image_tokens: int | None = None


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to start an engine process. `scheduler` holds only what was set explicitly, by knob name.

    `join_within_s`: wall time that the first step waits for a console. `draft_model` drafts for `model`.
    `http` is where clients are served (`HOST:PORT`), under `served_model_name`, and each adapter of `lora` under its
    own name; more than `max_num_queued_reqs` that wait are turned away. `token_file`: what a TCP `socket` asks for.
    `read_only`: no console may command it.
    `flight_folder`: where the last minutes are kept on disk; None: in memory only.
    """

    device: str = "sim:llama-3.1-8b@h100"
    model: str | None = None
    scheduler: dict[str, Any] = {}
    workload: WorkloadSpec | None = WorkloadSpec()
    seed: int = 0
    real_time: bool = False
    duration_s: float | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    step_cost: str = "roofline"
    dtype: str = "auto"
    record: str | None = None
    record_text: bool = False
    metrics_port: int | None = None
    http: str | None = None
    served_model_name: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()
    max_num_queued_reqs: int | None = None
    socket: str | None = None
    token_file: str | None = None
    read_only: bool = False
    join_within_s: float = 0.0
    draft_model: str | None = None
    flight_folder: str | None = None
