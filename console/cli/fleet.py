"""What a fleet is made of: engines that report their steps, and servers that have a metrics page."""

from __future__ import annotations

import glob
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from schedtop.console.feed import Feed, Link
from schedtop.console.fleet.rows import FleetRow, row_of, summed, worded
from schedtop.console.past.history import History
from schedtop.console.past.open_latencies import cohorts
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.contract.commands import Incoming
from schedtop.engine.contract.latencies.cohort import together
from schedtop.engine.contract.sanitize import one_line
from schedtop.engine.contract.telemetry import Outgoing
from schedtop.engine.scrape.fetch import Fetcher
from schedtop.engine.scrape.page import EngineKey, PageError, PageReading
from schedtop.engine.scrape.window import ReadingWindow, describe, merged, percentile

FETCH_EVERY_S = 1.0
GRACE_S = 2.0
"""A step may take this long: until then a silent engine is not idle."""
MOST_PATIENT_S = 30.0
"""A server that does not answer is polled less and less often, but at least this often."""


def is_page(address: str) -> bool:
    """Whether an address is a metrics page's."""
    return address.startswith(("http://", "https://"))


def expand(addresses: Sequence[str]) -> list[str]:
    """Patterns of socket paths (`unix:/tmp/v-*.sock`) become the paths they match, in order."""
    found = []
    for address in addresses:
        path = address.removeprefix("unix:")
        is_pattern = not is_page(address) and not address.startswith("tcp:") and glob.has_magic(path)
        found += [f"unix:{match}" for match in sorted(glob.glob(path))] if is_pattern else [address]
    return list(dict.fromkeys(found))


class Member(Protocol):
    """One address of a fleet. `rows` is called on the screen's thread."""

    def rows(self, window_s: float) -> list[FleetRow]: ...
    def start(self) -> None: ...
    def close(self) -> None: ...


