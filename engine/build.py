"""From start-up settings to an engine ready to step. Everything is checked before anything is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from schedtop.engine import __version__
from schedtop.engine.contract.config import ConfigError, EngineConfig, SchedulerConfig
from schedtop.engine.contract.files.input_files import looks_like_case
from schedtop.engine.contract.knobs import BY_NAME
from schedtop.engine.contract.kv_groups import Entry, KVGroup
from schedtop.engine.contract.start_settings import check_settings, scheduler_config
from schedtop.engine.contract.telemetry import PROTOCOL, Header
from schedtop.engine.golden.case import Case, read_case
from schedtop.engine.golden.case_requests import unrecorded
from schedtop.engine.golden.source import CaseSource, CaseWorker
from schedtop.engine.runner.loading.model_files import check_extra, look_up
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.host_store import open_host_store, with_tier
from schedtop.engine.sim.memory import PoolSettings
from schedtop.engine.sim.spec import PREFIX, SimDevice, parse_device
from schedtop.engine.sim.state_layers import GROUP
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.clock import RealClock, SimulatedClock
from schedtop.engine.step.engine import Engine
from schedtop.engine.workload.source import RequestSource

CASE_VOCAB_SIZE = 48_000
"""Ids of the cases' model stay below it."""

OnStage = Callable[[str], None]


def build_engine(
    config: EngineConfig,
    on_stage: OnStage = lambda name: None,
    device: SimDevice | None = None,
    on_input: Callable[[Any], None] = lambda taken: None,
) -> Engine:
    """The engine that `config` describes; `device` takes the place of the config's.

    `on_input` gets what a real model takes (`ModelInput`) before its weights are read.
    Raises `ConfigError` (or a `ValueError` with one clear line).
    """
    settings = check_config(config, device)
    if _is_case(config):
        return _build_case(config)
    if device is not None or config.device.startswith(PREFIX):
        return _build_simulated(
            config, settings, device or parse_device(config.device, config.kv_cache_dtype, config.step_cost)
        )
    return _build_real(config, settings, on_stage, on_input)


def check_config(config: EngineConfig, device: SimDevice | None = None) -> dict[str, Any]:
    """Refuse what can be refused before anything is loaded; the explicitly set scheduler settings, typed.

    Raises `ConfigError`, last of all for a model that is not here.
    """
    from schedtop.engine.workload.open import find_source

    settings = check_settings(config)
    if settings.get("pooling") and settings.get("num_speculative_tokens"):
        raise ConfigError(
            "--pooling: requests without outputs have nothing to draft: leave out --num-speculative-tokens"
        )
    if settings.get("pooling") and config.http is not None:
        raise ConfigError("--pooling: clients of --http ask for outputs, and pooling requests have none")
    simulated = device is not None or config.device.startswith(PREFIX)
    _check_adapters(config, settings, simulated)
    if simulated and config.draft_model is not None:
        raise ConfigError(
            f"--draft-model={config.draft_model}: a simulated device runs no model: give --model, too"
        )
    if _is_case(config):
        return settings
    if config.workload is not None:
        find_source(config.workload)
    if not simulated:
        if config.device not in ("cpu", "cuda", "auto"):
            raise ConfigError(f"device {config.device!r}: write cpu, cuda, auto or sim:MODEL@GPU")
        _refuse_simulated(settings)
        if config.workload is not None and config.workload.image_tokens is not None:
            width, why = config.workload.image_tokens, SIMULATED_ONLY["encoder_budget"]
            raise ConfigError(f"--image-tokens {width}: only for simulated devices; {why}")
        check_extra()
        look_up(config)
    return settings


def _check_adapters(config: EngineConfig, settings: dict[str, Any], simulated: bool) -> None:
    """Adapters that clients ask for by name."""
    if not config.lora:
        return
    if not simulated or _is_case(config):
        raise ConfigError(f"--lora {config.lora[0]}: only for simulated devices; {SIMULATED_ONLY['max_loras']}")
    if not settings.get("max_loras"):
        raise ConfigError(f"--lora {config.lora[0]}: there are no slots for adapters: give --max-loras, too")
    taken = {*config.served_model_name} or {config.model or config.device.removeprefix(PREFIX).rpartition("@")[0]}
    for name in config.lora:
        if not name or name in taken:
            raise ConfigError(f"--lora {name}: the name is empty or taken: each model and adapter needs its own")
        taken.add(name)


