"""What a request does at each moment: one classification for bar, figures, title and tables."""

from __future__ import annotations

from typing import NamedTuple


class Phase(NamedTuple):
    """How a phase is drawn: its letter, and the role of its colour."""

    letter: str
    role: str


PHASES = {
    "queue": Phase("Q", "unused"),
    "prefill": Phase("P", "prefill"),
    "decode": Phase("D", "decode"),
    "recompute": Phase("R", "warn"),
    "re-queued": Phase("V", "breach"),
    "starved": Phase("0", "draft"),
    "stalled": Phase("!", "breach"),
    "unknown": Phase(" ", "faint"),
}
"""Every moment from arrival to last token is in exactly one of these; `unknown` where no record says."""

USUAL = ("queue", "prefill", "decode", "re-queued", "stalled")
"""Worth a word also where they took no time."""


def phase_of_row(tokens: int, decode: bool, needed: int, prompt_tokens: int) -> str:
    """What a running request does in a step, from its row and the length of its prompt."""
    if not tokens:
        return "starved"
    if decode:
        return "decode"
    return "recompute" if needed > prompt_tokens else "prefill"


class PhaseSpan(NamedTuple):
    """One phase without a break, on the engine's clock."""

    start_s: float
    end_s: float
    phase: str


class Spans:
    """Spans end to end from `start_s` on, none beyond `until_s`. `at_s` is how far they reach."""

    def __init__(self, start_s: float) -> None:
        self.at_s, self.until_s = start_s, start_s
        self.spans: list[PhaseSpan] = []

    def copy(self) -> Spans:
        twin = Spans(self.at_s)
        twin.until_s, twin.spans = self.until_s, self.spans.copy()
        return twin

    def to(self, end_s: float, phase: str) -> None:
        """Fill up to `end_s`; nothing happens if that is behind."""
        end_s = min(end_s, self.until_s)
        if end_s > self.at_s:
            self.spans.append(PhaseSpan(self.at_s, end_s, phase))
            self.at_s = end_s

    def stall(self, first: int, limit_s: float) -> None:
        """Call the decoding since span `first` a stall if it alone took more than `limit_s`."""
        spans = self.spans[first:]
        if sum(span.end_s - span.start_s for span in spans if span.phase == "decode") > limit_s:
            self.spans[first:] = [
                span._replace(phase="stalled") if span.phase == "decode" else span for span in spans
            ]


def totals(spans: list[PhaseSpan]) -> dict[str, float]:
    """Seconds of each phase in the order of `PHASES`; they add up to the length of the spans."""
    seconds = dict.fromkeys(PHASES, 0.0)
    for span in spans:
        seconds[span.phase] += span.end_s - span.start_s
    return seconds


def at_times(spans: list[PhaseSpan], times_s: list[float]) -> list[str]:
    """The phase at each of the rising times; `unknown` outside the spans."""
    phases, index = [], 0
    for time_s in times_s:
        while index < len(spans) and spans[index].end_s <= time_s:
            index += 1
        known = index < len(spans) and spans[index].start_s <= time_s
        phases.append(spans[index].phase if known else "unknown")
    return phases
