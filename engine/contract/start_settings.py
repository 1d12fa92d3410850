"""Start-up settings as given, checked and completed before anything is built."""

from __future__ import annotations

from typing import Any

from schedtop.engine.contract.config import ConfigError, EngineConfig, SchedulerConfig, check_scheduler_config
from schedtop.engine.contract.knobs import BY_NAME, KnobError, check_value

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8")
STEP_COSTS = ("roofline", "operators")


def check_settings(config: EngineConfig) -> dict[str, Any]:
    """The explicitly set scheduler settings, typed; raises `ConfigError` for one that cannot be used."""
    try:
        settings = {name: check_value(name, value) for name, value in config.scheduler.items()}
    except KnobError as error:
        raise ConfigError(str(error)) from None
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ConfigError(
            f"--gpu-memory-utilization={config.gpu_memory_utilization}: must be above 0 and at most 1"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(config, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')}={getattr(config, name)}: must be at least 1")
    if config.dtype not in DTYPES:
        raise ConfigError(f"--dtype={config.dtype}: must be one of {', '.join(DTYPES)}")
    if config.kv_cache_dtype not in KV_CACHE_DTYPES:
        raise ConfigError(f"--kv-cache-dtype={config.kv_cache_dtype}: must be one of {', '.join(KV_CACHE_DTYPES)}")
    if config.step_cost not in STEP_COSTS:
        raise ConfigError(f"--step-cost={config.step_cost}: must be one of {', '.join(STEP_COSTS)}")
    settings.pop("rate", None)
    return settings


def scheduler_config(settings: dict[str, Any], num_blocks: int, model_len: int) -> SchedulerConfig:
    """Settings over defaults, with ceilings that leave room above the start-up values."""
    longest = settings.get("max_model_len")
    if longest is not None and longest > model_len:
        raise ConfigError(f"max_model_len={longest}: the model's own length is {model_len}")
    merged: dict[str, Any] = {
        knob.name: knob.default
        for knob in BY_NAME.values()
        if knob.name in SchedulerConfig.__struct_fields__ and knob.default is not None
    }
    merged.update({name: value for name, value in settings.items() if value is not None})
    merged["num_blocks"] = settings.get("num_blocks") or num_blocks
    merged["max_model_len"] = longest or model_len
    merged["own_model_len"] = model_len
    groups = merged.get("kv_groups") or ()
    if merged.get("sliding_window") or any(group != "full" for group in groups):
        merged.setdefault("prefix_cache_retention_interval", 0)  # vLLM's own default
    merged.setdefault("max_batched_tokens_ceiling", max(4 * merged["max_num_batched_tokens"], 16_384))
    merged.setdefault("max_seqs_ceiling", max(4 * merged["max_num_seqs"], 1024))
    return check_scheduler_config(SchedulerConfig(**merged))
