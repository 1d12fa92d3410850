"""An operator before a console, for tests: presses keys, reads the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from links import EngineLink, PlayedLink
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from schedtop.console.screens.live import LiveScreen
from synthetic import SyntheticEngine
from textual.message_pump import MessagePump
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
        """Let everything that keys set going be done: a key goes from the app to a widget and up to its screen."""
        for _ in range(3):
            for pump in (self.app, self.app.focused, self.app.screen):
                if pump is not None:
                    await self._drain(pump)
        await self.pilot.pause()

    @staticmethod
    async def _drain(pump: MessagePump) -> None:
        """Wait until a widget has dealt with all messages that it has now, also on a busy machine."""
        done = asyncio.Event()
        if pump.is_running and pump.call_later(done.set):
            with suppress(TimeoutError):  # it may end meanwhile
                await asyncio.wait_for(done.wait(), 2.0 if not pump.is_attached else PATIENCE_S)

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
            await super().settle()
            taken = self.link.taken or self.app.feed.status.state in ("lost", "ended")
            if taken and self.app.next_frame is None:
                break
            await asyncio.sleep(0.005)
        else:
            raise AssertionError(f"the console has not settled within {PATIENCE_S:g} s")
        await super().settle()
        self.app.paint()
        await super().settle()

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
    make_forecast: Any = None,
    **options: Any,
) -> AsyncIterator[Seat]:
    if link is None:
        link = EngineLink(SyntheticEngine(rate=12.0, num_blocks=300), steps)
    settings = ConsoleOptions(**({"theme": "dark", "ttft_slo_s": 0.5, "itl_slo_s": 0.08} | options))
    app = ConsoleApp(link, settings, reopen, now, make_forecast)
    async with app.run_test(size=size) as pilot:
        seat = Seat(app, pilot, link)
        await seat.settle()
        yield seat
