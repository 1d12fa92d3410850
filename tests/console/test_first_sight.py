"""What is to be seen at once: late rows, prompt and output apart, requests on a small screen, and what was left out."""

from __future__ import annotations

from schedtop.engine.contract.commands import SetKnobs
from seat import COMPACT, WIDE, Clock, Seat, seated
from textual.geometry import Offset

SMALL = (60, 15)


def row_of(seat: Seat, id: str) -> str:
    return next(line for line in seat.lines if id in line[:20])


async def test_rows_past_their_slo_or_stalled_are_lettered_and_tinted() -> None:
    async with seated(ttft_slo_s=1e-4, itl_slo_s=None) as seat:
        table = seat.live.requests
        plain = seat.app.view.palette["text"].bgcolor
        for number in table.listed[:8]:
            row = table.list.row(number)
            letter = {"preempted": "V", "starved": "0"}.get(row.state, "T")
            assert row_of(seat, row.id)[1] == letter
        late = table.strips[table.listed.index(table.selected) + 3]
        assert any(segment.style is not None and segment.style.bgcolor != plain for segment in late)
    async with seated(ttft_slo_s=None, itl_slo_s=1e-4) as seat:
        rows = [seat.live.requests.list.row(number) for number in seat.live.requests.listed[:8]]
        decoding = [row for row in rows if row.state == "decode" and row.itl is not None]
        assert decoding and all(row_of(seat, row.id)[1] == "I" for row in decoding)
    async with seated(ttft_slo_s=None, itl_slo_s=None) as seat:
        running = [row.id for row in rows if row.state in ("decode", "prefill")]
        assert all(row_of(seat, id)[1] == " " for id in running), "nothing is late where no SLO is set"


async def test_progress_tells_prompt_from_output_without_colour() -> None:
    async with seated() as seat:
        glyphs = seat.app.view.glyphs.progress
        rows = [seat.live.requests.list.row(number) for number in seat.live.requests.listed[:8]]
        row = max(rows, key=lambda row: min(row.done - row.cached, row.out))
        assert glyphs[1] in row_of(seat, row.id) and glyphs[2] in row_of(seat, row.id)


async def test_a_small_screen_tells_running_and_waiting() -> None:
    async with seated(SMALL) as seat:
        state = seat.app.view.moment.state
        assert f" {state.num_running} run {state.num_waiting} wait " in seat.lines[0]


async def test_the_header_drops_nothing_without_a_mark() -> None:
    async with seated(steps=40, now=lambda: 50.0) as seat:
        for width in range(60, 200, 13):
            await seat.pilot.resize_terminal(width, 30)
            await seat.pilot.pause()
            whole = [f"{label} {value}".strip() for label, value, _ in seat.live.header.fields(width)]
            line = seat.lines[0]
            assert all(field in line for field in whole) != ("…" in line)
            assert ("step/s" in line) == ("over" in line), "a rate without its span is not a figure"


async def test_the_cursor_of_the_terminal_follows_selection_and_input() -> None:
    async with seated() as seat:
        await seat.press("G", "g")
        first = seat.app.cursor_position
        assert seat.lines[first[1]].startswith("▸")
        await seat.press("down", "down")
        assert seat.app.cursor_position == first + Offset(0, 2)
        await seat.press("slash", *"r-")
        assert seat.app.cursor_position[1] == WIDE[1] - 1
        await seat.press("escape")
        assert seat.lines[seat.app.cursor_position[1]].startswith("▸")


async def test_keys_of_another_layout_get_a_hint() -> None:
    async with seated(COMPACT) as seat:
        assert "switch the keyboard layout" in await seat.press("й")
        await seat.press("slash", "й")
        assert seat.live.prompt.value == "й", "a text may have any letters"


async def test_the_guided_minute_follows_what_is_done() -> None:
    clock = Clock()
    async with seated(now=clock, guide=True) as seat:

        async def said(words: str) -> bool:
            for _ in range(30):
                if words in seat.lines[1]:
                    return True
                clock.now_s += 1.1
                await seat.steps(60)
            return False

        assert "guided minute" in seat.lines[1]
        await seat.press("ctrl+p", *"guide", "enter")
        assert "1/5 Pressure: max_num_seqs 16→" in seat.lines[1]
        assert await said("2/5 Read the finding: x")
        assert "3/5 Stage" in await seat.press("x")
        assert "4/5 Try it" in await seat.press("escape", "6", "down", "down", "plus")
        await seat.press("c", "enter")
        assert await said("5/5 Keep it. On trial: max_num_seqs")
        await seat.press("c")
        assert await said("Kept: the queue drains")
        clock.now_s += 21
        await seat.settle()
        assert "Kept" not in seat.lines[1]


async def test_the_guided_minute_is_offered_for_a_while_and_never_on_an_engine_of_others() -> None:
    clock = Clock()
    async with seated(now=clock, guide=True, embedded=False) as seat:
        assert "guided minute" in seat.lines[1]
        clock.now_s += 61
        await seat.settle()
        assert "guided minute" not in seat.lines[1]
        await seat.press("ctrl+p", *"guide", "enter")
        assert "only on an engine of this console's own" in seat.lines[-1] and not seat.asked(SetKnobs)
