"""What holds on every screen: the terminal may be too small for a while, or of any other size."""

from __future__ import annotations

import pytest
from schedtop.console.screens.help import flow
from schedtop.console.screens.request import RequestScreen
from schedtop.console.widgets.panel import Panel
from seat import COMPACT, STRIP, WIDE, seated
from textual.events import Key

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
        assert seat.lines[2][:40] == before.split("\n")[2][:40]


@pytest.mark.parametrize("keys", SCREENS.values(), ids=list(SCREENS))
async def test_every_size_is_filled(keys: tuple[str, ...]) -> None:
    async with seated(STRIP) as seat:
        await seat.press(*keys)
        assert ("Esc back" in seat.lines[-1]) is bool(keys), "Esc leads nowhere from the Live screen"
        for width, height in (STRIP, (79, 23), (80, 24), (139, 39), (300, 80), (61, 200), (400, 13)):
            await seat.pilot.resize_terminal(width, height)
            await seat.settle()
            assert len(seat.lines) == height and all(len(line) == width for line in seat.lines)
            assert "schedtop" in seat.lines[0] and "? help" in seat.lines[-1]


@pytest.mark.parametrize("size", [STRIP, COMPACT, WIDE])
async def test_the_palette_has_one_line_for_an_action(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press("ctrl+p")
        assert all(
            any(f" {words} " in line for line in seat.lines) for words in ("Help", "Quit", "Command palette")
        )
        start = next(place for place, line in enumerate(seat.lines) if "? F1" in line)
        assert "q ^Q" in seat.lines[start + 1] and "^C" in seat.lines[start + 2] and "^P :" in seat.lines[start + 3]
        await seat.press("up")
        assert "Back to the findings" in seat.text, "from the first to the last, which comes into sight"
        await seat.pilot.resize_terminal(*WIDE)
        await seat.settle()
        assert "Back to the findings" in seat.text


async def test_the_palette_takes_keys_in_the_order_they_came() -> None:
    async with seated() as seat:
        await seat.press("ctrl+p")
        for key in (*"chat", *["backspace"] * 4, *"zoom", "enter"):
            seat.app.post_message(Key(key, key if len(key) == 1 else None))
        await seat.settle()
        assert seat.live.zoomed == "requests"


async def test_the_palette_takes_the_mouse() -> None:
    async with seated() as seat:
        await seat.press("ctrl+p", *"zoom")
        await seat.pilot.click("#palette-list", offset=(5, 0))
        await seat.settle()
        assert seat.live.zoomed == "requests"


async def test_the_palette_finds_requests_and_steps() -> None:
    async with seated() as seat:
        row = seat.live.requests.selected_row()
        assert row is not None
        await seat.press("ctrl+p", *row.id)
        assert f" {row.id} " in seat.text
        await seat.press("enter")
        assert isinstance(seat.app.screen, RequestScreen) and f"─ {row.id}" in seat.lines[1]
        await seat.press("ctrl+p", *"step 140")
        assert "Step 140" in seat.text
        await seat.press("enter")
        assert seat.app.screen is seat.live and seat.app.view.moment.state.step == 140
        await seat.press("ctrl+p", *"step 999999")
        assert "No match" in seat.text
        await seat.press("enter")
        assert seat.app.screen is seat.live, "there is nothing to choose"


@pytest.mark.parametrize("width", [40, 55, 71, 113])
def test_help_keeps_every_word_and_hangs_what_follows_a_term(width: int) -> None:
    panels = [panel for panel in _kinds(Panel) if panel.HELP]
    assert len(panels) > 9
    for panel in panels:
        lines = flow(panel.HELP, width)
        assert all(len(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == "".join(panel.HELP.split())


def test_help_is_not_touched_where_it_fits() -> None:
    words = "STATE    a, b,\n         c (d)\nKV  e      AGE  f"
    assert flow(words, 40) == words.splitlines()
    assert flow(words, 16) == ["STATE  a, b, c", "    (d)", "KV  e", "AGE  f"]


def _kinds(kind: type[Panel]) -> list[type[Panel]]:
    return [found for sub in kind.__subclasses__() for found in (sub, *_kinds(sub))]
