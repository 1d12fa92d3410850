"""A workload's setting as it was typed."""

from __future__ import annotations

from schedtop.engine.contract.config import WorkloadSpec


def flag_of(name: str) -> str:
    """The flag that sets a field of `WorkloadSpec`."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def shown(spec: WorkloadSpec, name: str) -> str:
    """The flag of a field with its value: `--start 5`."""
    value = getattr(spec, name)
    if isinstance(value, bool):
        return flag_of(name)
    return f"{flag_of(name)} {value:g}" if isinstance(value, float) else f"{flag_of(name)} {value}"
