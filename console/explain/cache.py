"""A falling hit rate: the prefix cache gives less than it did, and why."""

from __future__ import annotations

from schedtop.console.explain import table
from schedtop.console.explain.facts import Second
from schedtop.console.explain.finding import Advice, Finding, Link, Severity, percent
from schedtop.console.explain.window import Window

_NEARLY_OFF = 0.25


def find_falling(window: Window) -> Finding | None:
    """The window's hit rate against that of everything before it."""
    trend = window.trend
    edge = next((index for index, second in enumerate(trend) if second.end_s > window.end_s - window.full_s), 0)
    if edge < 1:
        return None
    first, middle, last = trend[0], trend[edge - 1], trend[-1]
    early, late = _rate(first, middle), _rate(middle, last)
    enough = min(middle.admitted - first.admitted, last.admitted - middle.admitted) >= table.HIT_SAMPLES.value
    if early is None or late is None or not enough or early < table.HIT_BEFORE.value:
        return None
    if late > table.HIT_DROP.value * early:
        return None
    n = last.admitted - middle.admitted
    links = (
        Link(
            f"hit rate {percent(late)} of the prompt tokens of {n} admissions, after {percent(early)} of"
            f" {middle.admitted - first.admitted} before",
            {"late": late, "early": early, "n": n, "n_before": middle.admitted - first.admitted},
        ),
        *_cause(window, first, middle, last),
    )
    admitted = window.steps["admitted"] > 0
    return Finding(
        "hit-rate-falling",
        table.BY_ID["hit-rate-falling"].title,
        Severity.WARNING if late > _NEARLY_OFF * early else Severity.SEVERE,
        links,
        window.spans(admitted, lambda part: f"{part.total('admitted'):.0f} admitted"),
        _advice(window, first, middle, last),
        n,
        "admissions",
    )


def _cause(window: Window, first: Second, middle: Second, last: Second) -> tuple[Link, ...]:
    if not window.knob("enable_prefix_caching"):
        return (Link("prefix caching is off", {"enable_prefix_caching": False}),)
    early, late = _repeats(first, middle), _repeats(middle, last)
    if _workload_changed(early, late):
        words = (
            f"{percent(late or 0.0)} of arrivals begin with a prefix seen before, it was {percent(early or 0.0)}"
        )
        return (Link(f"{words}: the requests changed, not the cache", {"repeats": late, "repeats_before": early}),)
    steps = window.steps
    pool = float((steps["used"] + steps["free"]).mean()) if len(steps) else 0.0
    spare = steps.mean("free") / pool if pool else 0.0
    return (
        Link(
            f"arrivals still repeat prefixes ({percent(late or 0.0)}), but their blocks are gone when they come",
            {"repeats": late, "repeats_before": early},
        ),
        Link(
            f"running requests hold {percent(1 - spare)} of the pool; {steps.mean('cached_free'):.0f} blocks of"
            " content are left to reuse",
            {"free_share": spare, "cached_free_blocks": steps.mean("cached_free")},
        ),
    )


def _advice(window: Window, first: Second, middle: Second, last: Second) -> tuple[Advice, ...]:
    if not window.knob("enable_prefix_caching"):
        return window.advise(("enable_prefix_caching", "on"))
    if _workload_changed(_repeats(first, middle), _repeats(middle, last)):
        return (Advice("", "", words="no knob: look at what clients send (order of the prompt, system prompt)"),)
    return window.advise(("num_blocks", "up"), ("max_num_seqs", "down"))


def _workload_changed(early: float | None, late: float | None) -> bool:
    return early is not None and (late or 0.0) < table.HIT_DROP.value * early


def _rate(first: Second, last: Second) -> float | None:
    prompts = last.prompt_tokens - first.prompt_tokens
    return (last.cached_tokens - first.cached_tokens) / prompts if prompts else None


def _repeats(first: Second, last: Second) -> float | None:
    arrived = last.arrived - first.arrived
    return (last.repeated - first.repeated) / arrived if arrived else None
