"""What holds the engine back, in one sentence; and the facts of the Live screen as plain lines. No drawing here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schedtop.console.drawing import text
from schedtop.console.explain.log import LogEntry
from schedtop.console.past import sample_sizes
from schedtop.console.past.client import client_latencies
from schedtop.console.past.open_latencies import cohorts
from schedtop.console.past.past import Moment, Past
from schedtop.engine.contract.kv_groups import kinds_of
from schedtop.engine.contract.latencies.cohort import Cohort
from schedtop.engine.contract.limiters import describe_head

SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
WINDOW_S = 60.0


def sentence(history: Past, moment: Moment, entries: list[LogEntry]) -> tuple[str, str]:
    """The one thing that holds the engine back, with the role of its colour: the gravest finding's own words."""
    state, head = moment.state, moment.record.head if moment.record is not None else None
    queue = ""
    if head is not None and state.num_waiting:
        queue = f"{state.num_waiting} waiting, head {history.name(head.number)}: {describe_head(head)}"
    active = next((entry for entry in entries if entry.active), None)
    if active is not None:
        return active.shown.title + (
            f". {queue}" if queue else ""
        ), "breach" if active.shown.severity > 1 else "warn"
    if state.paused:
        return "The engine is paused" + (f". {queue}" if queue else ""), "warn"
    if queue:
        return f"{queue[0].upper()}{queue[1:]}", "text"
    if state.requests:
        return f"Nothing is held back: {state.num_running} running, queue is empty", "muted"
    return "No requests", "muted"


def facts(history: Past, entries: list[LogEntry], slos_s: dict[str, float]) -> dict[str, Any]:
    """The Live screen's facts as plain values: times in seconds, None where there are too few samples."""
    moment, header = history.now(), history.header
    state, record = moment.state, moment.record
    rates = history.rates(moment)
    latency = {}
    felt = {f"client_{kind}": members for kind, members in client_latencies(history, moment, WINDOW_S).items()}
    for kind, members in {**cohorts(history, moment, WINDOW_S), **felt}.items():
        latency[kind] = _figures(members, slos_s.get(kind))
    blocks = record.blocks if record is not None else None
    return {
        "model": header.model if header is not None else None,
        "device": header.device if header is not None else None,
        "step": state.step,
        "clock_s": state.clock_s,
        "paused": state.paused,
        "running": state.num_running,
        "waiting": state.num_waiting,
        "parents": len({known.arrival.parent for known in state.requests.values()} - {""}),
        "oldest_wait_s": record.oldest_wait_s if record is not None else None,
        "head": describe_head(record.head) if record is not None and record.head is not None else None,
        "kv_in_use": blocks.held + blocks.shared if blocks is not None else None,
        "kv_blocks": blocks.held + blocks.shared + blocks.cached_free + blocks.empty
        if blocks is not None
        else None,
        "kv_groups": _groups(history),
        "host_kv_in_use": record.host_blocks[0] if record is not None and record.host_blocks else None,
        "host_kv_blocks": record.host_blocks[1] if record is not None and record.host_blocks else None,
        "steps_per_s": rates.steps if rates is not None else None,
        "output_tokens_per_s": rates.output_tokens if rates is not None else None,
        "prompt_tokens_per_s": rates.prompt_tokens if rates is not None else None,
        "preemptions": state.totals.preemptions,
        "latency": latency,
        "knobs": dict(state.knobs),
        "findings": [entry.shown.title for entry in entries if entry.active],
        "status": sentence(history, moment, entries)[0],
    }


def _groups(history: Past) -> dict[str, int]:
    """Blocks in the tables of each kind of KV group, where there are several."""
    header, record = history.header, history.now().record
    if header is None or record is None or not record.group_blocks:
        return {}
    return {
        kind.label: sum(record.group_blocks[place] for place in kind.groups) for kind in kinds_of(header.config)
    }


def _figures(members: Cohort, slo_s: float | None) -> dict[str, Any]:
    found = {name: sample_sizes.bounded(members, share) for name, share in SHARES}
    return {
        **{name: None if figure is None else figure.least for name, figure in found.items()},
        "n": members.n,
        "open": members.num_open,
        "lower_bound": [name for name, figure in found.items() if figure is not None and figure.is_bound],
        "slo_s": slo_s,
        "within_slo": None if slo_s is None else members.share_within(slo_s),
    }


def page(found: dict[str, Any]) -> Iterator[str]:
    """The facts as lines to read."""
    yield f"status: {found['status']}"
    yield f"engine: {text.clean(found['model'])} on {text.clean(found['device'])}, step {found['step']}"
    wait = f", oldest wait {text.duration(found['oldest_wait_s'])}" if found["waiting"] else ""
    whose = f", children of {text.plural(found['parents'], 'parent')}" if found["parents"] else ""
    yield f"requests: {found['running']} running, {found['waiting']} waiting{wait}{whose}"
    if found["kv_blocks"]:
        share = text.share(found["kv_in_use"], found["kv_blocks"])
        groups = "".join(f", {kind} {held}" for kind, held in found["kv_groups"].items())
        yield f"KV: {found['kv_in_use']} of {found['kv_blocks']} blocks in use ({share}){groups}"
    if found["host_kv_blocks"]:
        share = text.share(found["host_kv_in_use"], found["host_kv_blocks"])
        yield f"host KV: {found['host_kv_in_use']} of {found['host_kv_blocks']} blocks in use ({share})"
    rates = (found["steps_per_s"], found["output_tokens_per_s"], found["prompt_tokens_per_s"])
    steps, outputs, prompts = (text.rate(rate) for rate in rates)
    yield f"rates: {steps} steps/s, {outputs} output tokens/s, {prompts} prompt tokens/s"
    for kind, figures in found["latency"].items():
        yield f"{_title(kind)}: {_latency(figures)}"
    yield f"knobs: {', '.join(f'{name} {text.value(value)}' for name, value in found['knobs'].items())}"
    for title in found["findings"]:
        yield f"finding: {title}"


def brief(found: dict[str, Any]) -> str:
    """The facts in one line."""
    used = text.share(found["kv_in_use"], found["kv_blocks"]) if found["kv_blocks"] else text.UNKNOWN
    latency = ", ".join(f"{_title(kind)} {_latency(figures)}" for kind, figures in found["latency"].items())
    return (
        f"step {found['step']}: {found['running']} running, {found['waiting']} waiting, KV {used}, "
        f"{text.rate(found['output_tokens_per_s'])} tok/s, {latency}. {found['status']}"
    )


def _title(kind: str) -> str:
    whose, _, name = kind.rpartition("_")
    return f"{whose} {name.upper()}".lstrip()


def _latency(figures: dict[str, Any]) -> str:
    words = [
        f"{name} {'>' if name in figures['lower_bound'] else ''}{text.ms_unit(figures[name])}"
        for name, _ in SHARES
        if figures[name] is not None
    ]
    size = f"n={figures['n']}" + (f"+{figures['open']}" if figures["open"] else "")
    summary = f"{' '.join(words)} ({size})" if words else f"too few samples ({size})"
    return summary + (f", {figures['within_slo']:.0%} within SLO" if figures["within_slo"] is not None else "")
