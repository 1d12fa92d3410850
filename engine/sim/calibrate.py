"""Makes a device file, `sim:@FILE.toml`, from recordings of a device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from schedtop.engine.contract.files.output_files import whole_file
from schedtop.engine.contract.telemetry import Header, StepRecord
from schedtop.engine.sim.fit import MIN_WOKEN, Errors, Fit, FitError, fit, join, measure
from schedtop.engine.sim.linear import Calibration

Session = tuple[Header, Iterable[StepRecord]]


def calibrate(sessions: Sequence[Session]) -> tuple[Calibration, Fit]:
    """A device fitted to all steps of some sessions of one engine, its pool that of the first.

    Raises `FitError` for sessions of different engines, and for steps that do not determine the costs.
    """
    first = sessions[0][0]
    for header, _ in sessions[1:]:
        if (header.model, header.device) != (first.model, first.device):
            raise FitError(
                f"recordings of different devices cannot be fitted together: {first.model} on {first.device},"
                f" {header.model} on {header.device}"
            )
    fitted = fit(join(measure(records) for _, records in sessions))
    calibration = Calibration(
        model=first.model,
        device=first.device,
        vocab_size=first.settings.get("vocab_size") or DEFAULT_VOCAB_SIZE,
        max_model_len=first.max_model_len,
        kv_bytes_per_token=first.settings.get("kv_bytes_per_token"),
        num_blocks=first.num_blocks,
        block_size=first.block_size,
        async_scheduling=bool(first.config.get("async_scheduling")),
        cost=fitted.cost,
    )
    return calibration, fitted


DEFAULT_VOCAB_SIZE = 32_000
"""Where a recording does not say; made-up tokens only have to differ."""


def as_toml(calibration: Calibration, fitted: Fit) -> str:
    """The device file, with the fit's errors as comments."""
    fields = msgspec.structs.asdict(calibration)
    cost = msgspec.structs.asdict(fields.pop("cost"))
    lines = [f"# {line}".rstrip() for line in fit_text(fitted).splitlines()]
    lines += [f"{name} = {_toml(value)}" for name, value in fields.items() if value is not None]
    lines += ["", "[cost]", *(f"{name} = {value!r}" for name, value in cost.items())]
    return "\n".join(lines) + "\n"


def write_device(path: Path, calibration: Calibration, fitted: Fit) -> None:
    """Write the device file, whole or not at all. Raises `OSError`."""
    with whole_file(path) as file:
        file.write(as_toml(calibration, fitted).encode())


def fit_text(fitted: Fit) -> str:
    """The costs and the errors of a fit, as text."""
    cost = fitted.cost
    rows = [
        f"{'fixed':<22}{_time_text(cost.fixed_s)}",
        f"{'per token':<22}{_time_text(cost.per_token_s)}",
        f"{'per attention pair':<22}{_time_text(cost.per_attention_pair_s)}",
        f"{'per KV token read':<22}{_time_text(cost.per_kv_token_s)}",
        f"{'per request':<22}{_time_text(cost.per_request_s)}",
        f"{'floor':<22}{cost.floor_tokens:>12,} tokens",
        f"{'more after idling':<22}{_wake_text(fitted)}",
        "",
        f"{'relative error':<22}{'steps':>9}{'mean':>9}{'p50':>9}{'p95':>9}{'bias':>9}",
        _error_line("all steps", fitted.all),
    ]
    rows += [_error_line("decodes alone", fitted.decodes)] if fitted.decodes else []
    rows += [_error_line("with prompts", fitted.prompts)] if fitted.prompts else []
    rows.append(_error_line("held out (half)", fitted.held_out))
    if fitted.num_outliers:
        rows.append(f"{fitted.num_outliers:,} steps far off the others were left out of the fit, not of the errors")
    return "\n".join(rows)


def _wake_text(fitted: Fit) -> str:
    if fitted.num_woken < MIN_WOKEN:
        return f"{'unknown':>12}: needs {MIN_WOKEN} such steps, has {fitted.num_woken}; record a load with pauses"
    return _time_text(fitted.cost.wake_s)


def _time_text(seconds: float) -> str:
    """In the largest unit that leaves a digit before the point."""
    units = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    unit, size = next(((unit, size) for unit, size in units.items() if seconds >= size), ("ns", 1e-9))
    return f"{seconds / size:>12.4g} {unit}"


def _error_line(name: str, errors: Errors) -> str:
    shares = "".join(f"{share:>9.1%}" for share in (errors.mean, errors.p50, errors.p95))
    return f"{name:<22}{errors.count:>9,}{shares}{errors.bias:>+9.1%}"


def _toml(value: object) -> str:
    # A JSON string of printable text is a TOML basic string too.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
