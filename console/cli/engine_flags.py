"""Flags that start an engine: the scheduler's from the knob table, the rest listed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from schedtop.console.cli.errors import CommandError, check_positive
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.knobs import KNOBS, Knob, check_value
from schedtop.engine.http.settings import DEFAULT_PLACE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_DEVICE = "sim:llama-3.1-8b@h100"


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """`2GiB`, `500M` or a number of bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+\.?\d*)\s*([kmgt]?)(i?b)?", value.strip().lower())
    if not match or float(match[1]) <= 0:
        raise click.BadParameter(f"{value!r}: write bytes, as in 500MB or 2GiB")
    base = 1024 if match[3] == "ib" or not match[3] else 1000
    return int(float(match[1]) * base ** " kmgt".index(match[2] or " "))


ENGINE_FLAGS = (
    click.option("--device", metavar="DEVICE", help="sim:MODEL@GPU, sim:@FILE.toml, cpu, cuda or auto."),
    click.option("--model", metavar="MODEL", help="A local folder, a GGUF file, a hub id or smollm2."),
    click.option(
        "--draft-model", metavar="MODEL", help="A small model of the same vocabulary that drafts for --model."
    ),
    click.option("--workload", metavar="NAME|FILE", help="A generator, a trace, a recording or a golden case."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random."),
    click.option("--rate", type=float, help="Arrivals per second; a trace is scaled to it."),
    click.option("--scale", type=float, default=1.0, show_default=True, help="Multiplies request lengths."),
    click.option("--limit", type=int, help="Number of requests."),
    click.option("--time-scale", type=float, default=1.0, show_default=True, help="Multiplies a trace's gaps."),
    click.option("--start", "start_s", type=float, help="Cut a trace: seconds from its first arrival."),
    click.option("--end", "end_s", type=float, help="Cut a trace: seconds from its first arrival."),
    click.option("--max-prompt-tokens", type=int, help="Cut longer prompts."),
    click.option("--max-output-tokens", type=int, help="Cut longer outputs."),
    click.option("--prefix-block-tokens", type=int, help="Tokens per hash id, where a trace's format differs."),
    click.option("--adapters", type=int, default=0, metavar="N", help="Spread requests over N LoRA adapters."),
    click.option("--image-tokens", type=int, metavar="N", help="Tokens of each of a trace's images (NumImages)."),
    click.option("--skip-bad", is_flag=True, help="Count bad lines of a trace instead of stopping at them."),
    click.option("--duration", "duration_s", type=float, help="Seconds on the engine's clock."),
    click.option("--real-time/--no-real-time", default=None, help="Pace a simulated clock by the wall clock."),
    click.option(
        "-tp",
        "--tensor-parallel-size",
        type=int,
        default=1,
        show_default=True,
        help="Simulated GPUs a layer is cut over.",
    ),
    click.option(
        "-pp", "--pipeline-parallel-size", type=int, default=1, show_default=True, help="Simulated GPUs in a row."
    ),
    click.option(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        show_default=True,
        help="Share of a GPU's memory for weights, working memory and KV cache.",
    ),
    click.option(
        "--kv-cache-memory",
        "kv_cache_memory_bytes",
        callback=_bytes,
        metavar="BYTES",
        help="Size of the KV cache instead, as in 2GiB.",
    ),
    click.option(
        "--kv-cache-dtype",
        default="auto",
        show_default=True,
        help="Of a simulated device: auto, bfloat16 or fp8, which halves the bytes.",
    ),
    click.option(
        "--step-cost",
        default="roofline",
        show_default=True,
        help="Of a simulated device: roofline, or operators (measured tables, extra operators).",
    ),
    click.option("--dtype", default="auto", show_default=True, help="auto, float32, bfloat16 or float16."),
    click.option("--record", metavar="FILE", help="Record every step into a new file."),
    click.option("--record-text", is_flag=True, help="Let the recording hold prompt and output text."),
    click.option("--metrics-port", type=int, metavar="PORT", help="Serve /metrics on loopback; 0 picks a port."),
)

HTTP_FLAGS = (
    click.option(
        "--http",
        is_flag=False,
        flag_value=DEFAULT_PLACE,
        metavar="[HOST:PORT]",
        help=f"Answer OpenAI's clients there; {DEFAULT_PLACE} unless given.",
    ),
    click.option(
        "--served-model-name", multiple=True, metavar="NAME", help="What clients call the model; may be repeated."
    ),
    click.option(
        "--lora",
        multiple=True,
        metavar="NAME",
        help="A LoRA adapter that clients ask for as a model; may be repeated.",
    ),
    click.option("--max-num-queued-reqs", type=int, metavar="N", help="Most requests that wait; more get a 503."),
)

FLIGHT_FLAG = click.option(
    "--no-flight-recorder",
    is_flag=True,
    help="Keep the last minutes in memory only, not on disk for after a crash.",
)

CONSOLE_FLAGS = (
    click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: lines and marks on the charts."),
    click.option("--window", "window_s", type=float, default=60.0, show_default=True, help="Seconds of latency."),
    click.option("--theme", help="dark, light, high-contrast, colour-blind, monochrome, ansi or your own."),
    click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only."),
    click.option("--read-only", is_flag=True, help="Watch only: the engine takes no command of this console."),
    click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal."),
    click.option("--refresh", type=float, default=10.0, show_default=True, metavar="HZ", help="Frames per second."),
)

TOKEN_FILE = click.option(
    "--token-file",
    metavar="FILE",
    help="The token of a TCP engine; unless set, SCHEDTOP_TOKEN_FILE or ~/.config/schedtop/token.",
)


def _knob_option(knob: Knob) -> Callable[[Decorated], Decorated]:
    text = knob.effect
    if knob.default is not None and knob.kind is not bool:
        text += f" [default: {knob.default}]"
    if knob.kind is bool:
        flag = f"{knob.option}/--no-{knob.option.removeprefix('--')}"
        return click.option(flag, knob.name, default=None, help=text)
    metavar = "|".join(knob.choices) or (knob.unit or knob.kind.__name__).upper()
    return click.option(knob.option, knob.name, metavar=metavar, help=text)


def add_engine_flags(*, console: bool = False, http: bool = False) -> Callable[[Decorated], Decorated]:
    """Add every flag that starts an engine, and those of the console and of the HTTP server if asked."""

    def decorate(function: Decorated) -> Decorated:
        options = [_knob_option(knob) for knob in KNOBS if knob.name != "rate"]
        more = [*((*HTTP_FLAGS, FLIGHT_FLAG) if http else ()), *(CONSOLE_FLAGS if console else ())]
        for option in reversed([*ENGINE_FLAGS, *options, *more]):
            function = option(function)
        return function

    return decorate


def engine_config(flags: Mapping[str, Any], **changes: Any) -> EngineConfig:
    """The flags as a config, whose fields they are named after. Raises `CommandError` for what means nothing."""
    scheduler = {
        knob.name: check_value(knob.name, flags[knob.name], called=knob.option)
        for knob in KNOBS
        if flags.get(knob.name) is not None
    }
    scheduler.pop("rate", None)
    if flags.get("duration_s") is not None:
        check_positive("--duration", flags["duration_s"])
    port = flags.get("metrics_port")
    if (most := flags.get("max_num_queued_reqs")) is not None and most < 1:
        raise CommandError(f"--max-num-queued-reqs {most}: must be at least 1")
    if port is not None and not 0 <= port < 65536:
        raise CommandError(f"--metrics-port {port}: must be between 0 and 65535")
    cut = {name: flags[name] for name in WorkloadSpec.__struct_fields__ if name in flags}
    source = flags.get("workload")
    workload: WorkloadSpec | None = WorkloadSpec(source="mixed" if source is None else source, **cut)
    if flags.get("http") is not None and source is None:
        if workload != WorkloadSpec(seed=flags["seed"]):
            raise CommandError("--http alone generates nothing: give --workload, too, or leave out how it is cut")
        workload = None
    values: dict[str, Any] = {name: flags[name] for name in EngineConfig.__struct_fields__ if name in flags}
    values.update(device=pick_device(flags), scheduler=scheduler, workload=workload)
    values["real_time"] = bool(flags.get("real_time"))
    values.update(changes)
    config = EngineConfig(**values)
    from schedtop.console.cli.unused_flags import refuse_idle

    refuse_idle(config, flags.get("real_time"))
    return config


def pick_device(flags: Mapping[str, Any]) -> str:
    """The named device, or the one that suits the model."""
    device, model = flags.get("device"), flags.get("model")
    if device is not None:
        if device.startswith("sim:") and model is not None:
            raise CommandError(f"--device {device} names its model: leave out --model {model}")
        return str(device)
    return "auto" if model is not None else DEFAULT_DEVICE
