"""`/v1/knobs`: the knobs, their values, and who set them."""

from __future__ import annotations

from typing import Any

import msgspec
from schedtop.engine.contract.knobs import KNOBS, Knob
from schedtop.engine.http.link import EngineLink


def knobs_page(link: EngineLink) -> dict[str, Any]:
    """Values at a version, the schema of every live knob, and the latest changes."""
    return {
        "version": link.knobs_version,
        "values": link.knobs,
        "schema": {knob.name: _schema(knob) for knob in KNOBS if knob.name in link.knobs},
        "changes": [
            {"step": step, "clock_s": clock_s, **msgspec.to_builtins(_named(change))}
            for step, clock_s, change in link.changes
        ],
    }


def _named(change: Any) -> dict[str, Any]:
    return {name: getattr(change, name) for name in change.__struct_fields__}


def _schema(knob: Knob) -> dict[str, Any]:
    bounds = {"minimum": knob.low, "maximum": knob.high, "ceiling": knob.ceiling}
    return {
        "type": knob.kind.__name__,
        "default": knob.default,
        "unit": knob.unit,
        "effect": knob.effect,
        **{name: bound for name, bound in bounds.items() if bound is not None},
        **({"choices": list(knob.choices)} if knob.choices else {}),
    }
