"""Where one jumps to in a recording: what an operator types, and the next thing worth seeing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from schedtop.console.drawing import text
from schedtop.console.past import sample_sizes
from schedtop.console.past.recorded.source import RecordedSource
from schedtop.console.replay.player import Player
from schedtop.engine.contract.latencies.samples import Samples, merge

KINDS: dict[str, str] = {
    "any": "event",
    "preemptions": "preemption",
    "knobs": "knob change",
    "refusals": "refusal",
    "aborts": "abort",
    "kv_capacity": "answer cut off (kv_capacity)",
    "loops": "preempt and re-admit loop",
    "ttft": "TTFT outlier",
    "itl": "ITL outlier",
}
"""What `{` and `}` look for, and how it is called."""

OUTLIER_FACTOR = 3.0
"""Without an SLO a latency is an outlier above this many medians of the whole recording."""

HINT = "step 1200, 12.5s, 1:30, 40%, start, end, next preemption, prev knob/refusal/abort/kv/loop/ttft/itl"

_WHOLE = r"\d{1,15}"  # what is longer is not a place, and may be too long to be a number at all
_NUMBER = rf"({_WHOLE}(?:\.\d+)?)"
_ALIASES = {
    "preempt": "preemptions",
    "knob": "knobs",
    "refus": "refusals",
    "abort": "aborts",
    "kv": "kv_capacity",
    "cut": "kv_capacity",
    "loop": "loops",
    "ttft": "ttft",
    "itl": "itl",
    "any": "any",
    "event": "any",
}


class JumpError(ValueError):
    """A place that cannot be gone to; the text says why."""


@dataclass
class Jumps:
    """Finds places for a player. SLOs are in seconds; None takes the recording's own measure."""

    player: Player
    ttft_slo_s: float | None = None
    itl_slo_s: float | None = None
    kind: str = "any"

    def __post_init__(self) -> None:
        self._limits: dict[str, float | None] = {"ttft": self.ttft_slo_s, "itl": self.itl_slo_s}

    @property
    def source(self) -> RecordedSource:
        return self.player.history.source

    def limit_s(self, kind: str) -> float:
        """Above this, a `ttft` or an `itl` is an outlier."""
        known = self._limits[kind]
        if known is None:
            seconds = self.source.seconds(int(self.source.start_s), int(self.source.end_s)).values()
            parts = [getattr(second, kind) for second in seconds]
            median = sample_sizes.quantile(merge([Samples(part.values, part.counts) for part in parts]), 0.5)
            known = self._limits[kind] = math.inf if median is None else median * OUTLIER_FACTOR
        return known

    def next_kind(self) -> str:
        """Look for the next kind of event from now on; its name."""
        names = list(KINDS)
        self.kind = names[(names.index(self.kind) + 1) % len(names)]
        return KINDS[self.kind]

    def find(self, kind: str, forward: bool) -> tuple[int, str] | None:
        """The nearest record with such an event, and what it is; None if there is none."""
        position = self.player.history.position
        kinds = [name for name in KINDS if name not in ("any", "loops")] if kind == "any" else [kind]
        found = [(index, name) for name in kinds if (index := self._find(name, position, forward)) is not None]
        return (min if forward else max)(found, key=lambda pair: pair[0], default=None)

    def _find(self, kind: str, position: int, forward: bool) -> int | None:
        if kind in self._limits:
            return self.source.find_slow(kind, self.limit_s(kind), position, forward=forward)
        return self.source.find(kind, position, forward=forward)

    def jump(self, kind: str, forward: bool) -> str:
        """Go to the nearest event; what was found there. Raises `JumpError` if there is none."""
        found = self.find(kind, forward)
        if found is None:
            raise JumpError(f"no {KINDS[kind]} {'after' if forward else 'before'} this step")
        self.player.pause()
        self.player.move(found[0])
        words = KINDS[found[1]]
        if found[1] in self._limits:
            words += f" above {text.ms_unit(self.limit_s(found[1]))}"
        return f"{words} at step {self.player.history.live.step}"

    def go(self, words: str) -> str:
        """Go where an operator's words say; where that is. Raises `JumpError`."""
        return understood(words)(self)


def understood(words: str) -> Callable[[Jumps], str]:
    """The jump that an operator's words ask for. Raises `JumpError` where they ask for none."""
    asked = words.strip().lower()
    parts = asked.split()
    if len(parts) == 2 and parts[0] in ("next", "prev", "previous"):
        kind = next((name for word, name in _ALIASES.items() if parts[1].startswith(word)), None)
        if kind is None:
            names = "preemption, knob, refusal, abort, kv, loop, ttft, itl"
            raise JumpError(f"{text.clean(parts[1])}: write one of {names}")
        return lambda jumps: jumps.jump(kind, parts[0] == "next")
    find = _place(asked)
    if find is None:
        raise JumpError(f"{text.clean(words)}: write {HINT}")

    def go(jumps: Jumps) -> str:
        index = find(jumps.player)
        if index is None:
            source = jumps.source
            end = f"step {source.num_steps} at {text.duration(source.end_s)}"
            raise JumpError(f"{text.clean(words)}: the recording ends with {end}")
        jumps.player.move(index)
        return f"step {jumps.player.history.live.step}"

    return go


def _place(asked: str) -> Callable[[Player], int | None] | None:
    """A finder of the requested record, which gives None past the end; None if no place is requested."""
    if asked == "start":
        return lambda player: 0
    if asked == "end":
        return lambda player: player.last
    if found := re.fullmatch(rf"(?:step|#)?\s*({_WHOLE})", asked):
        step = int(found[1])
        return lambda player: player.history.source.index_of_step(step)
    if found := re.fullmatch(rf"{_NUMBER}\s*%", asked):
        share = float(found[1]) / 100
        return lambda player: player.index_after(share)
    clock_s = seconds_of(asked)
    return None if clock_s is None else lambda player: player.index_at(clock_s)


def seconds_of(words: str) -> float | None:
    """`12.5s`, `500ms`, `2min`, `1:30` or `1:02:03` in seconds; None if it is not a time."""
    found = re.fullmatch(rf"{_NUMBER}\s*(ms|s|m|min|h)", words)
    if found is not None:
        return float(found[1]) * {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[found[2]]
    found = re.fullmatch(rf"(?:({_WHOLE}):)?({_WHOLE}):{_NUMBER}", words)
    if found is None:
        return None
    return int(found[1] or 0) * 3600 + int(found[2]) * 60 + float(found[3])
