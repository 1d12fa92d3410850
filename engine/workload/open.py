"""Opens a workload: a generator's name or a trace file becomes a source."""

from __future__ import annotations

import importlib
import math
from itertools import islice
from pathlib import Path

from schedtop.engine.contract.config import ConfigError, WorkloadSpec
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.knobs import KnobError, check_value
from schedtop.engine.contract.nearest_name import did_you_mean
from schedtop.engine.workload.build import Encode, RequestBuilder
from schedtop.engine.workload.paced import PacedSource, Tempo
from schedtop.engine.workload.presets import BY_NAME, PRESETS, WorkloadPreset, preset_asks
from schedtop.engine.workload.recognise import accepted_files
from schedtop.engine.workload.replayed import trace_source
from schedtop.engine.workload.shown import shown
from schedtop.engine.workload.source import RequestSource

READER_MODULES = ("schedtop.engine.recording",)
"""Imported before a file is opened, so that their readers are registered."""

MAX_SCALE = 1e9
MAX_WHOLE = 2**63 - 1
"""What a record can hold."""

_TRACE_ONLY = ("time_scale", "start_s", "end_s", "prefix_block_tokens", "skip_bad", "image_tokens")


def open_source(
    spec: WorkloadSpec,
    *,
    max_model_len: int,
    vocab_size: int,
    block_size: int,
    encode: Encode | None = None,
    pooling: bool = False,
) -> RequestSource:
    """The source that `spec` names; prompts are int32 ids below `vocab_size`.

    Generated requests fit `max_model_len`; a trace's longer ones are passed on, for the engine to refuse. `encode` is
    the model's tokenizer, for traces that hold texts; with `pooling` no request has outputs. Raises `ConfigError`
    (`TraceError` for a file's content).
    """
    found = find_source(spec)
    build = RequestBuilder(
        spec.seed,
        vocab_size,
        max_model_len,
        spec.max_prompt_tokens,
        encode,
        num_adapters=spec.adapters,
        pooling=pooling,
    )
    if isinstance(found, WorkloadPreset):
        return _generated(found, spec, max_model_len, block_size, build)
    return trace_source(found, spec, block_size, build, pooling)


def find_source(spec: WorkloadSpec) -> WorkloadPreset | Path:
    """The generator or the file that `spec` names, every value of it checked. Raises `ConfigError`."""
    check_spec(spec)
    preset = BY_NAME.get(spec.source)
    if preset is not None:
        return preset
    for module in READER_MODULES:
        importlib.import_module(module)
    if not spec.source:
        raise ConfigError("workload '': name a generator or a file")
    path = Path(spec.source)
    try:
        exists, is_dir = path.exists(), path.is_dir()
    except (OSError, ValueError):
        exists = is_dir = False
    if odd := odd_file(path):
        raise ConfigError(f"workload {odd}")
    if is_dir:
        raise ConfigError(f"workload {spec.source}: a folder; name a trace file: {accepted_files()}")
    if not exists:
        names = ", ".join(preset.name for preset in PRESETS)
        raise ConfigError(
            f"workload {spec.source!r}: {did_you_mean(spec.source, BY_NAME)}no such file and no generator of that"
            f" name ({names}); files may be: {accepted_files()}"
        )
    return path


def check_spec(spec: WorkloadSpec) -> None:
    """Raises `ConfigError` for a value that no source can use, or that a generator would ignore."""
    for name, low in (("seed", 0), ("limit", 1), ("max_prompt_tokens", 1), ("max_output_tokens", 1)):
        _check(spec, name, low)
    _check(spec, "prefix_block_tokens", 1)
    _check(spec, "adapters", 0)
    _check(spec, "image_tokens", 1)
    for name in ("rate", "start_s", "end_s"):
        _check(spec, name, 0.0)
    try:
        check_value("rate", spec.rate)
    except KnobError as error:
        raise ConfigError(str(error)) from None
    if spec.rate == 0 and spec.source not in BY_NAME:
        raise ConfigError(f"{shown(spec, 'rate')}: nothing of {spec.source} would ever arrive; give a rate above 0")
    for name in ("scale", "time_scale"):
        if not 0 < getattr(spec, name) <= MAX_SCALE:
            raise ConfigError(f"{shown(spec, name)}: must be above 0 and at most {MAX_SCALE:g}")
    if spec.end_s is not None and spec.end_s <= (spec.start_s or 0.0):
        raise ConfigError(f"{shown(spec, 'end_s')}: must be above --start {spec.start_s or 0.0:g}")
    if spec.rate is not None and spec.time_scale != 1.0:
        raise ConfigError(f"{shown(spec, 'rate')} and {shown(spec, 'time_scale')} both set the pace: give one")
    if spec.source in BY_NAME:
        for name in _TRACE_ONLY:
            if getattr(spec, name) != getattr(WorkloadSpec(), name):
                raise ConfigError(f"{shown(spec, name)}: only for trace files, and {spec.source} is generated")


def _check(spec: WorkloadSpec, name: str, low: float) -> None:
    value = getattr(spec, name)
    if value is not None and not (math.isfinite(value) and value >= low):
        kind = "a finite number of " if isinstance(value, float) else ""
        raise ConfigError(f"{shown(spec, name)}: must be {kind}at least {low:g}")
    if isinstance(value, int) and value > MAX_WHOLE:
        raise ConfigError(f"{shown(spec, name)}: must be at most {MAX_WHOLE}")


def _generated(
    preset: WorkloadPreset, spec: WorkloadSpec, max_model_len: int, block_size: int, build: RequestBuilder
) -> PacedSource:
    asks = islice(preset_asks(preset, spec, max_model_len, block_size), spec.limit)
    tempo = Tempo(1.0, 1.0 / preset.rate, spec.rate, preset.wave)
    description = {
        "source": preset.name,
        "summary": preset.summary,
        "seed": spec.seed,
        "rate": preset.rate if spec.rate is None else spec.rate,
        "scale": spec.scale,
        "limit": spec.limit,
        "max_prompt_tokens": spec.max_prompt_tokens,
        "max_output_tokens": spec.max_output_tokens,
        "adapters": spec.adapters or None,
    }
    return PacedSource(asks, tempo, build, {key: value for key, value in description.items() if value is not None})
