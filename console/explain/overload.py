"""More work arrives than the engine serves, over the whole window."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import SecondTotals
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Severity, percent, seconds, some
from schedtop.console.explain.remedy import remedy
from schedtop.console.explain.window import FactsWindow, last_run
from schedtop.engine.contract.telemetry import Limiter

_PARTS = 4
"""Of the window: the backlog must grow over each."""


def find_overload(window: FactsWindow) -> Finding | None:
    """The backlog in work grows over the whole window while the engine is never idle."""
    trend = [second for second in window.trend if second.end_s >= window.from_s]
    if len(trend) <= _PARTS or not window.queue_lasts:
        return None
    first, last = trend[0], trend[-1]
    span_s = last.end_s - first.end_s
    if span_s < catalogue.MIN_SPAN.value:
        return None
    marks = [trend[round(place * (len(trend) - 1) / _PARTS)].backlog_tokens for place in range(_PARTS + 1)]
    demand = (last.demand_tokens - first.demand_tokens) / span_s
    growth = (last.backlog_tokens - first.backlog_tokens) / span_s
    busy = (last.totals.busy_s - first.totals.busy_s) / span_s
    if not all(np.diff(marks) > 0) or growth < catalogue.GROWTH.value * demand or busy < catalogue.BUSY.value:
        return None
    return Finding(
        "overload",
        catalogue.BY_ID["overload"].title,
        Severity.SEVERE,
        (_rates(first, last, span_s, growth), _backlog(window), _limits(window), _room(window)),
        (window.span(last_run(window.queued)),) if window.queued[-1] else window.spans(window.queued),
        _advice(window),
        len(window.queued_steps),
        "steps with a queue",
    )


def _rates(first: SecondTotals, last: SecondTotals, span_s: float, growth: float) -> CausalLink:
    asked = (last.totals.submitted - first.totals.submitted) / span_s
    ended = (last.totals.finished - first.totals.finished) / span_s
    demand = (last.demand_tokens - first.demand_tokens) / span_s
    return CausalLink(
        f"{asked:.1f} requests/s come ({demand:,.0f} tokens/s of work), {ended:.1f} requests/s end"
        f" ({demand - growth:,.0f} tokens/s): the backlog grows by {growth:,.0f} tokens/s",
        {
            "arrivals_per_s": asked,
            "ends_per_s": ended,
            "demand_tokens_per_s": demand,
            "growth_tokens_per_s": growth,
        },
    )


def _backlog(window: FactsWindow) -> CausalLink:
    waiting = window.waiting()
    oldest = max(waiting.values(), key=lambda known: window.end_s - known.queued_s, default=None)
    left = sum(known.tokens + known.arrival.max_tokens for known in waiting.values())
    wait_s = 0.0 if oldest is None else window.end_s - oldest.queued_s
    name = "" if oldest is None else f", the oldest ({oldest.name}) for {seconds(wait_s)}"
    return CausalLink(
        f"{some(len(waiting), 'request')} wait{name}: {some(left, 'token')} of work",
        {"waiting": len(waiting), "oldest_wait_s": wait_s, "waiting_tokens": left},
    )


def _limits(window: FactsWindow) -> CausalLink:
    """What held the head, as shares of the steps with a queue."""
    queued = window.queued_steps
    shares = {reason: float(queued.reason_mask(reason).mean()) for reason in Limiter if reason is not Limiter.NONE}
    holders = sorted(((share, reason) for reason, share in shares.items() if share >= 0.05), reverse=True)[:3]
    words = ", ".join(f"{reason.value.replace('_', ' ')} in {percent(share)}" for share, reason in holders)
    return CausalLink(
        f"of the steps with a queue the head is held by {words}" if holders else "no one limit holds the head",
        {reason.value: share for share, reason in holders},
    )


def _room(window: FactsWindow) -> CausalLink:
    use, pool = window.steps.share("tokens", "budget"), window.steps.pool_use
    words = f"steps use {percent(use)} of the token budget, requests hold {percent(pool)} of the pool"
    if max(use, pool) < catalogue.LOW_USE.value:
        words += ": there is room, only the limit that holds the head is in the way"
    elif min(use, pool) >= catalogue.LOW_USE.value:
        words += ": no limit adds capacity, it only chooses who waits"
    return CausalLink(words, {"budget_use": use, "kv_use": pool})


def _advice(window: FactsWindow) -> tuple[Advice, ...]:
    found = [advice for advice in remedy(window, window.main_reason) if advice.knob]
    names = {advice.knob for advice in found}
    more = [("max_num_batched_tokens", "up"), ("max_num_seqs", "up")]
    if window.preemptions:
        more = [("watermark", "up"), ("max_num_seqs", "down")]
    found += [advice for advice in window.advise(*more) if advice.knob not in names]
    return (*found, Advice("", "", words="less load, or more engines, where no limit helps"))
