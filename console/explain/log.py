"""Findings over time: present ones, and those that held earlier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from schedtop.console.explain import catalogue
from schedtop.console.explain.diagnosis import Diagnosis
from schedtop.console.explain.finding import Finding
from schedtop.console.explain.window import Bounds
from schedtop.engine.contract.telemetry import Outgoing, Snapshot, StepRecord

LOOK_EVERY_S = 1.0
LOOK_EVERY_STEPS = 512
"""A file is looked at this often, by the engine's clock or by steps, whichever comes first."""

_MAX_EPISODES = 64


@dataclass(slots=True)
class Episode:
    """Looks in a row that found it: steps and seconds from the first window's end to the last one's."""

    first_step: int
    last_step: int
    from_s: float
    to_s: float


@dataclass(slots=True)
class LogEntry:
    """One finding over time. `best` is the strongest of its looks, `finding` the newest."""

    finding: Finding
    best: Finding
    active: bool = False
    looks: int = 0
    episodes: list[Episode] = field(default_factory=list)

    @property
    def shown(self) -> Finding:
        """The present one while it holds; the strongest afterwards."""
        return self.finding if self.active else self.best


@dataclass(slots=True)
class _Sighting:
    """Since when a finding is seen without a longer break, on the engine's clock, and when last."""

    since_s: float
    last_s: float
    looks: int = 1
    still_looks: int = 1

    def again(self, now_s: float) -> _Sighting:
        still = self.still_looks + 1 if now_s == self.last_s else 1
        return _Sighting(self.since_s, now_s, self.looks + 1, still)

    @property
    def is_open(self) -> bool:
        return self.last_s - self.since_s >= catalogue.OPENS.value or self.still_looks >= catalogue.LOOKS.value

    def is_over(self, now_s: float) -> bool:
        return now_s - self.last_s > catalogue.CLOSES.value


class Log:
    """A diagnosis and the memory of its findings. `take` every message, `look` about once a second."""

    def __init__(self, window_s: float = catalogue.WINDOW.value, bounds: Bounds | None = None) -> None:
        self.diagnosis = Diagnosis(window_s, bounds)
        self.entries: dict[str, LogEntry] = {}
        self.num_looks = 0
        self._sightings: dict[str, _Sighting] = {}
        self._started_at: float | None = None

    def take(self, message: Outgoing) -> None:
        self.diagnosis.take(message)

    def look(self, silent_s: float | None = None, last: bool = False) -> list[LogEntry]:
        """Look at the present window; the entries that hold now, the most severe first.

        A finding opens once it has been found for `catalogue.OPENS` of the engine's clock, and closes once it has not
        been for `catalogue.CLOSES`; one without thresholds opens at once. While the clock stands still, looks count. At
        the `last` look of a short session all looks must have found it.
        """
        header = self.diagnosis.facts.header
        if header is not None and header.started_at != self._started_at:
            self.entries, self._started_at = {}, header.started_at
            self._sightings, self.num_looks = {}, 0
        self.num_looks += 1
        now_s = self.diagnosis.facts.clock_s
        found = {finding.id: finding for finding in self.diagnosis.findings(silent_s)}
        for name in found:
            seen = self._sightings.get(name)
            self._sightings[name] = _Sighting(now_s, now_s) if seen is None else seen.again(now_s)
        self._sightings = {
            name: seen for name, seen in self._sightings.items() if name in found or not seen.is_over(now_s)
        }
        for name, finding in found.items():
            seen = self._sightings[name]
            happened = not catalogue.BY_ID[name].thresholds  # rather than held: nothing that comes and goes
            if happened or seen.is_open or (last and seen.looks >= self.num_looks):
                self._note(finding)
        for name, entry in self.entries.items():
            entry.active = name in self._sightings and (entry.active or name in found)
        return [self.entries[name] for name in found if name in self.entries and self.entries[name].active]

    def _note(self, finding: Finding) -> None:
        step, entry = self.diagnosis.facts.step, self.entries.get(finding.id)
        if entry is None:
            entry = self.entries[finding.id] = LogEntry(finding, finding)
        if not entry.active:
            entry.episodes.append(Episode(step, step, finding.to_s, finding.to_s))
            del entry.episodes[:-_MAX_EPISODES]
        entry.finding = finding
        entry.looks += 1
        if (finding.severity, finding.n) >= (entry.best.severity, entry.best.n):
            entry.best = finding
        entry.episodes[-1].last_step, entry.episodes[-1].to_s = step, finding.to_s

    def ranked(self) -> list[LogEntry]:
        """What is to be reported: entries that hold first, then the most severe, then the longest held."""
        reported = [entry for entry in self.entries.values() if entry.active or not self._superseded(entry)]
        return sorted(
            reported,
            key=lambda entry: (
                not entry.active,
                entry.shown.id != "overload",
                -entry.shown.severity,
                -entry.looks,
            ),
        )

    def _superseded(self, entry: LogEntry) -> bool:
        """It ended because another finding that says the same and more replaced it."""
        others = [self.entries[name] for name in catalogue.BY_ID[entry.best.id].yields_to if name in self.entries]
        near_s = self.diagnosis.window_s
        return all(
            any(
                other.from_s - near_s <= episode.to_s and episode.from_s <= other.to_s + near_s
                for entry in others
                for other in entry.episodes
            )
            for episode in entry.episodes
        )


def reading(messages: Iterable[Outgoing], log: Log) -> Iterator[None]:
    """Take in a session, a message a turn, looking as it goes by, and at its end."""
    next_s, since = LOOK_EVERY_S, 0
    for message in messages:
        clock_s = log.diagnosis.facts.clock_s
        # Not before another message is there: the look after the newest one is the last.
        if since >= LOOK_EVERY_STEPS or (since and clock_s >= next_s):
            log.look()
            next_s, since = clock_s + LOOK_EVERY_S, 0
        log.take(message)
        if isinstance(message, StepRecord):
            since += 1
        elif isinstance(message, Snapshot):
            next_s = message.clock_s + LOOK_EVERY_S
        yield
    if since:
        log.look(last=True)


def read(messages: Iterable[Outgoing], log: Log) -> Log:
    """Take in a whole session; the log of it."""
    for _ in reading(messages, log):
        pass
    return log
