"""Service-level objectives: the bounds a finished request must keep to count as good."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.telemetry import Finish, FinishReason

SLO_NAMES = ("ttft", "itl", "tpot", "e2e")
_PER_S = {"us": 1e6, "ms": 1e3, "s": 1.0}
_NOT_SERVED = (FinishReason.ABORT, FinishReason.REFUSED)


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds; None is not a bound. `itl_s` bounds a request's own p95 gap, `tpot_s` its mean."""

    ttft_s: float | None = None
    itl_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met_by(self, finish: Finish) -> bool:
        """Every bound kept. A request with one output has no gap, so none that is too long."""
        figures = ((self.ttft_s, finish.ttft_s, False), (self.e2e_s, finish.e2e_s, False))
        gaps = ((self.itl_s, finish.itl_p95_s, True), (self.tpot_s, finish.tpot_s, True))
        for bound, value, may_lack in figures + gaps:
            if bound is not None and not (may_lack if value is None else value <= bound):
                return False
        return True

    def __str__(self) -> str:
        bounds = ((name, getattr(self, f"{name}_s")) for name in SLO_NAMES)
        return ",".join(f"{name}={_text(bound)}" for name, bound in bounds if bound is not None)


def parse_slo(text: str) -> Slo:
    """`ttft=1s,itl=50ms` as bounds. Raises `ConfigError` that names the part it cannot read."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in SLO_NAMES:
            raise ConfigError(f"SLO {part.strip()!r}: write NAME=TIME, NAME one of {', '.join(SLO_NAMES)}")
        if name in bounds:
            raise ConfigError(f"SLO {text!r}: {name} is given twice")
        bounds[name] = _seconds(part.strip(), value)
    return Slo(**{f"{name}_s": bound_s for name, bound_s in bounds.items()})


def served(finish: Finish) -> bool:
    """The request ran to its end; aborted and refused ones are counted separately and divide nothing."""
    return finish.reason not in _NOT_SERVED


def _seconds(part: str, value: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s)", value, re.ASCII)
    seconds = float(match[1]) / _PER_S[match[2]] if match else math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"SLO {part!r}: write a time above 0 with its unit ({', '.join(_PER_S)}), such as 50ms")
    return seconds


def _text(bound_s: float) -> str:
    return f"{bound_s:.9g}s" if bound_s >= 1 else f"{bound_s * 1e3:.9g}ms"
