"""The Explain screen as an operator meets it: badge, list, why, and the way to the steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
from links import PlayedLink
from scenes import Run, ask, serve, stream
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from schedtop.console.screens.command_palette import PaletteScreen
from schedtop.console.screens.explain import ExplainScreen
from schedtop.console.screens.help import HelpScreen
from schedtop.engine.contract.config import WorkloadSpec
from seat import COMPACT, WIDE, Clock, Operator
from textual.pilot import Pilot


@cache
def sick() -> Run:
    """A sequence cap far too low, and a head that holds up small requests."""
    return serve(WorkloadSpec(source="mixed", rate=8.0, seed=3), 20, max_num_seqs=8)


@cache
def blocked() -> Run:
    requests = [ask(0, 4000, 1500), ask(1, 4000, 10, 0.1), *stream(10, 0.05, 100, 10, start_s=0.2)]
    return serve(requests, 4, num_blocks=400)


@cache
def healthy() -> Run:
    return serve(WorkloadSpec(source="mixed", rate=8.0), 12)


class Seat(Operator):
    """An operator before a console whose clock stands still unless told."""

    def __init__(self, app: ConsoleApp, pilot: Pilot[None], clock: Clock) -> None:
        super().__init__(app, pilot)
        self.clock = clock

    async def later(self, seconds: int) -> str:
        """Seconds go by, one look each; data counts as fresh."""
        for _ in range(seconds):
            self.clock.now_s += 1.0
            self.app.feed.received_at_s = self.clock.now_s
            self.app.paint()
            await self.pilot.pause()
        return self.text


def app_of(run: Run, **options: Any) -> tuple[ConsoleApp, PlayedLink, Clock]:
    link, clock = PlayedLink(run.messages), Clock()
    return ConsoleApp(link, ConsoleOptions(**({"theme": "dark"} | options)), now=clock), link, clock


async def taken_in(pilot: Pilot[None], link: PlayedLink) -> None:
    for _ in range(2000):
        await pilot.pause(0.005)
        if not link.messages:
            break
    await pilot.pause(0.05)


@asynccontextmanager
async def seated(run: Run, size: tuple[int, int] = WIDE, **options: Any) -> AsyncIterator[Seat]:
    app, link, clock = app_of(run, **options)
    async with app.run_test(size=size) as pilot:
        await taken_in(pilot, link)
        seat = Seat(app, pilot, clock)
        await seat.later(4)
        yield seat


@pytest.mark.parametrize("size", [WIDE, COMPACT, (300, 80)])
async def test_the_badge_counts_findings_and_names_the_key(size: tuple[int, int]) -> None:
    async with seated(sick(), size) as seat:
        assert "! 2 findings x" in seat.lines[0]
    async with seated(blocked(), size) as seat:
        assert "! 2 findings x" in seat.lines[0]


async def test_no_badge_on_a_healthy_engine() -> None:
    async with seated(healthy(), COMPACT) as seat:
        assert "finding" not in seat.lines[0]
        assert "Nothing found" in await seat.press("x")


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_a_finding_in_full_is_reached_by_keys(size: tuple[int, int]) -> None:
    async with seated(sick(), size) as seat:
        text = await seat.press("x")
        assert "ttft-sequence-cap" in text
        assert all(len(line) == size[0] for line in seat.lines)
        seen = text + await seat.press("tab", "G")
        for words in ("Why", "└─", "queue", "Steps", "Try", "max_num_seqs up (now 8)"):
            assert words in seen


async def test_enter_leads_to_the_steps() -> None:
    async with seated(sick()) as seat:
        await seat.press("x", "enter")
        screen = seat.app.screen
        assert isinstance(screen, ExplainScreen)
        steps = screen.why.steps()
        assert steps is not None
        text = await seat.press("enter")
        assert seat.app.screen is seat.app.live_screen
        assert seat.app.view.pinned == steps.first_seq
        assert f"step {steps.first_step}" in text
        assert seat.app.live_screen.focused_panel is seat.app.live_screen.batch_panel
        await seat.press("end")
        assert seat.app.view.pinned is None


async def test_a_line_without_steps_says_so() -> None:
    async with seated(healthy()) as seat:
        await seat.press("x", "tab")
        assert "nothing on this line" in await seat.press("enter")
        assert isinstance(seat.app.screen, ExplainScreen)


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_the_cursor_goes_to_lines_that_lead_somewhere_and_the_text_moves_beyond_them(
    size: tuple[int, int],
) -> None:
    async with seated(sick(), size) as seat:
        await seat.press("x")
        screen = seat.app.screen
        assert isinstance(screen, ExplainScreen)
        screen.findings.choose("ttft-sequence-cap")
        await seat.press("enter")
        shown = screen.findings.selected().shown  # type: ignore[union-attr]
        steps = [screen.why.steps()]
        for _ in shown.steps[1:]:
            await seat.press("down")
            steps.append(screen.why.steps())
        assert steps == list(shown.steps) and len(steps) > 2
        assert "max_num_seqs up (now 8)" in await seat.press(*["down"] * 30)
        assert screen.why.steps() == steps[-1]
        assert shown.title[:30] in await seat.press(*["up"] * 40)
        assert screen.why.steps() == steps[0]


async def test_the_selection_stays_while_the_list_moves() -> None:
    async with seated(blocked()) as seat:
        await seat.press("x", "down")
        screen = seat.app.screen
        assert isinstance(screen, ExplainScreen)
        chosen = screen.findings.selected()
        assert chosen is not None
        seat.app.explain.entries.reverse()
        assert screen.findings.selected() is chosen
        assert chosen.finding.title in await seat.press("tab")


async def test_escape_goes_back_level_by_level() -> None:
    async with seated(sick()) as seat:
        await seat.press("x", "enter")
        screen = seat.app.screen
        assert isinstance(screen, ExplainScreen)
        await seat.press("escape")
        assert screen.panel is screen.findings
        await seat.press("escape")
        assert seat.app.screen is seat.app.live_screen
        await seat.press("x", "x")
        assert seat.app.screen is seat.app.live_screen


async def test_help_and_palette_work_here() -> None:
    async with seated(sick()) as seat:
        await seat.press("x", "question_mark")
        assert isinstance(seat.app.screen, HelpScreen)
        await seat.press("escape", "ctrl+p")
        assert isinstance(seat.app.screen, PaletteScreen)
        await seat.press("escape")
        assert isinstance(seat.app.screen, ExplainScreen)


async def test_the_palette_finds_a_finding() -> None:
    async with seated(sick()) as seat:
        last = seat.app.view.findings[-1].finding
        await seat.press("ctrl+p", *last.id, "enter")
        assert isinstance(seat.app.screen, ExplainScreen)
        selected = seat.app.screen.findings.selected()
        assert selected is not None and selected.finding.id == last.id


async def test_it_looks_at_most_once_a_second() -> None:
    async with seated(sick()) as seat:
        looks = seat.app.explain.log.num_looks
        for _ in range(20):
            seat.clock.now_s += 0.04
            seat.app.paint()
        assert seat.app.explain.log.num_looks == looks


async def test_findings_that_ended_stay_below() -> None:
    async with seated(sick()) as seat:
        for entry in seat.app.explain.log.entries.values():
            entry.active = False
        text = await seat.press("x")
        assert "0 now" in text
        assert "2 earlier" in text
        assert "held " in text


async def test_an_engine_that_says_nothing_is_a_finding() -> None:
    async with seated(healthy()) as seat:
        for _ in range(10):
            seat.clock.now_s += 1.0
            seat.app.paint()
        assert seat.app.view.badge == "! 1 finding x"
        assert "no-progress" in await seat.press("x")


async def test_too_small_says_what_it_needs() -> None:
    async with seated(sick()) as seat:
        await seat.press("x")
        await seat.pilot.resize_terminal(50, 10)
        await seat.pilot.pause()
        assert "schedtop needs 60x12" in seat.text
        await seat.pilot.resize_terminal(80, 24)
        await seat.pilot.pause()
        assert "ttft-sequence-cap" in seat.text


async def test_ascii_has_nothing_else() -> None:
    async with seated(sick(), COMPACT, ascii=True) as seat:
        text = await seat.press("x", "enter")
        assert text.isascii()
        assert "`-" in text


@pytest.mark.parametrize("theme", ["dark", "light", "monochrome"])
@pytest.mark.parametrize("size", [WIDE, COMPACT])
def test_picture(snap_compare: Callable[..., bool], size: tuple[int, int], theme: str) -> None:
    app, link, clock = app_of(sick(), theme=theme)

    async def open_it(pilot: Pilot[None]) -> None:
        await taken_in(pilot, link)
        await Seat(app, pilot, clock).later(4)
        await pilot.press("x", "enter")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=open_it)
