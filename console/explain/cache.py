"""A falling hit rate: the prefix cache hits less than before, and why."""

from __future__ import annotations

from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import SecondTotals
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Severity, percent, some
from schedtop.console.explain.window import FactsWindow


def find_falling(window: FactsWindow) -> Finding | None:
    """The window's hit rate against that of everything before it."""
    trend = window.trend
    edge = next((index for index, second in enumerate(trend) if second.end_s > window.end_s - window.full_s), 0)
    if edge < 1:
        return None
    first, middle, last = trend[0], trend[edge - 1], trend[-1]
    early, late = _rate(first, middle), _rate(middle, last)
    enough = min(middle.admitted - first.admitted, last.admitted - middle.admitted) >= catalogue.HIT_SAMPLES.value
    if early is None or late is None or not enough or early < catalogue.HIT_BEFORE.value:
        return None
    if late > catalogue.HIT_DROP.value * early:
        return None
    n = last.admitted - middle.admitted
    links = (
        CausalLink(
            f"hit rate {percent(late)} of the prompt tokens of {n} admissions, after {percent(early)} of"
            f" {middle.admitted - first.admitted} before",
            {"late": late, "early": early, "n": n, "n_before": middle.admitted - first.admitted},
        ),
        *_cause(window, first, middle, last),
    )
    admitted = window.steps["admitted"] > 0
    return Finding(
        "hit-rate-falling",
        catalogue.BY_ID["hit-rate-falling"].title,
        _severity(window, first, middle, last),
        links,
        window.spans(admitted, lambda part: f"{part.total('admitted'):.0f} admitted"),
        _advice(window, first, middle, last),
        n,
        "admissions",
    )


def find_lost(window: FactsWindow) -> Finding | None:
    """Prompt tokens that the cache held, and evicted before they were needed again."""
    trend = window.trend
    before = next((second for second in reversed(trend) if second.end_s <= window.from_s), None)
    found = trend[-1].lookups if before is None else trend[-1].lookups.since(before.lookups)
    admitted = trend[-1].admitted - (0 if before is None else before.admitted)
    share, unbounded = found.lost_share, found.unbounded_hit_rate
    if (
        share is None
        or unbounded is None
        or share < catalogue.LOST_SHARE.value
        or admitted < catalogue.HIT_SAMPLES.value
    ):
        return None
    rate = found.cached_tokens / found.prompt_tokens
    held = window.steps.pool_use
    links = (
        CausalLink(
            f"the cache gives {percent(rate)} of the prompt tokens of {admitted} admissions; one that evicts nothing"
            f" would give {percent(unbounded)}",
            {"hit_rate": rate, "unbounded_hit_rate": unbounded, "n": admitted},
        ),
        CausalLink(
            f"{some(found.lost_tokens, 'prompt token')} were in the cache and evicted before they were asked for again",
            {"lost_tokens": found.lost_tokens, "lost_share": share},
        ),
        CausalLink(
            f"requests hold {percent(held)} of the pool, {window.steps.mean('cached_free'):.0f} of {window.pool_blocks}"
            " blocks are left for prefixes: the pool is too small for both",
            {"held_share": held, "pool_blocks": window.pool_blocks},
        ),
    )
    return Finding(
        "lost-hits",
        catalogue.BY_ID["lost-hits"].title,
        Severity.WARNING,
        links,
        window.spans(window.steps["admitted"] > 0, lambda part: f"{part.total('admitted'):.0f} admitted"),
        window.advise(("num_blocks", "up"), ("max_num_seqs", "down")),
        admitted,
        "admissions",
    )


def _severity(window: FactsWindow, first: SecondTotals, middle: SecondTotals, last: SecondTotals) -> Severity:
    """Requests that changed are news; a cache that forgets or is off costs work."""
    own = _forgets(first, middle, last) or not window.knob("enable_prefix_caching")
    return Severity.WARNING if own else Severity.NOTICE


def _cause(
    window: FactsWindow, first: SecondTotals, middle: SecondTotals, last: SecondTotals
) -> tuple[CausalLink, ...]:
    if not window.knob("enable_prefix_caching"):
        return (CausalLink("prefix caching is off", {"enable_prefix_caching": False}),)
    early, late = _repeats(first, middle), _repeats(middle, last)
    shares = CausalLink(
        f"{percent(late)} of admitted prompts begin with a block seen before, {percent(early)} earlier",
        {"repeats": late, "repeats_before": early},
    )
    if not _forgets(first, middle, last):
        return (shares, CausalLink("what repeats is still found: the requests changed, not the cache"))
    steps = window.steps
    pool = float((steps["used"] + steps["free"]).mean()) if len(steps) else 0.0
    held = steps.mean("used") / pool if pool else 0.0
    gave, gives = _repeat_rate(first, middle), _repeat_rate(middle, last)
    return (
        shares,
        CausalLink(
            f"of those prompts' tokens the cache gives {percent(gives or 0.0)}, it was {percent(gave or 0.0)}:"
            " blocks are taken before they are asked for again",
            {"repeat_hit_rate": gives, "repeat_hit_rate_before": gave},
        ),
        CausalLink(
            f"requests hold {percent(held)} of the pool; {steps.mean('cached_free'):.0f} cached blocks are left",
            {"held_share": held, "cached_free_blocks": steps.mean("cached_free")},
        ),
    )


def _advice(
    window: FactsWindow, first: SecondTotals, middle: SecondTotals, last: SecondTotals
) -> tuple[Advice, ...]:
    if not window.knob("enable_prefix_caching"):
        return window.advise(("enable_prefix_caching", "on"))
    if not _forgets(first, middle, last):
        return (Advice("", "", words="no knob: look at what clients send (order of the prompt, system prompt)"),)
    return window.advise(("num_blocks", "up"), ("max_num_seqs", "down"))


def _forgets(first: SecondTotals, middle: SecondTotals, last: SecondTotals) -> bool:
    """Prompts that repeat are found much less than before."""
    early, late = _repeat_rate(first, middle), _repeat_rate(middle, last)
    return early is not None and late is not None and late <= catalogue.HIT_DROP.value * early


def _rate(first: SecondTotals, last: SecondTotals) -> float | None:
    prompts = last.prompt_tokens - first.prompt_tokens
    return (last.cached_tokens - first.cached_tokens) / prompts if prompts else None


def _repeats(first: SecondTotals, last: SecondTotals) -> float:
    return (last.repeats - first.repeats) / max(last.admitted - first.admitted, 1)


def _repeat_rate(first: SecondTotals, last: SecondTotals) -> float | None:
    prompts = last.repeat_prompt_tokens - first.repeat_prompt_tokens
    return (last.repeat_cached_tokens - first.repeat_cached_tokens) / prompts if prompts else None
