"""What bare `schedtop` serves when neither device nor model is named: a small real model where that can run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedtop.console.cli.engine_flags import DEFAULT_DEVICE
from schedtop.console.cli.errors import CommandError
from schedtop.console.cli.pull import check_pulled
from schedtop.engine.contract.files.input_files import looks_like_case
from schedtop.engine.runner.loading.model_files import DEFAULT_MODEL, check_extra

CPU_LOAD = {"scale": 0.2, "rate": 1.0}
"""A load that a few cores can keep up with."""


def choose_default(flags: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The flags with device, model and load filled in, and a notice where it is not the real model."""
    case = flags.get("workload") is not None and looks_like_case(Path(flags["workload"]))
    if case or flags.get("device") is not None or flags.get("model") is not None:
        return dict(flags), ""
    try:
        check_extra()
        check_pulled(DEFAULT_MODEL)
    except (CommandError, ValueError) as error:
        return _simulated(flags, str(error))
    chosen = {**flags, "device": "auto", "model": DEFAULT_MODEL}
    if flags.get("workload") is None and not _has_gpu():
        if flags["rate"] is None:
            chosen["rate"] = CPU_LOAD["rate"]
        if flags["scale"] == 1.0:
            chosen["scale"] = CPU_LOAD["scale"]
    return chosen, ""


def _simulated(flags: Mapping[str, Any], why: str) -> tuple[dict[str, Any], str]:
    return {**flags, "device": DEFAULT_DEVICE}, f"{why}; simulating {DEFAULT_DEVICE.removeprefix('sim:')}"


def _has_gpu() -> bool:
    """An NVIDIA driver is loaded; asking torch would cost seconds."""
    return Path("/dev/nvidiactl").exists()
