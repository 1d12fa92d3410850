"""How often the console draws, how much of it, and what that leaves behind."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from links import EngineLink
from rich.style import Style
from schedtop.console.drawing.line import Line, WholeStrip
from schedtop.console.messages import DataArrived
from schedtop.console.widgets.panel import Panel
from seat import seated


async def test_keys_between_frames_of_telemetry_add_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with seated() as seat:
        app, loop = seat.app, asyncio.get_running_loop()
        later, asked = loop.call_later, []

        def call_later(delay_s: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
            if callback == app.paint_frame:
                asked.append(delay_s)
                delay_s = 3600.0
            return later(delay_s, callback, *args, **more)

        monkeypatch.setattr(loop, "call_later", call_later)
        for _ in range(5):
            app.on_data_arrived(DataArrived())
            app.paint()
        assert len(asked) == 1
        app.paint_frame()
        app.on_data_arrived(DataArrived())
        assert len(asked) == 2


async def test_all_panels_show_one_step_unless_records_rain_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async with seated() as seat:
        app, screen, drawn = seat.app, seat.live, Counter[str]()

        def counted(panel: Panel) -> Callable[[int, int], list[Line]]:
            body = panel.body

            def draw(width: int, height: int) -> list[Line]:
                drawn[panel.TITLE] += 1
                return body(width, height)

            return draw

        for panel in (screen.queue, screen.requests):
            monkeypatch.setattr(panel, "body", counted(panel))
        assert isinstance(seat.link, EngineLink)
        for records, times in ((1, 5), (60, 1)):
            drawn.clear()
            for _ in range(5):
                for _ in range(records):
                    app.history.apply(seat.link.engine.run_step())
                app.paint_frame()
            assert drawn == {"Queue": 5, "Requests": times}


async def test_a_key_is_answered_while_the_next_frame_is_still_due() -> None:
    async with seated() as seat:
        app = seat.app
        await seat.press("3")
        if app.next_frame is not None:
            app.next_frame.cancel()
        # It never comes: what is seen, the key has drawn.
        app.next_frame = due = asyncio.get_running_loop().call_later(3600.0, app.paint_frame)
        await seat.pilot.press("1")
        await seat.pilot.pause()
        assert "[1] Timeline " in seat.text and "[3]Requests " in seat.text
        assert app.next_frame is due


async def test_a_key_that_acts_on_the_panel_it_turns_to_draws_all_of_it() -> None:
    async with seated() as seat:
        app, screen = seat.app, seat.app.live_screen
        await seat.press("1")
        if app.next_frame is not None:
            app.next_frame.cancel()
        app.next_frame = asyncio.get_running_loop().call_later(3600.0, app.paint_frame)
        before = [line.text for line in screen.requests.strips]
        screen.action_act("panel_3")
        assert [line.text for line in screen.requests.strips][1:] == before[1:]
        screen.action_act("panel_1")
        screen.action_act("sort_right")
        after = [line.text for line in screen.requests.strips]
        assert screen.focused is screen.requests
        assert after[1:] != before[1:]  # the titles mark the column


def test_a_drawn_line_is_freed_without_the_collector_of_cycles() -> None:
    def kept() -> int:
        return sum(type(thing) is WholeStrip for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = kept()
        strip = Line().add("decode", Style()).strip(20, Style(), False)
        assert [part.cell_length for part in strip.divide([20])] == [20]
        assert [part.cell_length for part in strip.divide([6, 20])] == [6, 14]
        assert kept() == before + 1
        del strip
        assert kept() == before
    finally:
        gc.enable()


async def test_a_frame_that_is_due_when_the_screens_are_gone_is_left_out() -> None:
    async with seated() as seat:
        pass
    assert not seat.app.screen_stack
    seat.app.paint()
