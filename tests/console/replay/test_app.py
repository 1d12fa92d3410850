"""The replay as an operator meets it: keys, states, and panels that draw what a live console drew."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from links import PlayedLink
from schedtop.console.app import ConsoleApp
from schedtop.console.cli.main import main
from schedtop.console.options import ConsoleOptions
from schedtop.console.replay.app import ReplayApp
from schedtop.console.replay.timeline import RecordingMarks, clock
from schedtop.console.screens.explain import ExplainScreen
from schedtop.engine.recording import Recording, RecordingError
from seat import COMPACT, STRIP, WIDE, Clock, Operator
from textual.pilot import Pilot


class Seat(Operator):
    """An operator before a replay whose clock stands still unless told."""

    def __init__(self, app: ReplayApp, pilot: Pilot[None], now: Clock) -> None:
        super().__init__(app, pilot)
        self.now = now

    async def wait(self, seconds: float) -> str:
        """Let the console's clock go on."""
        self.now.now_s += seconds
        self.app.play_on()
        await self.pilot.pause()
        return self.text

    @property
    def step(self) -> int:
        return self.app.history.live.step


@asynccontextmanager
async def seated(
    source: Recording, size: tuple[int, int] = WIDE, damage: type[Exception] = OSError, **settings: Any
) -> AsyncIterator[Seat]:
    now = Clock()
    options = ConsoleOptions(theme="dark", embedded=False, **settings)
    app = ReplayApp(source, options, now, paused=True, damage=damage)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Seat(app, pilot, now)


def drawn(app: ConsoleApp) -> dict[str, list[str]]:
    """Every panel's lines at a size of its own, as text."""
    with app.history.lock:
        app.view.look()
        app.live_screen.requests.selected = None
        app.live_screen.batch_panel.zoomed = True  # the timeline of a recording shows what is still to come
        return {
            name: ["".join(piece for piece, _ in line.pieces) for line in panel.lines(100, 14)]
            for name, panel in app.live_screen.panels.items()
            if name != "knobs"  # its rule says that a recording's limits are locked
        }


async def test_panels_draw_what_a_live_console_drew(recording: Recording, reported: Any) -> None:
    chosen = [*sorted(random.Random(3).sample(range(len(reported.records)), 5)), len(reported.records) - 1]
    wanted = {}
    live = ConsoleApp(PlayedLink([]), ConsoleOptions(theme="dark"))
    async with live.run_test(size=WIDE):
        before = -1
        for index in chosen:
            for message in reported.messages(index) if before < 0 else reported.records[before + 1 : index + 1]:
                live.history.apply(message)
            wanted[index], before = drawn(live), index
    async with seated(recording) as jumped:
        for index in random.Random(4).sample(chosen, len(chosen)):
            jumped.app.player.move(index)
            for name, lines in drawn(jumped.app).items():
                assert lines == wanted[index][name], f"{name} at record {index}"
    async with seated(recording) as played:
        for index in range(chosen[2] + 1):
            played.app.player.move(index)
        assert drawn(played.app) == wanted[chosen[2]]


@pytest.mark.parametrize("size", [WIDE, COMPACT, STRIP])
async def test_the_header_tells_mode_position_and_speed(recording: Recording, size: tuple[int, int]) -> None:
    async with seated(recording, size) as seat:
        assert "REPLAY PAUSED 1x" in seat.lines[0]
        if size != STRIP:
            assert f"step 1/{recording.num_steps}" in seat.lines[0]
        assert await seat.press("space") and "REPLAY 1x" in seat.lines[0]
        assert "REPLAY 2x" in await seat.press("right_square_bracket")
        assert all(len(line) == size[0] for line in seat.lines)


async def test_playing_follows_the_clock_and_pausing_holds(recording: Recording, reported: Any) -> None:
    async with seated(recording) as seat:
        await seat.press("space")
        await seat.wait(3.0)
        due_s = reported.records[0].end_s + 3.0
        assert seat.step == max(record.step for record in reported.records if record.end_s <= due_s)
        await seat.press("space")
        at = seat.step
        await seat.wait(5.0)
        assert seat.step == at


async def test_stepping_both_ways(recording: Recording) -> None:
    async with seated(recording) as seat:
        assert "begins here" in await seat.press("comma")
        await seat.press("full_stop", "full_stop", "full_stop", "comma")
        assert seat.step == 3
        await seat.press("1", "z", "right", "right", "left")
        assert seat.step == 4
        await seat.press("end")
        assert seat.step == recording.num_steps and "REPLAY ENDED" in seat.lines[0]
        assert "ends here" in await seat.press("full_stop")


async def test_jumping_by_the_prompt_and_by_event(recording: Recording, reported: Any) -> None:
    async with seated(recording, ttft_slo_s=60.0, itl_slo_s=60.0) as seat:
        await seat.press("J")
        await seat.press(*"120", "enter")
        assert seat.step == 120
        await seat.press("J")
        assert "jump to: nowhere" in await seat.press(*"nowhere") and "write step 1200" in seat.lines[-1]
        assert "write" in await seat.press("enter") and seat.step == 120
        marked = [r.step for r in reported.records if r.knobs or r.preemptions or r.refusals or _aborted(r)]
        await seat.press("right_curly_bracket")
        assert seat.step == min(step for step in marked if step > 120)
        await seat.press("m")
        assert "go to: preemption" in seat.text
        await seat.press("left_curly_bracket")
        assert seat.app.history.latest is not None
        last = [r.step for r in reported.records if r.preemptions and r.step < 120]
        assert (seat.step in last) or "no preemption before" in seat.text


