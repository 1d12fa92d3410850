"""Flags without effect beside the others: refused, so that they do not mislead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from schedtop.console.cli.errors import CommandError
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.files.input_files import looks_like_case
from schedtop.engine.sim.spec import PREFIX
from schedtop.engine.workload.shown import flag_of

PLAIN = EngineConfig()

OF_DEVICES = (
    "http",
    "model",
    "device",
    "draft_model",
    "dtype",
    "kv_cache_dtype",
    "step_cost",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
)


def refuse_idle(config: EngineConfig, real_time: bool | None = None) -> None:
    """Raise `CommandError` for a setting that another one makes meaningless; `real_time` as it was given."""
    for name, why in _idle(config):
        holder, plain = (config, PLAIN) if hasattr(config, name) else (config.workload, WorkloadSpec())
        if getattr(holder, name) != getattr(plain, name):
            flag = "--kv-cache-memory" if name == "kv_cache_memory_bytes" else flag_of(name)
            raise CommandError(f"{flag}: {why}")
    if real_time is False and not config.device.startswith(PREFIX):
        raise CommandError(
            f"--no-real-time: only for a simulated device, and {config.device} takes the time it takes"
        )


def _idle(config: EngineConfig) -> Iterator[tuple[str, str]]:
    """Names of settings that mean nothing here, and why."""
    if config.record is None:
        yield "record_text", "nothing is recorded: give --record, too"
    if config.http is None:
        for name in ("served_model_name", "lora", "max_num_queued_reqs"):
            yield name, "no client is served: give --http, too"
    source = "" if config.workload is None else config.workload.source
    if looks_like_case(Path(source)):
        brought = f"{source} is a golden case, which brings its own requests, limits and device: leave it out"
        for name in (*OF_DEVICES, *WorkloadSpec.__struct_fields__):
            if name != "source":
                yield name, brought
    elif config.device.startswith(PREFIX):
        yield "dtype", "a simulated device runs no model: give --model, too"
    else:
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            yield name, "a model runs undivided here: only simulated devices are divided"
        yield "step_cost", "a model takes the time it takes: only for simulated devices"
        yield "kv_cache_dtype", "a model's KV cache has the model's own type: only for simulated devices"
        if config.device == "cpu":
            yield "gpu_memory_utilization", "on a CPU --kv-cache-memory sizes the pool"
    if config.kv_cache_memory_bytes is not None:
        yield "gpu_memory_utilization", "--kv-cache-memory sizes the pool: give one of them"
        if "num_blocks" in config.scheduler:
            yield "kv_cache_memory_bytes", "--num-blocks sizes the pool: give one of them"


def without(command: click.Command, refused: Mapping[str, str]) -> None:
    """Take flags out of a command's help; giving one is refused with its text in `refused`."""

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            instead = refused[param.name or ""]
            raise CommandError(f"{param.opts[0]} cannot be used with {ctx.info_name}: {instead}")
        return value

    for param in command.params:
        if param.name in refused and isinstance(param, click.Option):
            param.hidden, param.callback = True, refuse
