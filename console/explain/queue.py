"""Requests wait although there is room: which check holds the head, and which requests the head blocks."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import REASONS
from schedtop.console.explain.finding import CausalLink, Finding, Severity, percent, seconds, some
from schedtop.console.explain.remedy import remedy
from schedtop.console.explain.window import FactsWindow, Mask, Rows, Table, last_run
from schedtop.engine.contract.telemetry import DEFERRED, Limiter

_POOL = (Limiter.BLOCKS, Limiter.FULL_SEQUENCE, Limiter.WATERMARK)
_BUDGETS = (Limiter.TOKEN_BUDGET, Limiter.INPUT_BUDGET)


def find_low_use(window: FactsWindow) -> Finding | None:
    """The queue lasts, steps are mostly empty, and one check holds the head."""
    if not window.queue_lasts:
        return None
    queued, reason = window.queued_steps, window.main_reason
    use, share = queued.share("tokens", "budget"), window.reason_share(reason)
    if use >= catalogue.LOW_USE.value or share < catalogue.MAIN_SHARE.value or reason in (Limiter.NONE, *_BUDGETS):
        return None
    links = (
        _queue_link(window),
        CausalLink(
            f"meanwhile steps use {percent(use)} of the token budget; the pool is {percent(queued.pool_use)} in use",
            {"budget_use": use, "kv_use": queued.pool_use},
        ),
        _check_link(window, reason, share),
    )
    return _finding(window, "queue-low-use", links, reason)


def find_watermark(window: FactsWindow) -> Finding | None:
    """The head would fit without the watermark."""
    share = window.reason_share(Limiter.WATERMARK)
    if not window.queue_lasts or share < catalogue.MAIN_SHARE.value:
        return None
    held = window.queued_steps.held_by(Limiter.WATERMARK)
    need, have, reserve = held.mean("need"), held.mean("have"), held.mean("reserve")
    pool = held["used"] + held["free"]
    links = (
        _queue_link(window),
        CausalLink(
            f"in {percent(share)} of them the watermark holds the head: it would fit otherwise",
            {"watermark_share": share},
        ),
        CausalLink(
            f"on average it needs {some(need, 'block')} of {have:.0f} free; {reserve:.0f} must stay free"
            f" ({percent(float(reserve / pool.mean()))} of the pool)",
            {"need_blocks": need, "free_blocks": have, "reserve_blocks": reserve},
        ),
        CausalLink(
            f"the reserve is for growth: {some(len(window.preemptions), 'preemption')} in this window",
            {"preemptions": len(window.preemptions)},
        ),
    )
    return _finding(window, "watermark-holds", links, Limiter.WATERMARK)


def find_head_blocks(window: FactsWindow) -> Finding | None:
    """The same head has waited for blocks for many steps, and whole prompts behind it would fit."""
    rows = _same_head(window)
    if len(rows) < catalogue.MIN_STEPS.value:
        return None
    held = Table(window.steps.matrix[rows])
    number, reason = int(held["head"][-1]), Limiter(REASONS[int(held["limiter"][-1])])
    fitting = _fitting(window, number, held)
    if len(fitting) < catalogue.FITTING.value:
        return None
    behind, smallest = len(window.waiting().keys() - {number}), min(fitting)
    free, need, reserve = (int(held[name][-1]) for name in ("have", "need", "reserve"))
    span_s = window.end_s - float(held["start_s"][0])
    reserved = f", {reserve} of them to stay free" if reserve else ""
    links = (
        CausalLink(
            f"of {some(behind, 'request')} behind the head, {len(fitting)} would have fitted all the time"
            f" spent waiting there: the smallest needs {some(smallest, 'block')}, {free} free{reserved}",
            {"fitting": len(fitting), "behind": behind, "smallest_blocks": smallest, "free_blocks": free},
        ),
        CausalLink("nobody overtakes the head of the queue, so they wait with it", {"span_s": span_s}),
        CausalLink(
            f"{window.name(number)} needs {some(need, 'block')}: at the head for {len(rows)} steps ({seconds(span_s)}),"
            f" held by {reason.replace('_', ' ')}",
            {"number": number, "need_blocks": need, "steps": len(rows), "reason": reason.value},
        ),
    )
    return Finding(
        "head-blocks-smaller",
        catalogue.BY_ID["head-blocks-smaller"].title,
        Severity.WARNING,
        links,
        (window.span(rows, lambda part: f"{window.name(number)} at the head"),),
        remedy(window, reason),
        len(fitting),
        "requests held up",
    )


def _same_head(window: FactsWindow) -> Rows:
    """Rows of `steps` up to the newest in which the present head was held by the pool, without a break."""
    steps = window.steps
    held = steps.reason_mask(*_POOL) & (steps["waiting"] > 1)
    return last_run(held & (steps["head"] == steps["head"][-1:]))


def _fitting(window: FactsWindow, head: int, held: Table) -> list[int]:
    """Blocks of the whole prompts that waited behind the head for enough steps and would have fitted in each."""
    size = window.facts.header.block_size if window.facts.header is not None else 16
    # Least room from each row to the newest: what a request that came then could count on.
    room = np.minimum.accumulate((held["have"] - held["reserve"])[::-1])[::-1]
    latest = len(held) - int(catalogue.MIN_STEPS.value)
    found = []
    for number, known in window.waiting().items():
        row, blocks = int(np.searchsorted(held["start_s"], known.queued_s)), -(-known.tokens // size)
        if number != head and row <= latest and blocks <= room[row]:
            found.append(blocks)
    return found


def _queue_link(window: FactsWindow) -> CausalLink:
    waiting = window.queued_steps.mean("waiting")
    return CausalLink(
        f"{some(waiting, 'request')} in the queue on average, in {percent(window.queued_share)} of steps",
        {"waiting": waiting, "queued_share": window.queued_share},
    )


def _check_link(window: FactsWindow, reason: Limiter, share: float) -> CausalLink:
    held = window.queued_steps.held_by(reason)
    need, have, reserve = (held.mean(name) for name in ("need", "have", "reserve"))
    known = {"need": need, "have": have, "reserve": reserve} if need == need else {}
    match reason:
        case Limiter.SEQUENCE_CAP:
            words = f"the cap is {some(need, 'request')}, {have:.0f} running"
        case Limiter.FULL_SEQUENCE:
            words = f"the whole sequence needs {some(need, 'block')}, {have:.0f} free; the next chunk would fit"
        case Limiter.WATERMARK:
            words = f"it needs {need:.0f} of {have:.0f} free blocks, but {reserve:.0f} must stay free"
        case Limiter.BLOCKS:
            words = f"it needs {some(need, 'block')}, {have:.0f} free"
        case Limiter.ENCODER:
            words = f"its next image has {some(need, 'token')}, {have:.0f} are left of the encoder's step"
        case Limiter.LORA:
            words = f"other adapters have all {some(need, 'slot')}"
        case Limiter.CHUNKING_OFF:
            words = f"its whole prompt of {some(need, 'token')} does not fit the {have:.0f} left of a step"
        case _ if reason in DEFERRED:
            words = "nobody who waits is ready"
        case _:
            words = f"{some(len(window.preemptions), 'preemption')} in the window"
    label = reason.replace("_", " ")
    return CausalLink(
        f"the head is held by {label} in {percent(share)} of those steps: {words}",
        {"reason": reason.value, "reason_share": share, **known},
    )


def _finding(window: FactsWindow, name: str, links: tuple[CausalLink, ...], reason: Limiter) -> Finding:
    held: Mask = window.queued & window.steps.reason_mask(reason)
    return Finding(
        name,
        catalogue.BY_ID[name].title,
        Severity.WARNING,
        links,
        window.spans(held, lambda part: f"{part.mean('waiting'):.0f} waiting, {part.mean('running'):.0f} running"),
        remedy(window, reason),
        int(held.sum()),
        "steps",
    )
