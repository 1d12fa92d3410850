"""More state than the pool holds: preemptions, recomputed work, and requests that loop."""

from __future__ import annotations

from collections import Counter

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import FloatArray
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Numbers, Severity, percent, seconds, some
from schedtop.console.explain.window import FactsWindow, Gaps, Mask, marks
from schedtop.engine.contract.telemetry import Preemption

_BAD_SHARE = 0.15


def find_pressure(window: FactsWindow) -> Finding | None:
    """Several preemptions, and a noticeable part of the work done again."""
    share = recomputed_share(window)
    if len(window.preemptions) < catalogue.PREEMPTIONS.value or share < catalogue.RECOMPUTED.value:
        return None
    return Finding(
        "preemption-pressure",
        catalogue.BY_ID["preemption-pressure"].title,
        Severity.SEVERE if share >= _BAD_SHARE else Severity.WARNING,
        (_latency_link(window), *_ledger_links(window)),
        marks(window.preemptions, lambda event: _describe(window, event)),
        _advice(window),
        len(window.preemptions),
        "preemptions",
    )


def find_loop(window: FactsWindow) -> Finding | None:
    """The ledger marks a loop."""
    loops = [item for item in window.preemptions if item.event.loop]
    if not loops:
        return None
    numbers = Counter(item.event.number for item in loops)
    worst, times = numbers.most_common(1)[0]
    count = max(item.event.count for item in loops if item.event.number == worst)
    lost = sum(item.event.lost_tokens for item in window.preemptions if item.event.number == worst)
    others = f", and {some(len(numbers) - 1, 'more request')} like it" if len(numbers) > 1 else ""
    link = CausalLink(
        f"{window.name(worst)} was preempted {count} times; nothing finished between the last {times + 2}{others}",
        {"number": worst, "preemptions": count, "looping": len(numbers), "lost_tokens": lost},
    )
    return Finding(
        "preempt-loop",
        catalogue.BY_ID["preempt-loop"].title,
        Severity.SEVERE,
        (link, *_ledger_links(window)),
        marks(loops, lambda event: _describe(window, event)),
        _advice(window),
        len(loops),
        "looping preemptions",
    )


def recomputed_share(window: FactsWindow) -> float:
    """Tokens computed a second time among all scheduled in the window."""
    return window.steps.share("recomputed", "tokens")


def _latency_link(window: FactsWindow) -> CausalLink:
    """TTFT and ITL, each before and since the first preemption, if both sides have enough samples."""
    seq = window.preemptions[0].seq
    later = window.firsts[:, 0] >= seq
    gap_later = window.steps["seq"][window.itl_step] >= seq
    ttft, ttft_numbers = _sides("TTFT", window.firsts[:, 2], later, 0.5, catalogue.MIN_FIRSTS.value)
    itl, itl_numbers = _sides("ITL", window.itl_s, gap_later, 0.95, catalogue.MIN_GAPS.value)
    return CausalLink(f"{ttft}; {itl}", {**ttft_numbers, **itl_numbers})


def _sides(name: str, values_s: FloatArray | Gaps, later: Mask, share: float, least: float) -> tuple[str, Numbers]:
    quantile, key = f"p{100 * share:.0f}", name.lower()
    since, before = values_s[later], values_s[~later]
    if len(since) < least:
        return f"{name} has only {some(len(since), 'sample')} since the first preemption", {f"{key}_n": len(since)}
    since_s = float(np.quantile(since, share))
    numbers: Numbers = {f"{key}_{quantile}_s": since_s, f"{key}_n": len(since)}
    words = f"{name} {quantile} {seconds(since_s)} (n={len(since)})"
    if len(before) >= least:
        before_s = float(np.quantile(before, share))
        numbers[f"{key}_{quantile}_before_s"] = before_s
        words += f", {seconds(before_s)} before the first preemption (n={len(before)})"
    return words, numbers


def _ledger_links(window: FactsWindow) -> tuple[CausalLink, ...]:
    events = [item.event for item in window.preemptions]
    lost, again = sum(event.lost_tokens for event in events if not event.swapped), window.steps.total("recomputed")
    usage = float(np.mean([event.usage_before for event in events]))
    running = window.steps.mean("running")
    return (
        CausalLink(
            f"{some(len(events), 'preemption')} threw {some(lost, 'computed token')} away;"
            f" {some(again, 'token')} computed again,"
            f" {percent(recomputed_share(window))} of all work",
            {
                "preemptions": len(events),
                "lost_tokens": lost,
                "recomputed_tokens": int(again),
                "recomputed_share": recomputed_share(window),
            },
        ),
        CausalLink(
            f"at those moments the pool was {percent(usage)} full, with {some(running, 'request')} running",
            {"usage_before": usage, "running": running},
        ),
        CausalLink(
            _outgrown(window),
            {"pool_blocks": window.pool_blocks, "watermark": float(window.knob("watermark") or 0.0)},
        ),
    )


def _outgrown(window: FactsWindow) -> str:
    """What grew beyond the pool: a victim that had less computed than its prompt has no outputs to blame."""
    known = window.facts.known
    victims = [(item.event, known[item.event.number]) for item in window.preemptions if item.event.number in known]
    inside = sum(event.lost_tokens < victim.arrival.prompt_tokens for event, victim in victims)
    if 2 * inside > len(victims):
        return "prompts were admitted a chunk at a time; whole they do not fit beside the others"
    return "requests were admitted by what they held then; their outputs outgrew the pool"


def _advice(window: FactsWindow) -> tuple[Advice, ...]:
    choices = [("max_num_seqs", "down"), ("watermark", "up"), ("num_blocks", "up")]
    if window.knob("scheduler_reserve_full_isl") is False:
        choices.insert(0, ("scheduler_reserve_full_isl", "on"))
    return window.advise(*choices)


def _describe(window: FactsWindow, event: Preemption) -> str:
    whom = "itself" if event.number == event.for_number else window.name(event.for_number)
    loop = ", loop" if event.loop else ""
    return (
        f"{window.name(event.number)} gave way to {whom}: {some(event.freed_blocks, 'block')} freed,"
        f" {some(event.lost_tokens, 'token')} {'swapped out' if event.swapped else 'lost'}{loop}"
    )
