"""What holds on every screen: the terminal may be too small for a while, or of any other size."""

from __future__ import annotations

import pytest
from seat import WIDE, seated

SCREENS = {"request": ("3", "enter"), "knobs": ("K",), "explain": ("x",), "live": ()}


@pytest.mark.parametrize("keys", SCREENS.values(), ids=list(SCREENS))
async def test_too_small_says_what_is_needed_and_comes_back(keys: tuple[str, ...]) -> None:
    async with seated() as seat:
        before = await seat.press(*keys) if keys else seat.text
        await seat.pilot.resize_terminal(50, 10)
        await seat.settle()
        assert "schedtop needs 60x12" in seat.text and "this terminal is 50x10" in seat.text
        await seat.pilot.resize_terminal(*WIDE)
        await seat.settle()
        assert "schedtop needs" not in seat.text
        assert seat.app.screen.focused is not None, "the panel that had the focus has it again"
        assert seat.lines[1][:40] == before.split("\n")[1][:40]


@pytest.mark.parametrize("size", [(60, 12), (79, 23), (80, 24), (139, 39), (300, 80), (61, 200), (400, 13)])
@pytest.mark.parametrize("keys", SCREENS.values(), ids=list(SCREENS))
async def test_every_size_is_filled(keys: tuple[str, ...], size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press(*keys)
        assert len(seat.lines) == size[1] and all(len(line) == size[0] for line in seat.lines)
        assert "schedtop" in seat.lines[0] and "? help" in seat.lines[-1]
