"""Pictures of a replay and of the re-run screen. `--snapshot-update` retakes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from rerun_here import Here
from schedtop.console.options import ConsoleOptions
from schedtop.console.replay.app import ReplayApp, ReplayScreen
from schedtop.console.replay.timeline import RecordingMarks
from schedtop.engine.contract.telemetry import Snapshot
from schedtop.engine.recording import Recording
from schedtop.engine.whatif.rerun import RerunQuestion
from textual.pilot import Pilot

WIDE, COMPACT = (160, 45), (80, 24)


@pytest.mark.parametrize(
    ("size", "keys"),
    [(WIDE, ()), (COMPACT, ()), (COMPACT, ("tab",)), (COMPACT, ("tab", "tab"))],
    ids=["wide", "compact", "figures", "difference"],
)
@pytest.mark.parametrize("theme", ["dark", "light", "monochrome"])
def test_both_runs(
    snap_compare: Any, recording: Recording, theme: str, size: tuple[int, int], keys: tuple[str, ...]
) -> None:
    def begin(changes: Mapping[str, Any], index: int | None, snapshot: Snapshot | None) -> Here:
        return Here(RerunQuestion(path=recording.path, changes=dict(changes), index=index, snapshot=snapshot))

    options = ConsoleOptions(theme=theme, embedded=False, mouse=False)
    app = ReplayApp(recording, options, lambda: 50.0, paused=True, rerun=begin)

    async def before(pilot: Pilot[None]) -> None:
        await pilot.pause()
        with app.history.lock:
            app.player.move(app.player.history.source.index_of_step(250))
            app.staging.stage("max_num_seqs", 6)
        await pilot.press("r")
        while app.reruns.outcome is None:
            await pilot.pause(0.02)
        while app.history.ladder.share < 1:
            app.history.ladder.read_on(1.0)
        app.paint()
        await pilot.pause()
        if keys:
            await pilot.press(*keys)
            await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", [WIDE, COMPACT], ids=["wide", "compact"])
@pytest.mark.parametrize("theme", ["dark", "light", "monochrome"])
def test_replay(snap_compare: Any, recording: Recording, theme: str, size: tuple[int, int]) -> None:
    options = ConsoleOptions(theme=theme, embedded=False, mouse=False)
    app = ReplayApp(recording, options, lambda: 50.0, paused=True)

    async def before(pilot: Pilot[None]) -> None:
        await pilot.pause()
        with app.history.lock:
            app.player.move(app.player.history.source.index_of_step(250))
        screen = app.live_screen
        assert isinstance(screen, ReplayScreen)
        # Mark by mark: how a file was cut into chunks is a matter of its writer's pace.
        timeline = screen.timeline.timeline = RecordingMarks(app.player.history.source)
        while not timeline.done:
            timeline.look(10**6)
        while app.history.ladder.share < 1:
            app.history.ladder.read_on(1.0)
        app.paint()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=before)
