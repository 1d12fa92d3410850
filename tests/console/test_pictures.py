"""Pictures of every screen: a fixed run, a clock that stands still. `--snapshot-update` retakes them.

Explain, replay and the re-run screen have theirs beside their own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from links import EngineLink
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from seat import COMPACT, STRIP, WIDE, Seat
from synthetic import SyntheticEngine
from textual.pilot import Pilot

STEPS = 300
SCREENS = {
    "live": (),
    "request": ("3", "enter"),
    "knobs": ("6", "down", "down", "minus", "enter", "K", "down", "minus"),
    "help": ("1", "left", "left", "question_mark"),
    "palette": ("ctrl+p", "k", "n", "o", "b"),
}
"""Keys that lead there."""


class StillEngine(SyntheticEngine):
    """Tells a simulated clock, so that no time zone shows."""

    def header(self, **changes: Any) -> Any:
        return super().header(simulated_clock=True, **changes)


def pictured(theme: str, *keys: str) -> tuple[ConsoleApp, Callable[[Pilot[None]], Any]]:
    """A console on the recorded steps, and what is done before its picture is taken."""
    link = EngineLink(StillEngine(rate=12.0, num_blocks=400), STEPS)
    options = ConsoleOptions(theme=theme, ttft_slo_s=0.5, itl_slo_s=0.045, mouse=False)
    app = ConsoleApp(link, options, now=lambda: 100.0)

    async def before(pilot: Pilot[None]) -> None:
        seat = Seat(app, pilot, link)
        await seat.settle()
        assert app.history.live.step == STEPS
        app.live_screen.requests.selected = None  # the first frame chose by the steps that had come by then
        await seat.settle()
        if keys:
            await seat.press(*keys)

    return app, before


@pytest.mark.parametrize("theme", ["dark", "light", "monochrome"])
@pytest.mark.parametrize("size", [WIDE, COMPACT], ids=["wide", "compact"])
@pytest.mark.parametrize("screen", list(SCREENS))
def test_screen(snap_compare: Any, screen: str, theme: str, size: tuple[int, int]) -> None:
    app, before = pictured(theme, *SCREENS[screen])
    assert snap_compare(app, terminal_size=size, run_before=before)


def test_strip(snap_compare: Any) -> None:
    app, before = pictured("dark")
    assert snap_compare(app, terminal_size=STRIP, run_before=before)


def test_too_small(snap_compare: Any) -> None:
    app, before = pictured("dark", "K")
    assert snap_compare(app, terminal_size=(50, 10), run_before=before)
