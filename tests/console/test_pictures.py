"""Pictures of every screen: a fixed run, a clock that stands still. `--snapshot-update` takes them anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from links import EngineLink
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from seat import COMPACT, WIDE, Seat
from synthetic import SyntheticEngine
from textual.pilot import Pilot


class StillEngine(SyntheticEngine):
    """Tells a simulated clock, so that no time zone shows."""

    def header(self, **changes: Any) -> Any:
        return super().header(simulated_clock=True, **changes)


def pictured(theme: str, *keys: str) -> tuple[ConsoleApp, Callable[[Pilot[None]], Any]]:
    """A console on 300 steps, and what is done before its picture is taken."""
    link = EngineLink(StillEngine(rate=12.0, num_blocks=400), 300)
    options = ConsoleOptions(theme=theme, ttft_slo_s=0.5, itl_slo_s=0.045, mouse=False)
    app = ConsoleApp(link, options, now=lambda: 100.0)

    async def before(pilot: Pilot[None]) -> None:
        seat = Seat(app, pilot, link)
        await seat.settle()
        assert app.history.live.step == 300
        if keys:
            await seat.press(*keys)
        await seat.settle()

    return app, before


@pytest.mark.parametrize("theme", ["dark", "light", "monochrome"])
@pytest.mark.parametrize("size", [WIDE, COMPACT], ids=["wide", "compact"])
def test_live(snap_compare: Any, theme: str, size: tuple[int, int]) -> None:
    app, before = pictured(theme)
    assert snap_compare(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize(
    "keys",
    [
        ("3", "enter"),
        ("6", "down", "down", "minus", "enter", "K", "plus"),
        ("1", "left", "left", "question_mark"),
        ("ctrl+p", "k", "n", "o", "b"),
    ],
    ids=["request", "knobs", "help", "palette"],
)
@pytest.mark.parametrize(("theme", "size"), [("dark", WIDE), ("monochrome", COMPACT)], ids=["dark", "monochrome"])
def test_screens(snap_compare: Any, keys: tuple[str, ...], theme: str, size: tuple[int, int]) -> None:
    app, before = pictured(theme, *keys)
    assert snap_compare(app, terminal_size=size, run_before=before)
