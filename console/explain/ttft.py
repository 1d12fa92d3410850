"""TTFT is up while ITL is smooth: what holds the queue, and what the budget is spent on."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Numbers, Severity, percent, seconds, some
from schedtop.console.explain.remedy import budget_knob, cap_knob
from schedtop.console.explain.window import FactsWindow
from schedtop.console.past import sample_sizes
from schedtop.engine.contract.latencies.cohort import Bounded
from schedtop.engine.contract.telemetry import Limiter

_BUDGETS = (Limiter.TOKEN_BUDGET, Limiter.INPUT_BUDGET)
_POOL = (Limiter.BLOCKS, Limiter.FULL_SEQUENCE)
_MANY = 4.0


def find_decodes(window: FactsWindow) -> Finding | None:
    """The budget holds the head, and decodes have it."""
    part = _decode_part(window)
    if not _budget_holds(window) or part < catalogue.DECODE_PART.value:
        return None
    links = (
        *_symptom(window),
        _budget_link(window),
        CausalLink(
            f"running requests take {percent(part)} of the budget for decodes, before any prompt",
            {"decode_part": part, "running": window.queued_steps.mean("running")},
        ),
    )
    advice = window.advise((budget_knob(window), "up"), ("max_num_seqs", "down"))
    return _finding(window, "ttft-decodes", links, advice, _BUDGETS)


def find_backlog(window: FactsWindow) -> Finding | None:
    """The budget holds the head, and prompts have it."""
    if not _budget_holds(window) or _decode_part(window) >= catalogue.DECODE_PART.value:
        return None
    part = window.queued_steps.share("prefill", "budget")
    backlog = sum(known.tokens for known in window.waiting().values())
    rate = window.steps.total("prefill") / max(window.window_s, 1e-9)
    words = f"prompts already admitted take {percent(part)} of the budget"
    if backlog and rate:
        words += f"; {backlog} prompt tokens still wait, {seconds(backlog / rate)} of prompt work at {rate:.0f}/s"
    links = (
        *_symptom(window),
        _budget_link(window),
        CausalLink(words, {"prompt_part": part, "backlog_tokens": backlog, "prompt_tokens_per_s": rate}),
    )
    choices = [(budget_knob(window), "up")]
    if window.knob("long_prefill_token_threshold"):
        choices.append(("long_prefill_token_threshold", "up"))
    return _finding(window, "ttft-backlog", links, window.advise(*choices), _BUDGETS)


def find_sequence_cap(window: FactsWindow) -> Finding | None:
    """The head waits for a place below the cap."""
    if not _up(window) or window.reason_share(Limiter.SEQUENCE_CAP) < catalogue.MAIN_SHARE.value:
        return None
    queued = window.queued_steps
    cap = float(queued.held_by(Limiter.SEQUENCE_CAP)["need"][-1])
    use = queued.share("tokens", "budget")
    links = (
        *_symptom(window),
        _held_link(window, Limiter.SEQUENCE_CAP),
        CausalLink(
            f"the cap is {some(cap, 'request')}, reached with {percent(use)} of the token budget"
            f" and {percent(queued.pool_use)} of the pool in use",
            {"cap": cap, "budget_use": use, "kv_use": queued.pool_use},
        ),
    )
    advice = window.advise((cap_knob(window), "up"))
    return _finding(window, "ttft-sequence-cap", links, advice, (Limiter.SEQUENCE_CAP,))


def find_pool(window: FactsWindow) -> Finding | None:
    """The head waits for blocks."""
    if not _up(window) or window.reason_share(*_POOL) < catalogue.MAIN_SHARE.value:
        return None
    queued = window.queued_steps
    held = queued.held_by(*_POOL)
    need, have = held.mean("need"), held.mean("have")
    links = (
        *_symptom(window),
        _held_link(window, *_POOL),
        CausalLink(
            f"the head needs {some(need, 'block')} on average, {have:.0f} free:"
            f" the pool is {percent(queued.pool_use)} full",
            {"need_blocks": need, "free_blocks": have, "kv_use": queued.pool_use},
        ),
    )
    choices = [("num_blocks", "up")]
    if window.reason_share(Limiter.FULL_SEQUENCE) > window.reason_share(Limiter.BLOCKS):
        choices.insert(0, ("scheduler_reserve_full_isl", "off"))
    return _finding(window, "ttft-pool", links, window.advise(*choices), _POOL)


def _up(window: FactsWindow) -> bool:
    """TTFT is queue time, the queue lasts, and gaps are smooth."""
    firsts = window.firsts
    if len(firsts) < catalogue.MIN_FIRSTS.value or not window.queue_lasts or not window.itl_smooth:
        return False
    p95 = window.ttft.quantile(0.95)
    if window.bounds.ttft_s is not None and p95 is not None and p95.least <= window.bounds.ttft_s:
        return False
    ttft_s, queue_s = np.median(firsts[:, 2]), np.median(firsts[:, 3])
    return bool(
        queue_s >= catalogue.QUEUE_PART.value * ttft_s and queue_s >= catalogue.QUEUE_STEPS.value * window.step_s
    )


def _budget_holds(window: FactsWindow) -> bool:
    return _up(window) and window.reason_share(*_BUDGETS) >= catalogue.MAIN_SHARE.value


def _decode_part(window: FactsWindow) -> float:
    """Decodes and their drafts as a share of the budget of the steps with a queue."""
    queued = window.queued_steps
    return queued.share("decodes", "budget") + queued.share("drafts", "budget")


def _symptom(window: FactsWindow) -> tuple[CausalLink, ...]:
    """TTFT with those who still wait, and what is known of its parts."""
    firsts, members = window.firsts, window.ttft
    ttft50, queue50 = float(np.median(firsts[:, 2])), float(np.median(firsts[:, 3]))
    numbers: Numbers = {"n": members.n, "open": members.num_open, "stall_share": window.stall_share}
    words = []
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        figure = sample_sizes.bounded(members, share)
        words.append(f"{name} {_figure(figure)}")
        if figure is not None:
            numbers[f"ttft_{name}_s"] = figure.least
    size = f"n={members.n}+{members.num_open}" if members.num_open else f"n={members.n}"
    part = queue50 / ttft50 if ttft50 else 0.0
    return (
        CausalLink(f"TTFT {', '.join(words)} ({size}); {window.itl_words()}", numbers),
        CausalLink(
            f"queue p50 {seconds(queue50)} of those who got a first token: {percent(part)} of their TTFT,"
            f" {queue50 / window.step_s:.0f} median steps",
            {"queue_p50_s": queue50, "queue_part": part, "step_s": window.step_s},
        ),
    )


def _figure(found: Bounded | None) -> str:
    """`2.31 s`, or `>2.31 s` where those who still wait can only raise it."""
    return sample_sizes.LACK if found is None else f"{'>' if found.is_bound else ''}{seconds(found.least)}"


def _held_link(window: FactsWindow, *reasons: Limiter) -> CausalLink:
    share, names = window.reason_share(*reasons), " or ".join(reason.replace("_", " ") for reason in reasons)
    words = f"requests wait in {percent(window.queued_share)} of steps; the head is held by {names}"
    return CausalLink(
        f"{words} in {percent(share)} of them",
        {"queued_share": window.queued_share, **{reason.value: window.reason_share(reason) for reason in reasons}},
    )


def _budget_link(window: FactsWindow) -> CausalLink:
    return _held_link(window, *_BUDGETS)


def _finding(
    window: FactsWindow,
    name: str,
    links: tuple[CausalLink, ...],
    advice: tuple[Advice, ...],
    reasons: tuple[Limiter, ...],
) -> Finding:
    firsts = window.firsts
    ttft_s, queue_s = float(np.median(firsts[:, 2])), float(np.median(firsts[:, 3]))
    severe = queue_s >= _MANY * max(ttft_s - queue_s, window.step_s) and window.queued_share > 0.9
    held = window.queued & window.steps.reason_mask(*reasons)
    return Finding(
        name,
        catalogue.BY_ID[name].title,
        Severity.SEVERE if severe else Severity.WARNING,
        links,
        window.spans(held, lambda part: f"{part.mean('waiting'):.0f} waiting on average"),
        advice,
        len(firsts),
        "first tokens",
    )
