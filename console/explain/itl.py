"""ITL is up when prompts arrive: stalled gaps fall in steps made of prompt chunks."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.finding import CausalLink, Finding, Severity, percent, seconds, some
from schedtop.console.explain.remedy import budget_knob, shorter_chunks
from schedtop.console.explain.window import FactsWindow, Mask, Table

_BAD_SHARE = 0.25


def find_prompts(window: FactsWindow) -> Finding | None:
    """Gaps stall beside prompts, and only there."""
    if window.window_s < catalogue.MIN_SPAN.value or window.num_gaps < catalogue.MIN_GAPS.value:
        return None
    if window.stall_share < catalogue.STALL_SHARE.value:
        return None
    stalled = window.itl_s > window.stall_s
    slow_rows = np.unique(window.itl_step[stalled])
    slow: Mask = np.zeros(len(window.steps), dtype=np.bool_)
    slow[slow_rows] = True
    if slow.all():
        return None  # no other steps to compare with
    part = window.steps["prefill"] / np.maximum(window.steps["tokens"], 1)
    beside = float((part[window.itl_step[stalled]] >= catalogue.PROMPT_PART.value).mean())
    slow_part, other_part = (window.steps.where(mask).share("prefill", "tokens") for mask in (slow, ~slow))
    if beside < catalogue.PROMPT_STALLS.value or slow_part - other_part < catalogue.PROMPT_CONTRAST.value:
        return None
    shown = slow & (part >= catalogue.PROMPT_PART.value)
    return Finding(
        "itl-prompts",
        catalogue.BY_ID["itl-prompts"].title,
        Severity.SEVERE if window.stall_share >= _BAD_SHARE else Severity.WARNING,
        _links(window, slow, beside, slow_part, other_part),
        window.spans(shown, _describe),
        window.advise((budget_knob(window), "down"), shorter_chunks(window)),
        int(stalled.sum()),
        "stalled gaps",
    )


def find_spikes(window: FactsWindow) -> Finding | None:
    """Few gaps, but past what the operator allows."""
    bound_s = window.bounds.itl_s
    if bound_s is None or not len(window.steps):
        return None
    if window.gaps_above(bound_s) < catalogue.SPIKES.value or window.stall_share >= catalogue.STALL_SHARE.value:
        return None
    past = window.itl_s > bound_s
    rows = np.unique(window.itl_step[past])
    slow: Mask = np.zeros(len(window.steps), dtype=np.bool_)
    slow[rows] = True
    slow_part = window.steps.where(slow).share("prefill", "tokens")
    links = (
        CausalLink(
            f"{some(int(past.sum()), 'gap')} of {len(past):,} past the ITL SLO of {seconds(bound_s)}, the longest"
            f" {seconds(float(window.itl_s.max()))}: few, but each is a client that waits",
            {"spikes": int(past.sum()), "gaps": len(past), "longest_s": float(window.itl_s.max())},
        ),
        CausalLink(
            f"they end in {some(len(rows), 'step')}, {percent(slow_part)} of whose tokens are prompts;"
            f" {some(window.steps.where(slow).total('preempted'), 'preemption')} in them",
            {"steps": len(rows), "prompt_part": slow_part},
        ),
    )
    choices = [shorter_chunks(window), (budget_knob(window), "down")]
    if slow_part < catalogue.PROMPT_PART.value and window.preemptions:
        choices = [("watermark", "up"), ("max_num_seqs", "down")]
    return Finding(
        "itl-spikes",
        catalogue.BY_ID["itl-spikes"].title,
        Severity.NOTICE,
        links,
        window.spans(slow, _describe),
        window.advise(*choices),
        int(past.sum()),
        "gaps past the SLO",
    )


def _links(
    window: FactsWindow, slow: Mask, beside: float, slow_part: float, other_part: float
) -> tuple[CausalLink, ...]:
    steps = window.steps
    slow_s, other_s = (float(np.median((steps["end_s"] - steps["start_s"])[mask])) for mask in (slow, ~slow))
    chunk, budget = steps.where(slow).mean("prefill"), float(steps["budget"][-1])
    return (
        CausalLink(window.itl_words(), {"stall_share": window.stall_share, "stall_s": window.stall_s}),
        CausalLink(
            f"{percent(beside)} of the stalls lie in steps that are mostly prompt tokens: {int(slow.sum())} slow"
            f" steps of {seconds(slow_s)}, the others take {seconds(other_s)}",
            {"beside_prompts": beside, "slow_steps": int(slow.sum()), "slow_s": slow_s, "other_s": other_s},
        ),
        CausalLink(
            f"slow steps are {percent(slow_part)} prompt tokens, the others {percent(other_part)}",
            {"slow_prompt_part": slow_part, "other_prompt_part": other_part},
        ),
        CausalLink(
            f"a slow step takes {some(chunk, 'prompt token')} beside its decodes; the budget is {budget:.0f} tokens",
            {"prompt_tokens": chunk, "budget": budget},
        ),
    )


def _describe(steps: Table) -> str:
    slowest_s = float((steps["end_s"] - steps["start_s"]).max())
    return f"{steps.mean('prefill'):.0f} prompt tokens a step, up to {seconds(slowest_s)}"
