"""A source whose requests come one after another at a rate that may change while it runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from schedtop.engine.handoff.request import Image, Request
from schedtop.engine.workload.tokens import Keys


@dataclass(frozen=True, slots=True)
class Ask:
    """A request before its tokens exist. `own_s` is its arrival on the source's own clock, which starts at 0.

    `shared` keys name leading pieces of `shared_width` tokens each; what follows is this request's own. `text`
    takes the place of both. `adapter` names its LoRA adapter. Asks of one `parent` have the
    same prompt, as far as they are of one length. `block_keys` are those of
    `shared`, where its blocks have been recorded.
    """

    own_s: float
    ordinal: int
    id: str
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    shared: Keys | None = None
    shared_width: int = 0
    text: bytes | None = None
    adapter: str = ""
    images: tuple[Image, ...] = ()
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    parent: str = ""
    block_keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Wave:
    """Arrivals gathered into the first `on_s` of every `period_s`; the mean rate stays as it is."""

    on_s: float
    period_s: float

    def bunch(self, even_s: float) -> float:
        """When an arrival of the even stream happens in the bunched one."""
        periods, rest = divmod(even_s, self.period_s)
        return periods * self.period_s + rest * self.on_s / self.period_s

    def even(self, clock_s: float) -> float:
        """The even stream's time at `clock_s`, which stops between bunches."""
        periods, rest = divmod(clock_s, self.period_s)
        return periods * self.period_s + min(rest / self.on_s, 1.0) * self.period_s


class Tempo:
    """Maps a source's own time to the engine's clock; a change of rate bends the map from that moment on.

    `per_own_s` is the mean number of arrivals in a second of own time (None: unknown, no rate can be set);
    `stretch` the seconds of clock for a second of own time where no rate is asked for.
    """

    def __init__(
        self, per_own_s: float | None, stretch: float, rate: float | None = None, wave: Wave | None = None
    ) -> None:
        self._per_own_s = per_own_s
        self._default = stretch
        self._wave = wave
        self._own_s, self._even_s = 0.0, 0.0
        self._stretch = self._stretch_for(rate)

    def clock(self, own_s: float) -> float:
        """When `own_s` comes; `inf` while the rate is 0."""
        if math.isinf(self._stretch):
            return math.inf
        even_s = self._even_s + max(own_s - self._own_s, 0.0) * self._stretch
        return self._wave.bunch(even_s) if self._wave else even_s

    def change(self, rate: float | None, clock_s: float) -> None:
        """Continue at `rate` requests/s from `clock_s`; None is the source's own."""
        even_s = self._wave.even(clock_s) if self._wave else clock_s
        if self._stretch > 0:
            self._own_s += max(even_s - self._even_s, 0.0) / self._stretch
        self._even_s = even_s
        self._stretch = self._stretch_for(rate)

    def _stretch_for(self, rate: float | None) -> float:
        if rate is None or self._per_own_s is None:
            return self._default
        return self._per_own_s / rate if rate > 0 else math.inf


class PacedSource:
    """A `Source` over `asks`, which come in order of `own_s` and are read one ahead.

    `take` and `set_rate` raise what `asks` raises (`TraceError` at a trace's bad row); then it is at its end.
    """

    def __init__(
        self,
        asks: Iterator[Ask],
        tempo: Tempo,
        build: Callable[[Ask, float], Request],
        description: dict[str, Any],
    ) -> None:
        self.description = description
        self._asks = asks
        self._tempo = tempo
        self._build = build
        self._due: deque[tuple[float, Ask]] = deque()
        self._next: Ask | None = None
        self._next_s = math.inf
        self._read()

    def take(self, clock_s: float, step: int) -> list[Request]:
        """Every request that has arrived by `clock_s`, in order."""
        if clock_s < self._next_s and not self._due:
            return []
        self._advance(clock_s)
        taken = []
        while self._due and self._due[0][0] <= clock_s:
            arrival_s, ask = self._due.popleft()
            taken.append(self._build(ask, arrival_s))
        return taken

    def next_arrival_s(self) -> float | None:
        """When the next request arrives; infinity while the rate is 0; None when there are no more."""
        if self._due:
            return self._due[0][0]
        return None if self._next is None else self._next_s

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        """Change the rate from `clock_s` on; what arrived before keeps its time."""
        self._advance(clock_s)
        self._tempo.change(rate, clock_s)
        if self._next is not None:
            self._next_s = self._tempo.clock(self._next.own_s)

    def _advance(self, clock_s: float) -> None:
        while self._next is not None and self._next_s <= clock_s:
            self._due.append((self._next_s, self._next))
            self._read()

    def _read(self) -> None:
        self._next, self._next_s = None, math.inf
        self._next = next(self._asks, None)
        if self._next is not None:
            self._next_s = self._tempo.clock(self._next.own_s)
