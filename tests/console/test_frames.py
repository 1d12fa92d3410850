"""How often the console draws."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from schedtop.console.messages import DataArrived
from seat import seated


async def test_keys_between_frames_of_telemetry_add_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with seated() as seat:
        app, loop = seat.app, asyncio.get_running_loop()
        later, asked = loop.call_later, []

        def call_later(delay_s: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
            if callback == app._paint_frame:
                asked.append(delay_s)
                delay_s = 3600.0
            return later(delay_s, callback, *args, **more)

        monkeypatch.setattr(loop, "call_later", call_later)
        for _ in range(5):
            app.on_data_arrived(DataArrived())
            app.paint()
        assert len(asked) == 1
        app._paint_frame()
        app.on_data_arrived(DataArrived())
        assert len(asked) == 2