SIMULATED_ONLY = {
    "async_scheduling": "a model runs one step at a time here",
    "encoder_budget": "a model sees only text here",
    "pooling": "a model gives outputs here",
    "max_loras": "a model has no adapters here",
    "kv_host_memory_bytes": "a model keeps its state in the pool here",
}
"""Settings that a real model cannot follow, and why."""


def _refuse_simulated(settings: dict[str, Any]) -> None:
    for name, why in SIMULATED_ONLY.items():
        if settings.get(name):
            raise ConfigError(f"{BY_NAME[name].option}: only for simulated devices; {why}")


def _is_case(config: EngineConfig) -> bool:
    return config.workload is not None and looks_like_case(Path(config.workload.source))


def _build_simulated(config: EngineConfig, settings: dict[str, Any], device: SimDevice) -> Engine:
    pool = _pool_settings(config, settings, device)
    blocks = device.num_blocks(pool)
    settings = {**settings, "pipeline_depth": config.pipeline_parallel_size, "block_size": pool.block_size}
    if device.kv_groups != ("full",):
        settings["kv_groups"] = _groups(device, settings)
    _use_encoder(config, settings)
    if settings.get("async_scheduling") is None:
        settings["async_scheduling"] = device.async_scheduling
    scheduler = scheduler_config(settings, blocks, device.max_model_len)
    cost = device.step_cost(config.tensor_parallel_size, config.pipeline_parallel_size)
    worker = SimWorker(
        cost,
        device.vocab_size,
        config.seed,
        num_speculative_tokens=scheduler.num_speculative_tokens,
        keeps_drafts=scheduler.async_scheduling,
    )
    source = _open_source(config, scheduler, device.vocab_size)
    clock, tier, extra = SimulatedClock(), None, dict[str, Any]()
    if device.front_end is not None:
        extra |= device.front_end.settings()
    if config.lora:
        extra["lora"] = list(config.lora)
    if scheduler.kv_host_memory_bytes:
        link = device.host_link(pool)
        scheduler, tier = with_tier(scheduler), open_host_store(scheduler, link, clock.now_s, config.seed)
        extra["host_link"] = list(link)
    header = make_header(config, scheduler, source, device.model, device.spec, device.vocab_size, simulated=True)
    header = msgspec.structs.replace(header, settings={**header.settings, **extra})
    return Engine(Scheduler(scheduler, tier), worker, source, clock, header, tier)


def _groups(device: SimDevice, settings: dict[str, Any]) -> tuple[Entry, ...]:
    """The model's groups. A state of fixed size is kept once for a request where no prefix is cached."""
    if GROUP not in device.kv_groups:
        return device.kv_groups
    if settings.get("disable_hybrid_kv_cache_manager"):
        raise ConfigError(
            f"--disable-hybrid-kv-cache-manager: {device.model} has layers with a state of fixed size, which cannot be"
            " kept as keys and values are: leave it out"
        )
    if settings.get("enable_prefix_caching") is False:
        return tuple(KVGroup(mamba="none") if entry == GROUP else entry for entry in device.kv_groups)
    if settings.get("enable_chunked_prefill") is False:
        raise ConfigError(
            f"--no-enable-chunked-prefill: {device.model} keeps its state at the ends of chunks: leave it out, or add"
            " --no-enable-prefix-caching"
        )
    return device.kv_groups


def _use_encoder(config: EngineConfig, settings: dict[str, Any]) -> None:
    """An engine whose requests have images has an encoder, with vLLM's budget unless configured otherwise."""
    width = None if config.workload is None else config.workload.image_tokens
    if width is not None and settings.get("encoder_budget") is None:
        settings["encoder_budget"] = (
            settings.get("max_num_batched_tokens") or BY_NAME["max_num_batched_tokens"].default
        )
    settings["refuses_images"] = settings.get("encoder_budget") is not None


def _build_case(config: EngineConfig) -> Engine:
    """A golden case brings its own limits, requests and model."""
    assert config.workload is not None
    if config.scheduler:
        names = ", ".join(config.scheduler)
        raise ConfigError(
            f"{config.workload.source} is a golden case, which sets its own limits: leave out {names}"
        )
    return case_engine(read_case(Path(config.workload.source)), config)


