"""Which knob releases the head of the queue, by what holds it."""

from __future__ import annotations

from schedtop.console.explain.finding import Advice
from schedtop.console.explain.window import FactsWindow
from schedtop.engine.contract import limiters
from schedtop.engine.contract.limiters import LIMITERS
from schedtop.engine.contract.telemetry import Limiter


def remedy(window: FactsWindow, reason: str) -> tuple[Advice, ...]:
    """The knobs to turn against a reason of the head, the first one first; none where no limit is at fault."""
    row = LIMITERS.get(Limiter(reason))
    return window.advise(*(_turn(window, name, way) for name, way in row.remedies)) if row is not None else ()


def _turn(window: FactsWindow, name: str, way: str) -> tuple[str, str]:
    match name:
        case limiters.BUDGET:
            return budget_knob(window), way
        case limiters.CAP:
            return cap_knob(window), way
        case limiters.CHUNKS:
            return shorter_chunks(window)
    return name, way


def cap_knob(window: FactsWindow) -> str:
    """Which of the two caps holds."""
    return _lower(window, "max_num_active_seqs", "max_num_seqs")


def budget_knob(window: FactsWindow) -> str:
    """Which of the two settings makes the token budget."""
    return _lower(window, "max_num_scheduled_tokens", "max_num_batched_tokens")


def shorter_chunks(window: FactsWindow) -> tuple[str, str]:
    """The knob that leaves more of a step to others than its longest prompt, and which way to turn it."""
    name = "long_prefill_token_threshold"
    return name, "down" if window.knob(name) else "on (0 is off)"


def _lower(window: FactsWindow, extra: str, general: str) -> str:
    """The one of two bounds that holds: the lower; `extra` is None where it is as the `general` one."""
    value, bound = window.knob(extra), window.knob(general)
    return extra if value is not None and (bound is None or value < bound) else general
