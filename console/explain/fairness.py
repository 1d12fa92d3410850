"""Requests that starve: others overtake them again and again."""

from __future__ import annotations

import numpy as np
from schedtop.console.drawing import text
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import Known
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Number, Severity, seconds, some
from schedtop.console.explain.remedy import remedy
from schedtop.console.explain.window import FactsWindow
from schedtop.engine.contract.telemetry import Limiter

_NAMED = 3
"""At most this many requests of a class are named, and clients."""


def find_starving(window: FactsWindow) -> Finding | None:
    """Waiting requests that many later arrivals have overtaken, or that wait far longer than others did."""
    usual_s = float(np.median(window.firsts[:, 3])) if len(window.firsts) >= catalogue.MIN_FIRSTS.value else None
    starving, overtaken = _starving(window, usual_s)
    if not starving or not len(window.steps):
        return None
    classes = len({known.arrival.priority for known in window.facts.known.values()}) > 1
    cause = CausalLink(
        "more urgent requests keep coming: as long as they fill every place, the others get none"
        if classes
        else "others are ready before them",
        {"classes": classes},
    )
    advice = (
        *window.advise(("max_num_seqs", "up")),
        Advice("", "", words="give them a more urgent class, or less load"),
    )
    if all(known.arrival.adapter for known in starving) and window.main_reason is Limiter.LORA:
        cause = CausalLink("the adapters in use keep their slots as long as requests for them keep coming", {})
        advice = (*remedy(window, Limiter.LORA), Advice("", "", words="fewer adapters on this engine"))
    return Finding(
        "starvation",
        catalogue.BY_ID["starvation"].title,
        Severity.SEVERE,
        (
            _worst(window, starving[0], overtaken),
            _by_class(window, starving, usual_s),
            *_by_client(window, starving),
            cause,
        ),
        window.spans(window.steps["waiting"] > 0),
        advice,
        len(starving),
        "starving requests",
    )


def _starving(window: FactsWindow, usual_s: float | None) -> tuple[list[Known], dict[int, int]]:
    """Starving requests, longest wait first; and how many requests overtook each waiting one."""
    overtaken = window.facts.overtaken()
    arrivals = [known.arrival for known in window.facts.known.values()]
    parted = len({(arrival.priority, arrival.client) for arrival in arrivals}) > 1
    long_s = (
        float("inf") if usual_s is None else max(catalogue.MUCH_LONGER.value * usual_s, catalogue.LONG_WAIT.value)
    )

    def starves(number: int, known: Known) -> bool:
        late = parted and window.end_s - known.queued_s > long_s
        return overtaken[number] > catalogue.OVERTAKEN.value or (late and overtaken[number] > 0)

    found = [known for number, known in window.waiting().items() if starves(number, known)]
    return sorted(found, key=lambda known: known.queued_s), overtaken


def _worst(window: FactsWindow, worst: Known, overtaken: dict[int, int]) -> CausalLink:
    arrival, wait_s = worst.arrival, window.end_s - worst.queued_s
    num = overtaken[arrival.number]
    who = f"priority {arrival.priority}, lower is more urgent"
    who += f"; client {text.clean(arrival.client, 40)}" if arrival.client else ""
    return CausalLink(
        f"{worst.name} ({who}) has waited {seconds(wait_s)}; {some(num, 'later arrival')} overtook it",
        {
            "number": arrival.number,
            "client": text.clean(arrival.client, 40) or None,
            "wait_s": wait_s,
            "overtaken_by": num,
        },
    )


def _by_class(window: FactsWindow, starving: list[Known], usual_s: float | None) -> CausalLink:
    """Starving requests by class, and for how long."""
    words, numbers = [], dict[str, Number](starving=len(starving), usual_wait_s=usual_s)
    for priority in sorted({known.arrival.priority for known in starving}):
        mine = [known for known in starving if known.arrival.priority == priority]
        names = [f"{known.name} for {seconds(window.end_s - known.queued_s)}" for known in mine[:_NAMED]]
        more = f" and {len(mine) - _NAMED} more" if len(mine) > _NAMED else ""
        words.append(f"{len(mine)} of priority {priority} ({', '.join(names)}{more})")
        numbers[f"starving_of_priority_{priority}"] = len(mine)
        numbers[f"wait_of_priority_{priority}_s"] = window.end_s - mine[0].queued_s
    usual = "" if usual_s is None else f"; the median wait of all is {seconds(usual_s)}"
    return CausalLink(f"{some(len(starving), 'request')} starve: {', '.join(words)}{usual}", numbers)


def _by_client(window: FactsWindow, starving: list[Known]) -> tuple[CausalLink, ...]:
    """How many of each client and for how long, the longest first; nothing where no client is known."""
    found: dict[str, list[Known]] = {}
    for known in starving:
        found.setdefault(known.arrival.client, []).append(known)
    if not any(found):
        return ()
    words, numbers = [], dict[str, Number](clients=len(found))
    for client, mine in list(found.items())[:_NAMED]:
        name, wait_s = text.clean(client, 40) or "unnamed", window.end_s - mine[0].queued_s
        words.append(f"{name} {len(mine)}, for up to {seconds(wait_s)}")
        numbers[f"starving_of_client_{name}"] = len(mine)
        numbers[f"wait_of_client_{name}_s"] = wait_s
    more = f"; {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (CausalLink(f"by client: {'; '.join(words)}{more}", numbers),)


def find_deferred(window: FactsWindow) -> Finding | None:
    """Requests that wait for something outside the scheduler."""
    deferred = window.facts.deferred
    waiting = int(window.records["waiting"][-1]) if len(window.records) else 0
    total = sum(deferred.values())
    if (
        not total
        or total < catalogue.DEFERRED_SHARE.value * waiting
        or window.facts.deferred_s < catalogue.LONG_WAIT.value
    ):
        return None
    words = ", ".join(f"{count} for {reason.replace('_', ' ')}" for reason, count in deferred.items())
    links = (
        CausalLink(f"{some(total, 'request')} of {waiting} waiting are not ready: {words}", {"deferred": total}),
        CausalLink(
            "admission passes them over; they keep their place, and no limit holds them", {"waiting": waiting}
        ),
    )
    remedy = (Advice("", "", words="look at what they wait for; no limit is at fault"),)
    title = catalogue.BY_ID["deferred"].title
    span = (window.span(np.array([len(window.steps) - 1])),) if len(window.steps) else ()
    return Finding("deferred", title, Severity.NOTICE, links, span, remedy, total, "deferred requests")
