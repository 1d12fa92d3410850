"""A report's document as text: aligned lines, `n/a` where unknown, `>` before a lower bound."""

from __future__ import annotations

from typing import Any

from schedtop.engine.contract.latencies.cohort import SHARES
from schedtop.engine.offline.refused_or_cut import held_back_lines

LATENCIES = ("ttft", "itl", "tpot", "e2e")


def report_text(document: dict[str, Any]) -> str:
    """A report's document as text."""
    budget, clock_s = document["budget_use"], document["clock_s"]
    counts = {name: count for name, count in document["requests"].items() if isinstance(count, int)}
    shown = {name: count for name, count in counts.items() if count or name not in _ONLY_IF_ANY}
    rate = None if not clock_s else document["tokens"]["output"] / clock_s
    tokens = {name: count for name, count in document["tokens"].items() if name != "aborted_prefill"}
    lines = [
        _line("requests", ", ".join(f"{count:,} {name}" for name, count in shown.items())),
        *_ends(document),
        _line("tokens", ", ".join(f"{count:,} {name}" for name, count in tokens.items())),
        _line("throughput", "n/a" if rate is None else f"{rate:,.1f} output tokens/s"),
        _line("", "".join(f"{name:>10}" for name in ("mean", *SHARES)) + f"{'n':>13}{'open':>9}"),
        *(_latency_line(name, document[f"{name}_s"]) for name in LATENCIES),
        *(
            _latency_line(_client_label(name), document[name])
            for name in ("client_ttft_s", "client_e2e_s", "client_wait_s")
            if name in document
        ),
        *_classes("priority", document["requests"]["by_class"]),
        *_classes("adapter", _busiest(document["requests"].get("by_adapter", {}))),
        *_classes("client", _busiest(document["requests"].get("by_client", {}))),
        *_parents(document["requests"].get("parents")),
    ]
    if "goodput" in document:
        lines.append(_line("goodput", _goodput(document["goodput"])))
    lines += [
        _line("preemptions", f"{document['preemptions']:,}"),
        _line("hit rate", _hits(document)),
        *_tiers(document),
        _line("budget use", f"{percent_text(budget['tokens'])} of tokens, {percent_text(budget['rows'])} of rows"),
        _line("peak KV usage", percent_text(document["peak_kv_usage"])),
        _line("steps", f"{document['steps']:,}"),
        *([_line("drafts", drafts_text(document["drafts"]))] if "drafts" in document else []),
        _line(
            "time",
            f"{duration_text(clock_s)} on the engine's clock, {duration_text(document['wall_s'])} of wall time",
        ),
    ]
    return "\n".join([*lines, *note_lines(document)])


def note_lines(document: dict[str, Any]) -> list[str]:
    """Caveats of a report: how its workload was read, and what was not served as asked."""
    workload = document.get("workload", {})
    read = [workload["read_as"]] if workload.get("read_as") else []
    notes = [*held_back_lines(document), *read, *workload.get("notices", ())]
    return [_line("" if place else "notes", line) for place, line in enumerate(notes)]


_ONLY_IF_ANY = ("kv_capacity", "failed", "running", "waiting")


def _ends(document: dict[str, Any]) -> list[str]:
    """Unsuccessful ends, in words."""
    cut, wasted = document["requests"]["kv_capacity"], document["tokens"]["aborted_prefill"]
    lines = []
    if cut:
        lines.append(_line("", f"kv_capacity: {cut:,} answer{'s' * (cut > 1)} cut off because the pool was full"))
    if wasted:
        lines.append(_line("", f"aborted while in prefill: {wasted:,} tokens computed for nothing"))
    return lines


MOST_NAMES = 8
"""Most lines for adapters and clients; `--json` has all of them."""


def _busiest(by_name: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(by_name.items(), key=lambda entry: -entry[1]["arrived"])[:MOST_NAMES])


def _classes(kind: str, by_class: dict[str, Any]) -> list[str]:
    """One line per class, if there are several."""
    if len(by_class) < 2:
        return []
    return [
        _line(
            f"{kind} {name}" if len(f"{kind} {name}") < 15 else f"{name[:14]}",
            f"{found['arrived']:,} arrived, {found['admitted']:,} admitted, {found['waiting']:,} waiting"
            + ("" if found["oldest_wait_s"] is None else f" (oldest {duration_text(found['oldest_wait_s'])})")
            + f"; TTFT p50 {bounded_text(found['ttft_s'], 'p50')}, p95 {bounded_text(found['ttft_s'], 'p95')}",
        )
        for name, found in by_class.items()
    ]


def _parents(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    e2e = ", ".join(f"{share} {bounded_text(found['e2e_s'], share)}" for share in ("p50", "p95"))
    counts = f"{found['ended']:,} ended, {found['open']:,} open, of {found['children']:,} children"
    return [_line("parents", f"{counts}; E2E to the last child {e2e}")]


def _goodput(good: dict[str, Any]) -> str:
    waiting = f", {good['past_open']:,} of them in flight and past it" if good["past_open"] else ""
    return f"{percent_text(good['share'])} ({good['met']:,} of {good['n']:,} requests met {good['slo']}{waiting})"


def _hits(document: dict[str, Any]) -> str:
    words = f"{percent_text(document['hit_rate'])} of the prompt tokens of first admissions"
    lost = document.get("lost_hits")
    if not lost or not lost["tokens"]:
        return words
    return f"{words}; {percent_text(lost['share'])} lost to eviction"


def _tiers(document: dict[str, Any]) -> list[str]:
    """Where cache hits came from, if there is a host tier."""
    tiers = document.get("hits_by_tier")
    if tiers is None:
        return []
    words = f"{percent_text(tiers['pool'])} from the pool, {percent_text(tiers['host'])} from the host's memory"
    return [_line("hits by tier", f"{words}, which was up to {percent_text(document['peak_host_usage'])} full")]


def drafts_text(drafts: dict[str, Any]) -> str:
    """The drafter and its acceptance by position, first draft first."""
    by = f" by {drafts['by']}" if drafts["by"] else ""
    places = ", ".join(percent_text(share) for share in drafts["by_position"])
    held = f"{percent_text(drafts['accepted_share'])} accepted"
    if drafts["mean_length"] is not None:
        held += f", mean acceptance length {drafts['mean_length']:.2f}"
    return f"{drafts['verified']:,} verified{by}, {held}" + (f"; by position {places}" if places else "")


def _line(name: str, text: str) -> str:
    return f"{name:<15}{text}".rstrip()


def _client_label(name: str) -> str:
    words = name.removesuffix("_s").split("_")
    return " ".join(word if word in ("client", "wait") else word.upper() for word in words)


def _latency_line(name: str, summary: dict[str, Any]) -> str:
    figures = "".join(f"{bounded_text(summary, key):>10}" for key in ("mean", *SHARES))
    label = name if name.startswith("client") else name.upper()
    return _line(label, f"{figures}{summary['n']:>13,}{summary['open']:>9,}")


def bounded_text(summary: dict[str, Any], name: str) -> str:
    """One figure of a latency; `>` says that it is a lower bound."""
    return (">" if name in summary["lower_bound"] else "") + duration_text(summary[name])


def percent_text(share: float | None) -> str:
    """A share as `12.3 %`; `n/a` is unknown."""
    return "n/a" if share is None else f"{100 * share:.1f} %"


def duration_text(seconds: float | None) -> str:
    """A time in ms below a second; `n/a` is unknown."""
    if seconds is None:
        return "n/a"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 99.995 else f"{seconds:,.0f} s"