class PageRows:
    """The readings of one server's page so far. `state` says why nothing new arrives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "connecting"
        self.windows: dict[EngineKey, ReadingWindow] = {}
        self.lock = threading.Lock()

    def take(self, at_s: float, engines: dict[EngineKey, PageReading]) -> None:
        """Take in the readings of a page."""
        with self.lock:
            self.windows = {key: self.windows.get(key) or ReadingWindow() for key in engines}
            for key, reading in engines.items():
                self.windows[key].add(at_s, reading)
            self.state = ""

    def rows(self, window_s: float) -> list[FleetRow]:
        with self.lock:
            if not self.windows:
                return [FleetRow(self.name, state=self.state)]
            several = len(self.windows) > 1
            return [self._row(key, window, window_s, several) for key, window in sorted(self.windows.items())]

    def _row(self, key: EngineKey, window: ReadingWindow, window_s: float, several: bool) -> FleetRow:
        newest = window.newest
        assert newest is not None
        name = f"{self.name} {key.model} {f'engine {key.engine}' if several else ''}"
        queries, hits = window.added("cache_queries", window_s), window.added("cache_hits", window_s)
        return FleetRow(
            name=one_line(name).strip(),
            state=self.state,
            running=newest.gauges.get("running"),
            waiting=newest.gauges.get("waiting"),
            kv_usage=newest.gauges.get("kv_usage"),
            output_per_s=window.rate("output_tokens", window_s),
            prompt_per_s=window.rate("prompt_tokens", window_s),
            preemptions=newest.counters.get("preemptions"),
            hit_rate=hits[0] / queries[0] if hits and queries and queries[0] else None,
            ttft=_bounds(window.buckets("ttft", window_s)),
            itl=_bounds(window.buckets("itl", window_s)),
            restarts=window.restarts,
        )


class PageMember(PageRows):
    """A server's page, fetched on its own thread. `on_page` gets every page, or why there was none."""

    def __init__(self, address: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(address.split("://", 1)[1].rstrip("/"))
        self.on_page: Callable[[float, str, dict[EngineKey, PageReading], str], None] = lambda *_: None
        self._fetcher, self._now = Fetcher(address), now
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrape", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        wait_s = FETCH_EVERY_S
        while not self._closing.wait(wait_s if self.state != "connecting" else 0.0):
            wait_s = FETCH_EVERY_S if self.fetch_once() else min(2 * wait_s, MOST_PATIENT_S)
        self._fetcher.close()

    def fetch_once(self) -> bool:
        """Fetch the page now; False if that failed, which `state` explains."""
        try:
            engines = self._fetcher.fetch()
        except PageError as error:
            return self._failed(str(error))
        except Exception as error:  # whatever a server sends, the console keeps running
            return self._failed(f"{type(error).__name__}: {error}")
        self.take(self._now(), engines)
        self.on_page(time.time(), self.name, engines, "")
        return True

    def _failed(self, why: str) -> bool:
        self.state = one_line(why)
        self.on_page(time.time(), self.name, {}, self.state)
        return False


def _bounds(buckets: list[tuple[float, float]] | None) -> tuple[str, str]:
    return describe(percentile(buckets, 0.5)), describe(percentile(buckets, 0.95))


class EngineMember:
    """An engine that reports its steps."""

    def __init__(self, address: str, connect: Callable[[str], Link], brief: str = "") -> None:
        self.address, self.brief = address, brief or address
        self.history = History()
        self._feed = Feed(
            _LateLink(lambda: connect(address)),
            self.history,
            self._changed,
            lambda reply: None,
            lambda: connect(address),
        )

    def start(self) -> None:
        self._feed.start()

    def close(self) -> None:
        self._feed.close()

    def _changed(self) -> None:
        self._feed.looked()

    def rows(self, window_s: float) -> list[FleetRow]:
        status = self._feed.status
        state = "" if status.state == "open" else one_line(status.cause or status.state)
        with self.history.lock:
            header = self.history.header
            model = one_line(header.model) if header is not None else ""
            heard_s, silent_s = self._feed.received_at_s, 0.0
            if heard_s is not None and header is not None and not header.simulated_clock:
                silent_s = max(0.0, time.monotonic() - heard_s - GRACE_S)
            name, brief = (f"{called} {model}".strip() for called in (self.address, self.brief))
            return [replace(row_of(name, self.address, state, self.history, window_s, silent_s), brief=brief)]


def brief_names(addresses: Sequence[str]) -> dict[str, str]:
    """Addresses by as many last parts of their paths as tell them apart."""
    found, parts = {}, {address: address.split("/") for address in addresses}
    for address, own in parts.items():
        tails = range(1, len(own) + 1)
        alone = (num for num in tails if sum(other[-num:] == own[-num:] for other in parts.values()) == 1)
        found[address] = "/".join(own[-next(alone, len(own)) :])
    return found


class _LateLink:
    """A link opened on the feed's own thread: one that does not answer must not block the screen."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._link: Link | None = None

    def receive(self, timeout_s: float) -> Outgoing | None:
        if self._link is None:
            self._link = self._connect()
        return self._link.receive(timeout_s)

    def send(self, command: Incoming) -> None:
        raise OSError("a fleet commands nothing")

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def merged_pages(pages: Sequence[PageRows], kind: str, window_s: float) -> tuple[str, str]:
    """p50 and p95 over the buckets of all engines of all pages."""
    parts = []
    for page in pages:
        with page.lock:
            parts += [window.buckets(kind, window_s) for window in page.windows.values()]
    return _bounds(merged(parts))


class Members:
    """A fleet of addresses."""

    def __init__(self, addresses: Sequence[str], token_file: str | None = None) -> None:
        def connect(address: str) -> Link:
            return ChannelClient.connect(address, token_file=token_file, read_only=True)

        self.pages = [PageMember(address) for address in addresses if is_page(address)]
        engines = [address for address in addresses if not is_page(address)]
        briefs = brief_names(engines)
        self.engines = [EngineMember(address, connect, briefs[address]) for address in engines]

    @property
    def _all(self) -> list[Member]:
        return [*self.engines, *self.pages]

    def start(self) -> None:
        for member in self._all:
            member.start()

    def close(self) -> None:
        for member in self._all:
            member.close()

    def rows(self, window_s: float) -> list[FleetRow]:
        return [row for member in self._all for row in member.rows(window_s)]

    def total(self, window_s: float) -> FleetRow | None:
        """Sums; percentiles only over what can be merged: all pages, or all engines that report their steps."""
        rows = self.rows(window_s)
        if not self.engines:
            return summed(rows, self._merged_pages("ttft", window_s), self._merged_pages("itl", window_s))
        if not self.pages:
            return summed(rows, self._merged_steps("ttft", window_s), self._merged_steps("itl", window_s))
        return summed(rows)

    def _merged_pages(self, kind: str, window_s: float) -> tuple[str, str]:
        return merged_pages(self.pages, kind, window_s)

    def _merged_steps(self, kind: str, window_s: float) -> tuple[str, str]:
        parts = []
        for engine in self.engines:
            with engine.history.lock:
                parts.append(cohorts(engine.history, engine.history.now(), window_s)[kind])
        return worded(together(parts))

    def notes(self) -> list[str]:
        if not self.pages:
            return ["Percentiles of all together are over all their samples; KV usage is never added up."]
        return [
            "A page gives percentiles by bucket: ≤10 ms is the first one, 25–50 ms the one between those bounds.",
            "Batches, the head of the queue, victims, blocks and limits are not on it: start the server with"
            " SCHEDTOP_ATTACH=unix:PATH and attach to that (docs/vllm.md).",
        ]
