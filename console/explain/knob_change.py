"""Held back by a knob change: the limit held hardly any request before it, and does since."""

from __future__ import annotations

import math

from schedtop.console.drawing import text
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import Marked
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Numbers, Severity, percent
from schedtop.console.explain.window import FactsWindow, Mask, Table, most_frequent_reason
from schedtop.engine.contract.telemetry import KnobChange, Limiter

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


def find_starved(window: FactsWindow) -> Finding | None:
    """The newest change since which most steps leave running requests without a token, or hold the queue by it."""
    for mark in reversed(window.changes):
        if mark.event.name in _LIMITERS and _tightens(mark.event):
            found = _since(window, mark)
            if found is not None:
                return found
    return None


def _tightens(change: KnobChange) -> bool:
    old, new = (math.inf if value is None else value for value in (change.old, change.new))
    return bool(new > old if change.name in _TIGHTER_UPWARDS else new < old)


def _since(window: FactsWindow, mark: Marked[KnobChange]) -> Finding | None:
    steps, change = window.steps, mark.event
    after: Mask = steps["seq"] >= mark.seq
    before, since = steps.where(~after), steps.where(after)
    if min(len(before), len(since)) < catalogue.SIDE_STEPS.value:
        return None
    symptoms = _symptoms(steps, _LIMITERS[change.name])
    symptom = next((name for name, mask in symptoms.items() if _begins(mask, after)), None)
    if symptom is None:
        return None
    hit = symptoms[symptom]
    return Finding(
        "starved-after-change",
        catalogue.BY_ID["starved-after-change"].title,
        Severity.SEVERE if since.mean("starved") >= 1 else Severity.WARNING,
        (_sides(symptom, steps, hit, after), *_causes(since, mark)),
        window.spans(hit & after, _held_words),
        (Advice(change.name, f"back to {text.value(change.old)}", window.knob_text(change.name)),),
        int(hit[after].sum()),
        "steps that hold back",
    )


def _symptoms(steps: Table, limiters: tuple[Limiter, ...]) -> dict[str, Mask]:
    """Steps in which one of these limiters holds the queue; before that, where budgets can, those in which running
    requests get no token."""
    held: Mask = _queue_stands(steps) & steps.reason_mask(*limiters)
    return ({"starved": steps["starved"] > 0} if limiters == _BUDGETS else {}) | {"held": held}


def _queue_stands(steps: Table) -> Mask:
    """Steps after which requests wait and none was admitted."""
    stands: Mask = (steps["waiting"] > 0) & (steps["admitted"] == 0)
    return stands


def _begins(hit: Mask, after: Mask) -> bool:
    return bool(hit[~after].mean() <= catalogue.BEFORE.value and hit[after].mean() >= catalogue.AFTER.value)


def _sides(symptom: str, steps: Table, hit: Mask, after: Mask) -> CausalLink:
    """The symptom on both sides of the change; where the queue stood before, too, what held it then."""
    before_share, after_share = float(hit[~after].mean()), float(hit[after].mean())
    num_since, num_before = int(after.sum()), int((~after).sum())
    numbers: Numbers = {"before_share": before_share, "after_share": after_share, "steps_since": num_since}
    shares = f"in {percent(after_share)} of the {num_since} steps since then"
    shares += f", in {percent(before_share)} of the {num_before} before"
    if symptom == "starved":
        return CausalLink(f"some running requests get no token {shares}", numbers)
    words = f"the queue is held by the {_limiter_words(steps.where(hit & after))} {shares}"
    others = steps.where(_queue_stands(steps) & ~hit & ~after)
    other_share = len(others) / num_before
    if other_share > catalogue.BEFORE.value:
        words += f" (then {_limiter_words(others)} held it in {percent(other_share)})"
    return CausalLink(words, {**numbers, "other_before_share": other_share})


def _limiter_words(steps: Table) -> str:
    return most_frequent_reason(steps).replace("_", " ")


def _held_words(part: Table) -> str:
    starved, waiting = part.mean("starved"), f"{part.mean('waiting'):.0f} waiting"
    return f"{starved:.0f} without a token, {waiting}" if starved else waiting


def _causes(since: Table, mark: Marked[KnobChange]) -> tuple[CausalLink, ...]:
    change = mark.event
    starved, running, waiting = (since.mean(name) for name in ("starved", "running", "waiting"))
    running_words = (
        f"{starved:.1f} of {running:.1f} running requests get no token" if starved else f"{running:.1f} run"
    )
    by = f" by {text.clean(change.by, 40)}" if change.by else ""
    return (
        CausalLink(
            f"in a step since then {running_words} and {waiting:.1f} wait, on average",
            {"starved": starved, "running": running, "waiting": waiting},
        ),
        CausalLink(
            f"{change.name} went {text.value(change.old)} → {text.value(change.new)} at step {mark.step}{by}",
            {"knob": change.name, "step": mark.step},
        ),
    )
