"""Starvation after a knob change: before it the limit held hardly anyone, since then it does."""

from __future__ import annotations

import numpy as np
from schedtop.console import text
from schedtop.console.explain import table
from schedtop.console.explain.facts import Marked
from schedtop.console.explain.finding import Advice, Finding, Link, Severity, percent
from schedtop.console.explain.window import Mask, Window
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


def find_starved(window: Window) -> Finding | None:
    """The newest change since which most steps starve someone."""
    for mark in reversed(window.changes):
        if mark.event.name in _LIMITERS:
            found = _since(window, mark)
            if found is not None:
                return found
    return None


def _since(window: Window, mark: Marked[KnobChange]) -> Finding | None:
    steps, change = window.steps, mark.event
    # The change holds from its own step on: it is applied before that step is planned.
    after: Mask = steps["seq"] >= mark.seq
    if min(int(after.sum()), int((~after).sum())) < table.SIDE_STEPS.value:
        return None
    limiters = _LIMITERS[change.name]
    held = (steps["waiting"] > 0) & (steps["admitted"] == 0) & steps.reason_mask(*limiters)
    starved = steps["starved"] > 0
    hit: Mask = held | starved if limiters == _BUDGETS else held
    before_share, after_share = float(hit[~after].mean()), float(hit[after].mean())
    if before_share > table.BEFORE.value or after_share < table.AFTER.value:
        return None
    old, new = text.value(change.old), text.value(change.new)
    by = f" by {text.clean(change.by, 20)}" if change.by else ""
    since, rows = steps.where(after), hit & after
    running, none = since.mean("running"), since.mean("starved")
    words = (
        f"{percent(after_share)} of the {len(since)} steps since then starve someone, {percent(before_share)} of"
    )
    links = (
        Link(
            f"{words} the {int((~after).sum())} steps before",
            {"before_share": before_share, "after_share": after_share, "steps_since": len(since)},
        ),
        Link(
            f"since then {none:.1f} of {running:.0f} running requests get no token in a step on average,"
            f" {since.mean('waiting'):.1f} wait: {_names(limiters)} holds them",
            {"starved": none, "running": running, "waiting": since.mean("waiting")},
        ),
        Link(f"{change.name} went {old} → {new} at step {mark.step}{by}", {"knob": change.name, "step": mark.step}),
    )
    back = Advice(change.name, f"back to {old}", window.knob_text(change.name))
    return Finding(
        "starved-after-change",
        table.BY_ID["starved-after-change"].title,
        Severity.SEVERE if none >= 1 else Severity.WARNING,
        links,
        window.spans(rows, lambda part: f"{part.mean('starved'):.0f} starved, {part.mean('waiting'):.0f} waiting"),
        (back,),
        int(np.count_nonzero(rows)),
        "starving steps",
    )


def _names(limiters: tuple[Limiter, ...]) -> str:
    return " or ".join(limiter.replace("_", " ") for limiter in limiters)
