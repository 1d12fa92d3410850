"""Not the scheduler: steps slow for what is in them, a device that idles, time lost before arrival."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import FloatArray
from schedtop.console.explain.finding import (
    Advice,
    CausalLink,
    Finding,
    Numbers,
    Severity,
    StepRange,
    percent,
    seconds,
    some,
)
from schedtop.console.explain.window import FactsWindow, Mask, Rows, Table

_PER_DOUBLING = 3.0
"""Steps of one mix differ by at most a third of a doubling (26 %) in decodes, prompt tokens and attended tokens."""

_BAD_SHARE = 0.15
_MAX_MIXES = 4096


def find_slow(window: FactsWindow) -> Finding | None:
    """Steps whose device time is far above the median of steps with the same mix."""
    steps = window.steps
    if len(steps) < catalogue.SAME_MIX.value:
        return None
    usual_s, group, since = _usual(steps, window.facts.usual_s)
    slow: Mask = steps["execute_s"] >= catalogue.SLOWER.value * usual_s
    lost_s = float((steps["execute_s"] - usual_s)[slow].sum())
    share = lost_s / max(steps.total("execute_s"), 1e-12)
    if slow.sum() < catalogue.SLOW_STEPS.value or share < catalogue.SLOW_TIME.value:
        return None
    worst = int(np.argmax(np.where(slow, steps["execute_s"] / usual_s, 0.0)))
    same = group == group[worst]
    took_s, median_s = float(steps["execute_s"][worst]), float(usual_s[worst])
    where = f"took {seconds(median_s)} up to step {since[worst]}" if since[worst] else f"take {seconds(median_s)}"
    links = (
        CausalLink(
            f"{int(slow.sum())} of {len(steps)} steps take at least {catalogue.SLOWER.value:g}× what their mix takes:"
            f" {seconds(lost_s)} lost, {percent(share)} of device time",
            {"slow_steps": int(slow.sum()), "lost_s": lost_s, "lost_share": share},
        ),
        CausalLink(
            f"step {steps['step'][worst]:.0f} took {seconds(took_s)}; {int(same.sum())} steps of the same mix"
            f" ({_mix(Table(steps.matrix[worst : worst + 1]))}) {where} in the median",
            {"worst_s": took_s, "median_s": median_s, "same_mix": int(same.sum()), "times": took_s / median_s},
        ),
        CausalLink(
            "the scheduler asked for the same work: the time was lost on the device or on the way to it", {}
        ),
        *_host_links(window),
    )
    remedy = Advice("", "", words="no knob: look at clocks and throttling, other users of the device, its links")
    severity = Severity.SEVERE if share >= _BAD_SHARE else Severity.WARNING
    spans = _worst(window, slow, steps["execute_s"] - usual_s)
    title = catalogue.BY_ID["slow-device"].title
    return Finding("slow-device", title, severity, links, spans, (remedy,), int(slow.sum()), "slow steps")


def _usual(steps: Table, best: dict[float, tuple[float, int]]) -> tuple[FloatArray, Rows, Rows]:
    """For each step: the median device time of its mix, the mix's number, and up to which step that was seen.

    The median is the window's own (and the step 0) or that of an earlier look at the same mix, kept in `best`,
    where that was lower: a device that stays slow is slow against what it was. Infinite where too few share it.
    """
    key = np.zeros(len(steps))
    for name in ("decodes", "prefill", "attended", "drafts"):
        # Each of the four stays below 1024, so that together they are one exact float.
        key = 1024 * key + np.rint(_PER_DOUBLING * np.log2(1 + steps[name]))
    mixes, group = np.unique(key, return_inverse=True)
    order = np.lexsort((steps["execute_s"], group))
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    ordered = steps["execute_s"][order]
    medians = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    medians[(counts < catalogue.SAME_MIX.value) | (medians <= 0)] = np.inf
    since = np.zeros(len(mixes), dtype=np.intp)
    for index in np.flatnonzero(np.isfinite(medians)).tolist():
        mix, median_s = float(mixes[index]), float(medians[index])
        known_s, step = best.get(mix, (np.inf, 0))
        if known_s < median_s:
            medians[index], since[index] = known_s, step
        else:
            best[mix] = median_s, int(steps["step"][-1])
            _forget(best)
    return medians[group], group, since[group]


def _forget(best: dict[float, tuple[float, int]]) -> None:
    while len(best) > _MAX_MIXES:
        del best[next(iter(best))]


def _host_links(window: FactsWindow) -> tuple[CausalLink, ...]:
    """What the host gave the engine meanwhile, as far as known."""
    hosts = [item.event for item in window.facts.hosts if item.seq >= window.first_seq]
    if not hosts:
        return ()
    cpu = float(np.mean([host.cpu for host in hosts]))
    figures: Numbers = {"cpu": cpu, "n": len(hosts)}
    words = f"the engine's process had {percent(cpu)} of a processor"
    if delays := [host.delay for host in hosts if host.delay is not None]:
        figures["run_delay"] = max(delays)
        words += f" and waited for one up to {percent(max(delays))} of a second"
    if busy := [host.gpu_busy for host in hosts if host.gpu_busy is not None]:
        figures["gpu_busy"] = share = float(np.mean(busy))
        words += f"; the GPU was busy {percent(share)} of the time"
    if clocks := [
        host.gpu_clock_mhz / host.gpu_top_clock_mhz
        for host in hosts
        if host.gpu_clock_mhz and host.gpu_top_clock_mhz
    ]:
        figures["gpu_clock"] = min(clocks)
        words += f", its clock down to {percent(min(clocks))} of the highest"
    return (CausalLink(f"{words} (n={len(hosts)} s)", figures),)


def _worst(window: FactsWindow, slow: Mask, lost: FloatArray) -> tuple[StepRange, ...]:
    """The slow steps that lost most, in order of time."""
    rows = np.flatnonzero(slow)
    worst = np.sort(rows[np.argsort(lost[rows])[::-1][:5]])
    return tuple(window.span(np.array([row]), lambda part: seconds(float(part["execute_s"][0]))) for row in worst)


def _mix(step: Table) -> str:
    return f"{some(step['decodes'][0], 'decode')}, {some(step['prefill'][0], 'prompt token')}"


def find_idle(window: FactsWindow) -> Finding | None:
    """Time between device calls while requests are in flight."""
    before_s, busy_s, rows, hosts = _gaps(window)
    if len(rows) < catalogue.MIN_STEPS.value:
        return None
    share = float(before_s.sum() / max(before_s.sum() + busy_s.sum(), 1e-12))
    if share < catalogue.IDLE.value:
        return None
    steps = Table(window.steps.matrix[rows])
    known = float(np.nansum(hosts))
    links = (
        CausalLink(
            f"the device works {percent(1 - share)} of the time with {some(steps.mean('running'), 'request')} running"
            f" and {steps.mean('waiting'):.0f} waiting",
            {"idle_share": share, "running": steps.mean("running"), "waiting": steps.mean("waiting")},
        ),
        CausalLink(
            f"{seconds(float(np.median(before_s)))} go by before a step in the median, at most"
            f" {seconds(float(before_s.max()))}; the step's device time is {seconds(float(np.median(busy_s)))}",
            {"gap_p50_s": float(np.median(before_s)), "gap_max_s": float(before_s.max())},
        ),
        CausalLink(_host_words(known, float(before_s.sum())), {"host_s": known, "idle_s": float(before_s.sum())}),
        *_host_links(window),
    )
    long: Mask = np.zeros(len(window.steps), dtype=np.bool_)
    long[rows[before_s > catalogue.IDLE.value * busy_s]] = True
    remedy = Advice("", "", words="no limit: look at the engine's host (CPU time, other processes, record sinks)")
    return Finding(
        "idle-device",
        catalogue.BY_ID["idle-device"].title,
        Severity.SEVERE if share >= 0.5 else Severity.WARNING,
        links,
        window.spans(long),
        (remedy,),
        len(rows),
        "pairs of steps",
    )


def _gaps(window: FactsWindow) -> tuple[FloatArray, FloatArray, Rows, FloatArray]:
    """For steps right after another, with requests in flight and nothing paused between them.

    Seconds the device idled before each, its device seconds, its row in `steps`, and what of the idling planning
    and settling took (NaN where it is not measured).
    """
    steps = window.steps
    if len(steps) < 2:
        none = np.zeros(0)
        return none, none, np.zeros(0, dtype=np.intp), none
    old, new = Table(steps.matrix[:-1]), Table(steps.matrix[1:])
    follows = (new["seq"] == old["seq"] + 1) & (old["paused"] == 0) & (new["paused"] == 0)
    follows &= (old["running"] + old["waiting"] > 0) & (old["tokens"] > 0)
    idle_s = np.maximum(new["end_s"] - old["end_s"] - new["execute_s"], 0.0)
    hosts = np.nan_to_num(old["update_s"]) + np.nan_to_num(new["schedule_s"])
    rows = np.flatnonzero(follows) + 1
    return idle_s[follows], new["execute_s"][follows], rows, hosts[follows]


def _host_words(known_s: float, idle_s: float) -> str:
    if not known_s:
        return "nothing was planned or settled in that time that the engine measured"
    rest = max(idle_s - known_s, 0.0) / idle_s
    return (
        f"planning and settling take {percent(min(known_s / idle_s, 1.0))} of that; {percent(rest)} goes by outside"
        " the scheduler"
    )


def find_front_end(window: FactsWindow) -> Finding | None:
    """Clients waited longer before arrival than the scheduler needed."""
    waits = [item for item in window.facts.client_waits if item[0] >= window.first_seq]
    firsts = window.firsts
    if min(len(waits), len(firsts)) < catalogue.MIN_FIRSTS.value:
        return None
    wait_s = float(np.median([item[3] for item in waits]))
    ttft_s = float(np.median(firsts[:, 2]))
    share = wait_s / max(wait_s + ttft_s, 1e-12)
    if share < catalogue.CLIENT_PART.value or wait_s < window.step_s:
        return None
    queue_s = float(np.median(firsts[:, 3]))
    links = (
        CausalLink(
            f"a client waits {seconds(wait_s + ttft_s)} for its first token; {percent(share)} of that before the"
            " scheduler sees the request",
            {"client_wait_p50_s": wait_s, "share": share, "n": len(waits)},
        ),
        CausalLink(
            f"after arrival a first token takes {seconds(ttft_s)} (n={len(firsts)}), queue {seconds(queue_s)}",
            {"ttft_p50_s": ttft_s, "queue_p50_s": queue_s},
        ),
        CausalLink("the time goes by in tokenising, media or transport, before any limit holds", {}),
    )
    longest = sorted(sorted(waits, key=lambda item: -item[3])[:5])
    spans = tuple(
        StepRange(seq, seq, step, step, f"arrived after {seconds(waited_s)}") for seq, step, _, waited_s in longest
    )
    remedy = Advice("", "", words="no knob: look at the front end (tokenising, media, proxies, connections)")
    title = catalogue.BY_ID["front-end"].title
    return Finding("front-end", title, Severity.WARNING, links, spans, (remedy,), len(waits), "arrivals")
