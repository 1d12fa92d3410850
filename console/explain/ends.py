"""Unsuccessful ends: answers cut off, requests refused, prompts computed for nothing."""

from __future__ import annotations

from collections import Counter

from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import Marked
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Severity, percent, some
from schedtop.console.explain.window import FactsWindow, marks
from schedtop.engine.contract.telemetry import Finish, FinishReason, Refusal


def find_cut_off(window: FactsWindow) -> Finding | None:
    """Answers that ended because the pool was full."""
    cut = [item for item in window.ends if item.event.reason == FinishReason.KV_CAPACITY]
    if not cut:
        return None
    outputs = sum(item.event.output_tokens for item in cut)
    links = (
        CausalLink(
            f"{some(len(cut), 'answer')} ended by kv_capacity after {some(outputs, 'output')} in all: clients got less"
            " than they asked for",
            {"cut_off": len(cut), "output_tokens": outputs},
        ),
        CausalLink(
            "each of them alone needs the whole pool: nothing is left to preempt for it",
            {"pool_blocks": window.pool_blocks},
        ),
    )
    return _finding(window, "cut-off", Severity.SEVERE, links, cut, window.advise(("num_blocks", "up")), "answers")


def find_refused(window: FactsWindow) -> Finding | None:
    """A share of the requests is turned away."""
    refused, asked = window.refusals, window.count("submitted")
    if len(refused) < catalogue.REFUSALS.value or len(refused) < catalogue.REFUSED_SHARE.value * asked:
        return None
    reasons = Counter(item.event.reason for item in refused)
    reason, times = reasons.most_common(1)[0]
    links = (
        CausalLink(
            f"{some(len(refused), 'request')} of {asked} refused, {percent(len(refused) / max(asked, 1))}: no latency"
            " and no goodput speaks for them",
            {"refused": len(refused), "submitted": asked},
        ),
        CausalLink(f"{some(times, 'time')}: {reason}", {"reason": reason}),
    )
    advice: tuple[Advice, ...] = window.advise(("num_blocks", "up"))
    if any("max_model_len" in item.event.reason for item in refused):
        advice = window.advise(("max_model_len", "up"))
    elif "own length" in reason:
        advice = (Advice("", "", words="a model that takes longer sequences; no limit of this one lets them in"),)
    return _finding(window, "refused", Severity.WARNING, links, refused, advice, "refusals")


def find_aborted(window: FactsWindow) -> Finding | None:
    """Prompts are computed for clients who leave before the first output."""
    wasted, scheduled = window.count("aborted_prefill_tokens"), window.count("scheduled_tokens")
    if not wasted or wasted < catalogue.WASTED.value * max(scheduled, 1):
        return None
    aborts = [item for item in window.ends if item.event.reason == FinishReason.ABORT and item.event.ttft_s is None]
    if not aborts:
        return None
    links = (
        CausalLink(
            f"aborted while in prefill: {some(wasted, 'token')} computed for nothing,"
            f" {percent(wasted / max(scheduled, 1))} of all work",
            {"aborted_prefill_tokens": wasted, "scheduled_tokens": scheduled},
        ),
        CausalLink(f"{some(len(aborts), 'client')} left before a first output", {"aborts": len(aborts)}),
    )
    remedy = (Advice("", "", words="clients' timeouts, and what makes TTFT long; no limit gives the work back"),)
    return _finding(window, "aborted-prefill", Severity.WARNING, links, aborts, remedy, "aborts")


def _finding(
    window: FactsWindow,
    name: str,
    severity: Severity,
    links: tuple[CausalLink, ...],
    events: list[Marked[Finish]] | list[Marked[Refusal]],
    advice: tuple[Advice, ...],
    what: str,
) -> Finding:
    evidence = marks(events, lambda event: window.name(event.number))
    return Finding(name, catalogue.BY_ID[name].title, severity, links, evidence, advice, len(events), what)
