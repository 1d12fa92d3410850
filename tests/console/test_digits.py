"""A number in a panel's title is its key, on every screen."""

from __future__ import annotations

import pytest
from schedtop.console.screens.knobs import KnobsScreen
from seat import COMPACT, STRIP, WIDE, seated


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_the_panels_of_the_knobs_screen_are_reached_by_their_digits(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press("K")
        for digit, name in (("8", "presets"), ("9", "changes"), ("6", "knobs")):
            await seat.press(digit)
            screen = seat.app.screen
            assert isinstance(screen, KnobsScreen) and screen.panel.id == name == screen.scope


@pytest.mark.parametrize("where", ["1", "x"])
async def test_they_open_the_knobs_screen_from_anywhere(where: str) -> None:
    async with seated() as seat:
        await seat.press(where, "9")
        await seat.settle()
        screen = seat.app.screen
        assert isinstance(screen, KnobsScreen) and screen.panel.id == "changes"


async def test_a_digit_without_room_says_so() -> None:
    async with seated(STRIP) as seat:
        await seat.press("K")
        assert "no room for Presets" in await seat.press("8")