def _aborted(record: Any) -> bool:
    return any(finish.reason == "abort" for finish in record.finishes)


async def test_an_event_leads_to_its_step(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.press("end", "7", "down", "down", "enter")
        event = seat.app.live_screen.events
        assert seat.step < recording.num_steps and event is not None
        assert "REPLAY PAUSED" in seat.lines[0]


async def test_a_recording_takes_no_commands_and_says_so(recording: Recording) -> None:
    """Knobs are staged for a re-run only."""
    async with seated(recording) as seat:
        assert "a recording: stage values for a re-run" in await seat.press("6")
        assert "a recording cannot be changed" in await seat.press("P")
        assert "this recording cannot be re-run" in await seat.press("plus", "enter")
        assert seat.app.live_screen.staging.staged and not seat.app.history.live.paused


async def test_keys_of_a_running_engine_say_why_they_do_nothing(recording: Recording) -> None:
    async with seated(recording) as seat:
        assert "Record, or end the recording: only on a running engine" in await seat.press("W")
        assert "Abort the request: only on a running engine" in await seat.press("3", "delete")
        await seat.press("enter")
        assert "Abort the request: only on a running engine" in await seat.press("delete")


async def test_quitting_does_not_ask(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.press("end")
        assert seat.app.history.live.requests
        await seat.press("q")
        assert seat.app.return_code == 0


async def test_a_request_and_the_findings_open_at_the_shown_step(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.press("J")
        await seat.press(*"400", "enter")
        await seat.press("3", "enter")
        assert seat.app.screen is not seat.app.live_screen
        at = seat.step
        await seat.press("full_stop")
        assert seat.step == at + 1
        await seat.press("escape", "x")
        assert isinstance(seat.app.screen, ExplainScreen)
        await seat.press("escape")
        assert "REPLAY" in seat.lines[0]


async def test_findings_depend_on_the_step_alone(recording: Recording) -> None:
    async with seated(recording) as seat:
        found = []
        for route in ([800], [100, 850, 800]):
            for index in route:
                seat.app.player.move(index)
            with seat.app.history.lock:
                seat.app.explain.look(seat.app.view)
            found.append([(entry.finding.id, entry.active) for entry in seat.app.explain.entries])
        assert found[0] == found[1]


async def test_a_file_that_is_cut_off_names_its_last_good_step(reported: Any, tmp_path: Path) -> None:
    cut = tmp_path / "cut.schedtop"
    cut.write_bytes(reported.path.read_bytes()[:-4000])
    with Recording(cut) as recording:
        assert recording.truncated
        async with seated(recording) as seat:
            await seat.press("end")
            assert f"last good step is {recording.num_steps}" in seat.lines[1]
            assert seat.step == recording.num_steps < reported.records[-1].step


async def test_damage_found_while_reading_pauses_with_one_line(reported: Any, tmp_path: Path) -> None:
    raw = bytearray(reported.path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    torn = tmp_path / "torn.schedtop"
    torn.write_bytes(raw)
    with Recording(torn, check=False) as recording:
        async with seated(recording, damage=RecordingError) as seat:
            seat.app.player.speed = 1000.0
            await seat.press("space")
            text = await seat.wait(1e5)
            assert "damaged" in text and "REPLAY" in seat.lines[0]
            assert not seat.app.player.playing


def test_the_timeline_places_every_mark(recording: Recording, reported: Any) -> None:
    timeline = RecordingMarks(recording)
    while not timeline.done:
        timeline.look(5000)
    shown = {name for _, name in timeline.marks}
    assert {"preemptions", "knobs", "aborts"} <= shown
    times = sorted(record.end_s for record in reported.records if record.knobs)
    assert sorted(at_s for at_s, name in timeline.marks if name == "knobs") == pytest.approx(times)
    assert all(0 <= cell < 100 for cell in timeline.letters(100))


async def test_a_click_on_the_timeline_goes_there(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.pilot.click("#timeline", offset=(80, 0))
        await seat.pilot.pause()
        assert 0.4 < seat.step / recording.num_steps < 0.6


@pytest.mark.parametrize(
    ("at_s", "span_s", "words"), [(12.34, 60, "00:12.3"), (61, 700, "01:01"), (3725, 7200, "1:02:05")]
)
def test_times_are_as_fine_as_the_recording_is_short(at_s: float, span_s: float, words: str) -> None:
    assert clock(at_s, span_s) == words


async def test_the_timeline_goes_to_where_its_cursor_stands(recording: Recording) -> None:
    async with seated(recording) as seat:
        while seat.app.history.ladder.share < 1:
            seat.app.history.ladder.read_on(1.0)
        await seat.press("1", "+", "+", "+")
        assert "─ all ─" in seat.text and seat.step == 1
        await seat.press(*["right"] * 20)
        assert seat.step == 1, "the cursor alone has moved"
        await seat.press("enter")
        assert seat.step > 20 and "Batch" in seat.text


async def test_the_kv_panel_has_the_hit_rate_of_the_run_while_its_first_step_is_in_sight(tmp_path: Path) -> None:
    """Two prompts of 64 tokens, the second of which finds 48: 37.5 %, not 75 %, which leaves the first one out."""
    case = Path(__file__).parents[2] / "golden" / "field" / "hits-D3.json"
    with pytest.raises(SystemExit):
        main(["run", "--workload", str(case), "--record", str(tmp_path / "hits.rec")])
    with Recording(tmp_path / "hits.rec") as source:
        async with seated(source) as seat:
            assert "hits 38%" in await seat.press("end")
