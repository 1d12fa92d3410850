"""Starvation after a knob change: before it the limit held hardly anyone, since then it does."""

from __future__ import annotations

import math

from schedtop.console import text
from schedtop.console.explain import table
from schedtop.console.explain.facts import Marked
from schedtop.console.explain.finding import Advice, Finding, Link, Severity, percent
from schedtop.console.explain.window import Mask, Table, Window
from schedtop.engine.telemetry import KnobChange, Limiter

_BUDGETS = (Limiter.TOKEN_BUDGET, Limiter.INPUT_BUDGET)
_LIMITERS: dict[str, tuple[Limiter, ...]] = {
    "max_num_batched_tokens": _BUDGETS,
    "max_num_scheduled_tokens": _BUDGETS,
    "num_speculative_tokens": _BUDGETS,
    "max_num_seqs": (Limiter.SEQUENCE_CAP,),
    "max_num_active_seqs": (Limiter.SEQUENCE_CAP,),
    "watermark": (Limiter.WATERMARK,),
    "scheduler_reserve_full_isl": (Limiter.FULL_SEQUENCE,),
}
"""By which limiters a changed knob can hold requests back."""

_TIGHTER_UPWARDS = ("num_speculative_tokens", "watermark", "scheduler_reserve_full_isl")
"""Raising these holds requests back; lowering the others does."""


def find_starved(window: Window) -> Finding | None:
    """The newest change since which most steps starve someone."""
    for mark in reversed(window.changes):
        if mark.event.name in _LIMITERS and _tightens(mark.event):
            found = _since(window, mark)
            if found is not None:
                return found
    return None


def _tightens(change: KnobChange) -> bool:
    old, new = (math.inf if value is None else value for value in (change.old, change.new))
    return bool(new > old if change.name in _TIGHTER_UPWARDS else new < old)


def _since(window: Window, mark: Marked[KnobChange]) -> Finding | None:
    steps, change = window.steps, mark.event
    # The change holds from its own step on: it is applied before that step is planned.
    after: Mask = steps["seq"] >= mark.seq
    before, since = steps.where(~after), steps.where(after)
    if min(len(before), len(since)) < table.SIDE_STEPS.value:
        return None
    hit = _hit(steps, _LIMITERS[change.name])
    before_share, after_share = float(hit[~after].mean()), float(hit[after].mean())
    if before_share > table.BEFORE.value or after_share < table.AFTER.value:
        return None
    words = f"{percent(after_share)} of the {len(since)} steps since then starve someone"
    first = Link(
        f"{words}, {percent(before_share)} of the {len(before)} steps before",
        {"before_share": before_share, "after_share": after_share, "steps_since": len(since)},
    )
    return Finding(
        "starved-after-change",
        table.BY_ID["starved-after-change"].title,
        Severity.SEVERE if since.mean("starved") >= 1 else Severity.WARNING,
        (first, *_causes(since, mark)),
        window.spans(
            hit & after, lambda part: f"{part.mean('starved'):.0f} starved, {part.mean('waiting'):.0f} waiting"
        ),
        (Advice(change.name, f"back to {text.value(change.old)}", window.knob_text(change.name)),),
        int(hit[after].sum()),
        "starving steps",
    )


def _hit(steps: Table, limiters: tuple[Limiter, ...]) -> Mask:
    """Steps in which these limiters hold the queue or, for budgets, leave running requests without a token."""
    held: Mask = (steps["waiting"] > 0) & (steps["admitted"] == 0) & steps.reason_mask(*limiters)
    return held | (steps["starved"] > 0) if limiters == _BUDGETS else held


def _causes(since: Table, mark: Marked[KnobChange]) -> tuple[Link, ...]:
    change = mark.event
    starved, running, waiting = (since.mean(name) for name in ("starved", "running", "waiting"))
    by = f" by {text.clean(change.by, 20)}" if change.by else ""
    return (
        Link(
            f"since then {starved:.1f} of {running:.0f} running requests get no token in a step on average,"
            f" {waiting:.1f} wait: {_names(_LIMITERS[change.name])} holds them",
            {"starved": starved, "running": running, "waiting": waiting},
        ),
        Link(
            f"{change.name} went {text.value(change.old)} → {text.value(change.new)} at step {mark.step}{by}",
            {"knob": change.name, "step": mark.step},
        ),
    )


def _names(limiters: tuple[Limiter, ...]) -> str:
    return " or ".join(limiter.replace("_", " ") for limiter in limiters)