def case_engine(case: Case, config: EngineConfig) -> Engine:
    """An engine that serves a case under the case's own limits, and refuses what can never fit; `verify` decides it as
    recorded. Raises `ConfigError` for a case with a store outside."""
    if case.config.kv_connector is not None:
        raise ConfigError(f"kv_connector: {case.name} can be verified, but not run: its store answers only there")
    if case.config.encoder_budget is not None:
        case = msgspec.structs.replace(case, config=msgspec.structs.replace(case.config, refuses_images=True))
    worker = CaseWorker(case)
    source = CaseSource(case, worker)
    header = make_header(config, case.config, source, "case", case.name, CASE_VOCAB_SIZE, simulated=True)
    if unreported := unrecorded(case.config):
        header = msgspec.structs.replace(header, settings={**header.settings, "undecidable": unreported})
    engine = Engine(Scheduler(case.config), worker, source, SimulatedClock(), header)
    source.bind(engine)
    return engine


def _pool_settings(config: EngineConfig, settings: dict[str, Any], device: SimDevice) -> PoolSettings:
    wanted: int = settings.get("block_size") or BY_NAME["block_size"].default  # type: ignore[assignment]
    drafts = settings.get("num_speculative_tokens") or 0
    return PoolSettings(
        block_size=device.block_size(wanted, config.tensor_parallel_size, drafts),
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_num_batched_tokens=settings.get("max_num_batched_tokens") or 2048,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        one_group=bool(settings.get("disable_hybrid_kv_cache_manager")),
    )


def _build_real(
    config: EngineConfig, settings: dict[str, Any], on_stage: OnStage, on_input: Callable[[Any], None]
) -> Engine:
    files = look_up(config)
    from schedtop.engine.runner.loading.hub import fetch

    if files.on_hub:
        on_stage(f"fetching {files.name}")
        fetch(files)
    from schedtop.engine.runner.loading.open import open_model

    worker, info = open_model(config, on_stage, on_input=on_input)
    settings = {**info.defaults, **settings, "sliding_window": info.sliding_window}
    scheduler = scheduler_config(settings, info.num_blocks, info.max_model_len)
    scheduler = msgspec.structs.replace(scheduler, cache_unexecuted_blocks=False)
    source = _open_source(config, scheduler, info.vocab_size)
    header = make_header(config, scheduler, source, info.model, info.device, info.vocab_size, simulated=False)
    extra = {
        "drafts": info.drafts,
        "eos_token_ids": sorted(info.eos_token_ids),
        "sampling": msgspec.to_builtins(msgspec.structs.asdict(info.sampling)),
    }
    header = msgspec.structs.replace(header, settings={**header.settings, **extra})
    return Engine(Scheduler(scheduler), worker, source, RealClock(), header)


def _open_source(config: EngineConfig, scheduler: SchedulerConfig, vocab_size: int) -> RequestSource | None:
    if config.workload is None:
        return None
    from schedtop.engine.workload.open import open_source

    return open_source(
        config.workload,
        max_model_len=scheduler.max_model_len,
        vocab_size=vocab_size,
        block_size=scheduler.block_size,
        pooling=scheduler.pooling,
    )


def make_header(
    config: EngineConfig,
    scheduler: SchedulerConfig,
    source: RequestSource | None,
    model: str,
    device: str,
    vocab_size: int,
    *,
    simulated: bool,
) -> Header:
    """What a console or a recording gets first."""
    return Header(
        protocol=PROTOCOL,
        engine="schedtop",
        engine_version=__version__,
        model=model,
        device=device,
        policy=scheduler.policy,
        block_size=scheduler.block_size,
        num_blocks=scheduler.num_blocks,
        max_model_len=scheduler.max_model_len,
        config=msgspec.to_builtins(scheduler),
        workload={} if source is None else source.description,
        started_at=time.time(),
        simulated_clock=simulated,
        settings={
            "seed": config.seed,
            "tensor_parallel_size": config.tensor_parallel_size,
            "pipeline_parallel_size": config.pipeline_parallel_size,
            "kv_cache_dtype": config.kv_cache_dtype,
            "step_cost": config.step_cost,
            "vocab_size": vocab_size,
        },
    )
