"""An operator before a console, for tests: presses keys, reads the screen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from links import EngineLink, PlayedLink
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from schedtop.console.screens.live import LiveScreen
from synthetic import SyntheticEngine
from textual.pilot import Pilot

PATIENCE_S = 60.0
WIDE, COMPACT, STRIP = (160, 45), (80, 24), (60, 12)


class Clock:
    """Time of the console, moved by hand."""

    def __init__(self, now_s: float = 50.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Operator:
    """Presses keys, reads the screen."""

    def __init__(self, app: Any, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.settle()
        return self.text

    async def settle(self) -> None:
        await self.pilot.pause()

    @property
    def lines(self) -> list[str]:
        return [strip.text for strip in self.app.screen_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Seat(Operator):
    """An operator before a console that an engine feeds."""

    def __init__(self, app: ConsoleApp, pilot: Pilot[None], link: PlayedLink) -> None:
        super().__init__(app, pilot)
        self.link = link

    async def settle(self) -> None:
        """Let the feed take all messages and the screen draw them."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            await self.pilot.pause(0.005)
            taken = self.link.taken or self.app.feed.status.state in ("lost", "ended")
            if taken and self.app._next_frame is None:
                break
        await self.pilot.pause()
        self.app.paint()
        await self.pilot.pause()

    async def steps(self, num: int) -> str:
        assert isinstance(self.link, EngineLink)
        self.link.run_steps(num)
        await self.settle()
        return self.text

    @property
    def live(self) -> LiveScreen:
        return self.app.live_screen

    def asked(self, kind: type) -> list[Any]:
        return [command for command in self.link.sent if isinstance(command, kind)]


@asynccontextmanager
async def seated(
    size: tuple[int, int] = WIDE,
    steps: int = 150,
    link: PlayedLink | None = None,
    reopen: Callable[[], PlayedLink] | None = None,
    now: Callable[[], float] = time.monotonic,
    foretell: Any = None,
    **options: Any,
) -> AsyncIterator[Seat]:
    if link is None:
        link = EngineLink(SyntheticEngine(rate=12.0, num_blocks=300), steps)
    settings = ConsoleOptions(**({"theme": "dark", "ttft_slo_s": 0.5, "itl_slo_s": 0.08} | options))
    app = ConsoleApp(link, settings, reopen, now, foretell)
    async with app.run_test(size=size) as pilot:
        seat = Seat(app, pilot, link)
        await seat.settle()
        yield seat
