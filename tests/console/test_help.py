"""The help page says how much of it is below, and always how to leave it."""

from __future__ import annotations

import re

import pytest
from seat import COMPACT, STRIP, WIDE, Seat, seated


def _more(seat: Seat) -> int:
    found = re.search(r"(\d+) more lines? ([▼v])  Esc closes this page", seat.text)
    return int(found[1]) if found is not None else 0


@pytest.mark.parametrize(("size", "ascii"), [(WIDE, False), (COMPACT, True), (STRIP, False)])
async def test_help_counts_what_is_below(size: tuple[int, int], ascii: bool) -> None:
    async with seated(size, ascii=ascii) as seat:
        await seat.press("question_mark")
        before = _more(seat)
        assert before > 10
        await seat.press("j")
        assert _more(seat) == before - 1
        await seat.press("G")
        assert _more(seat) == 0 and "Esc closes this page." in seat.text
        assert "at 0." in seat.text
        await seat.press("g")
        assert _more(seat) == before
        assert not ascii or seat.text.isascii()


async def test_help_counts_anew_after_a_resize() -> None:
    async with seated(COMPACT) as seat:
        await seat.press("question_mark")
        before = _more(seat)
        await seat.pilot.resize_terminal(160, 45)
        await seat.settle()
        assert 0 < _more(seat) < before
