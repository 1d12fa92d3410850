"""Requests that starve: others overtake them again and again."""

from __future__ import annotations

from collections import Counter

import numpy as np
from schedtop.console.explain import catalogue as table
from schedtop.console.explain.facts import Known
from schedtop.console.explain.finding import Advice, Finding, Link, Severity, seconds, some
from schedtop.console.explain.remedy import remedy
from schedtop.console.explain.window import Window
from schedtop.engine.contract.telemetry import Limiter


def find_starving(window: Window) -> Finding | None:
    """A waiting request that many later arrivals have overtaken, or that waits far longer than the others did."""
    usual_s = float(np.median(window.firsts[:, 3])) if len(window.firsts) >= table.MIN_FIRSTS.value else None
    classes = len({known.arrival.priority for known in window.facts.known.values()}) > 1
    starving: dict[int, tuple[Known, int]] = {}
    for number, known in window.waiting().items():
        overtaken = window.facts.num_admitted_after(number)
        late = usual_s is not None and window.end_s - known.queued_s > max(
            table.MUCH_LONGER.value * usual_s, table.LONG_WAIT.value
        )
        if overtaken > table.OVERTAKEN.value or (classes and overtaken and late):
            starving[number] = (known, overtaken)
    if not starving or not len(window.steps):
        return None
    worst, overtaken = max(starving.values(), key=lambda pair: window.end_s - pair[0].queued_s)
    wait_s = window.end_s - worst.queued_s
    by_class = Counter(known.arrival.priority for known, _ in starving.values())
    words = ", ".join(f"{count} of priority {priority}" for priority, count in sorted(by_class.items()))
    links = (
        Link(
            f"{worst.name} (priority {worst.arrival.priority}, lower is more urgent) has waited {seconds(wait_s)};"
            f" {some(overtaken, 'later arrival')} overtook it",
            {"number": worst.arrival.number, "wait_s": wait_s, "overtaken_by": overtaken},
        ),
        Link(
            f"{some(len(starving), 'request')} starve: {words}"
            + ("" if usual_s is None else f"; the median wait of all is {seconds(usual_s)}"),
            {"starving": len(starving), "usual_wait_s": usual_s},
        ),
        Link(
            "more urgent requests keep coming: as long as they fill every place, the others get none"
            if classes
            else "others are ready before them",
            {"classes": classes},
        ),
    )
    advice = (
        *window.advise(("max_num_seqs", "up")),
        Advice("", "", words="give them a more urgent class, or less load"),
    )
    if all(known.arrival.adapter for known, _ in starving.values()) and window.main_reason is Limiter.LORA:
        links = (
            *links[:-1],
            Link("the adapters in use keep their slots as long as requests for them keep coming", {}),
        )
        advice = (*remedy(window, Limiter.LORA), Advice("", "", words="fewer adapters on this engine"))
    rows = window.steps["waiting"] > 0
    return Finding(
        "starvation",
        table.BY_ID["starvation"].title,
        Severity.SEVERE,
        links,
        window.spans(rows),
        advice,
        len(starving),
        "starving requests",
    )


def find_deferred(window: Window) -> Finding | None:
    """Requests that wait for something that is not the scheduler's."""
    deferred = window.facts.deferred
    waiting = int(window.records["waiting"][-1]) if len(window.records) else 0
    total = sum(deferred.values())
    if not total or total < table.DEFERRED_SHARE.value * waiting or window.facts.deferred_s < table.LONG_WAIT.value:
        return None
    words = ", ".join(f"{count} for {reason.replace('_', ' ')}" for reason, count in deferred.items())
    links = (
        Link(f"{some(total, 'request')} of {waiting} waiting are not ready: {words}", {"deferred": total}),
        Link("admission passes them over; they keep their place, and no limit holds them", {"waiting": waiting}),
    )
    remedy = (Advice("", "", words="look at what they wait for; no limit is at fault"),)
    title = table.BY_ID["deferred"].title
    span = (window.span(np.array([len(window.steps) - 1])),) if len(window.steps) else ()
    return Finding("deferred", title, Severity.NOTICE, links, span, remedy, total, "deferred requests")
