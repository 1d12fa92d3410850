"""The Live screen as an operator meets it: every key, every state, at every size."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
from links import EngineLink, PlayedLink
from rich.color import ColorType
from schedtop.console.drawing import text
from schedtop.console.screens.command_palette import PaletteScreen
from schedtop.console.screens.help import HelpScreen
from schedtop.console.screens.live import LiveScreen
from schedtop.console.screens.quit import QuitScreen
from schedtop.console.widgets.batch import DRAFT_STEPS
from schedtop.engine.contract.commands import Abort, Pause, Resume, SetKnobs, StepOnce
from schedtop.engine.contract.reading import draft_positions
from schedtop.engine.contract.telemetry import Bye, Head, Header, Limiter, Notice, Stage
from seat import COMPACT, STRIP, WIDE, Seat, seated
from synthetic import SyntheticEngine
from textual.events import Key

from tests.thorough import pick


@pytest.mark.parametrize(("size", "panels"), [(WIDE, "1234567"), (COMPACT, "1234"), (STRIP, "124")])
async def test_panels_in_sight_by_size(size: tuple[int, int], panels: str) -> None:
    async with seated(size) as seat:
        assert all(f"[{number}]" in seat.text for number in panels)
        assert all(len(line) == size[0] for line in seat.lines)


@pytest.mark.parametrize(
    "size", pick([COMPACT, (139, 60)], [WIDE, COMPACT, STRIP, (300, 80), (139, 60), (200, 39)])
)
async def test_every_panel_is_reached_by_digit_and_by_tab(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        for number, name in enumerate(seat.live.panels, start=1):
            await seat.press(str(number))
            panel = seat.live.focused_panel
            assert panel is not None and panel.id == name and panel.display and panel.size.height > 0
            await seat.press("escape")
        await seat.press("1")
        seen = []
        for _ in range(7):
            seen.append(str(seat.live.focused_panel.id))  # type: ignore[union-attr]
            await seat.press("tab")
        assert seen == list(seat.live.panels)


async def test_too_small_says_what_it_needs_and_recovers_with_the_selection() -> None:
    async with seated() as seat:
        await seat.press("3", "down", "down")
        selected = seat.live.requests.selected
        await seat.pilot.resize_terminal(50, 10)
        await seat.settle()
        assert "needs 60x12" in seat.text and "50x10" in seat.text
        await seat.pilot.resize_terminal(80, 24)
        await seat.settle()
        assert "[3]" in seat.text and "schedtop needs" not in seat.text
        assert seat.live.requests.selected == selected


async def test_tokens_by_class_add_up_to_the_steps_tokens_also_in_past_steps() -> None:
    async with seated() as seat:
        await seat.press("1")
        for _ in range(4):
            record = seat.app.view.moment.record
            assert record is not None
            assert record.decode_tokens + record.prefill_tokens + record.draft_tokens == record.scheduled_tokens
            assert f"tok {record.scheduled_tokens}/{record.token_budget}" in seat.text
            assert f"in-use {record.blocks.held + record.blocks.shared}/300" in seat.text
            await seat.press("left")


@pytest.mark.parametrize("size", [(160, 60), (80, 60)])
async def test_drafts_by_position(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press("1", "z")
        (line,) = (line for line in seat.lines if "drafts accepted" in line)
        steps = seat.app.view.history.steps(seat.app.view.edge, DRAFT_STEPS)
        drafted, accepted = sum(draft_positions(record) for record in steps)
        for place in range(3):
            assert f" {place + 1} {text.share(accepted[place], drafted[place])}" in line
        assert " 4 " not in line


async def test_an_inspected_step_holds_while_new_ones_come_and_end_returns() -> None:
    async with seated() as seat:
        newest = seat.app.history.live.step
        text = await seat.press("1", "z", "left", "left")
        assert f"step {newest - 2}" in text and "PAUSED" in text
        text = await seat.steps(30)
        assert f"step {newest - 2} " in text and "PAUSED +32 steps" in text
        text = await seat.press("end")
        assert f"step {newest + 30}" in text and "LIVE" in text


async def test_an_engine_without_requests_is_idle_not_late_and_makes_no_tokens() -> None:
    now_s = 0.0
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    async with seated(link=EngineLink(engine, 60), now=lambda: now_s) as seat:
        assert "tok/s" in seat.lines[0]
        now_s += 5.0
        await seat.settle()
        assert "LIVE" in seat.lines[0] and "age 5.0s" in seat.lines[0]
        engine.next_arrival_s = float("inf")
        while engine.running or engine.waiting:
            await seat.steps(20)
        assert "LIVE" in seat.lines[0]
        now_s += 5.0
        await seat.settle()
        assert "IDLE" in seat.lines[0] and "tok/s" not in seat.lines[0]
        await seat.press("6", "-")
        assert seat.asked(SetKnobs)[-1].dry_run, "the engine answers"
        assert "IDLE" in seat.lines[0] and "tok/s" not in seat.lines[0]


async def test_the_age_is_that_of_what_is_shown_while_the_last_minutes_are_read() -> None:
    now_s = 0.0
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    header, snapshot, records = engine.header(), engine.snapshot(), engine.records(100)
    reported = msgspec.structs.replace(header, newest_s=records[89].end_s)
    link = PlayedLink([reported, snapshot, *records[:40]])
    async with seated(link=link, now=lambda: now_s) as seat:
        now_s += 5.0
        link.push(records[40])
        await seat.settle()
        old_s = 5.0 + records[89].end_s - records[40].end_s
        assert ("age", text.duration(old_s), "breach") in seat.live.header.fields(WIDE[0])
        assert seat.app.view.silent_s == 0.0, "the engine does speak"
        link.push(*records[41:90])
        await seat.settle()
        assert ("age", "0.0s", "text") in seat.live.header.fields(WIDE[0])


async def test_a_paused_engine_is_not_late_and_makes_no_tokens() -> None:
    now_s = 0.0
    async with seated(now=lambda: now_s) as seat:
        await seat.press("P")
        now_s += 100.0
        await seat.settle()
        header = seat.live.header
        assert "ENGINE PAUSED" in seat.lines[0] and "step/s" not in seat.lines[0] and "tok/s" not in seat.lines[0]
        assert ("age", "1m40s", "text") in header.fields(WIDE[0])
        await seat.press("1", "z", "left", "left")
        assert "engine paused" in seat.lines[0] and "step/s" in seat.lines[0], "that step was in full work"
        assert ("age", "1m40s", "text") in header.fields(WIDE[0])
        await seat.press("end", "P")
        now_s += 5.0
        await seat.settle()
        assert "LIVE" in seat.lines[0] and ("age", "5.0s", "breach") in header.fields(WIDE[0])


async def test_right_past_the_newest_step_is_live_again() -> None:
    async with seated() as seat:
        await seat.press("1", "z", "left")
        assert "PAUSED" in seat.text
        await seat.press("right")
        await seat.press("right")
        assert "LIVE" in seat.text


async def test_space_pauses_the_view_and_no_step_is_lost() -> None:
    async with seated() as seat:
        await seat.press("3", "G")
        before = (seat.live.requests.selected, seat.live.requests.sort)
        await seat.press("space")
        text = await seat.steps(40)
        assert "PAUSED +40 steps" in text
        await seat.press("space")
        assert "LIVE" in seat.text
        assert len(seat.app.history.records) == 190
        assert (seat.live.requests.selected, seat.live.requests.sort) == before


async def test_pauses_name_who_asked_for_them() -> None:
    async with seated(who="ann@pts/1") as seat:
        assert isinstance(seat.link, EngineLink)
        await seat.press("P")
        [asked] = seat.asked(Pause)
        assert asked.by == "console ann@pts/1"
        seat.link.push(
            msgspec.structs.replace(seat.link.engine.run_step(), paused=False, paused_by="key bob@pts/2")
        )
        await seat.settle()
        assert "engine resumed by=key bob@pts/2" in seat.text


async def test_the_engine_is_paused_stepped_and_resumed() -> None:
    async with seated() as seat:
        assert "the engine is running" in await seat.press(".")
        assert not seat.asked(StepOnce)
        await seat.press("P")
        assert len(seat.asked(Pause)) == 1 and "ENGINE PAUSED" in seat.text
        step = seat.app.history.live.step
        await seat.press(".")
        assert len(seat.asked(StepOnce)) == 1 and seat.app.history.live.step == step + 1
        await seat.press("P")
        assert len(seat.asked(Resume)) == 1 and "LIVE" in seat.text


async def test_steps_share_columns_when_asked() -> None:
    async with seated() as seat:
        assert "2 steps/column" in await seat.press("1", "z", "+")
        text = await seat.press("+", "-", "-")
        assert "steps/column" not in text


async def test_a_filter_narrows_help_opens_over_it_and_escape_takes_one_level_each() -> None:
    async with seated() as seat:
        text = await seat.press("slash", *"decode", "question_mark")
        assert isinstance(seat.app.screen, HelpScreen) and "PROMPT" in text
        await seat.press("escape")
        assert not isinstance(seat.app.screen, HelpScreen)
        assert seat.live.requests.filter.words == "decode"
        await seat.press("enter")
        assert "filter decode" in seat.text and " wait " not in "\n".join(seat.lines[25:44])
        await seat.press("escape")
        assert not seat.live.requests.filter


async def test_what_is_typed_stands_beside_the_question_it_answers() -> None:
    async with seated() as seat:
        await seat.press("6", "down", "down", "-")
        text = await seat.press("c", *"12")
        assert "seconds until it reverts" in text and "(30): 12" in text
        await seat.press("escape")
        assert "filter: chat" in await seat.press("slash", *"chat")


@pytest.mark.parametrize("size", [WIDE, COMPACT, STRIP])
async def test_what_is_wrong_with_a_text_is_said_while_it_is_typed(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press("slash", *"kv>2x")
        assert "filter: kv>2x" in seat.lines[-1] and "2x is not a number" in seat.lines[-1]
        assert "no number" not in await seat.press("backspace")
        await seat.press("x", "enter")
        assert "kv>2x: 2x is not a number" in seat.lines[-1]
        await seat.press("escape", "6", "home", "down", "down", "equals_sign", *["backspace"] * 2, *"99")
        assert "max_num_seqs (1..64): 99" in seat.lines[-1] and "must be at most 64" in seat.lines[-1]
        await seat.press("escape", "-", "c", *"so")
        assert seat.lines[-1].startswith(" seconds until") and "a number" in seat.lines[-1]
        assert ": so " in seat.lines[-1]
        await seat.press("escape")
        assert not seat.live.typing and seat.app.staging.staged


async def test_what_is_not_understood_filters_nothing() -> None:
    async with seated() as seat:
        shown = list(seat.live.requests.listed)
        text = await seat.press("slash", *"kv>2x", "enter")
        assert seat.live.requests.listed == shown and "not understood" in text


async def test_a_filter_is_seen_also_where_tabs_hide_the_title() -> None:
    async with seated(COMPACT) as seat:
        text = await seat.press("slash", *"decode", "enter")
        assert "filter decode" in text


async def test_a_filter_given_up_leaves_the_old_one() -> None:
    async with seated() as seat:
        await seat.press("slash", *"r-04", "enter")
        await seat.press("slash", *"zz", "escape")
        assert seat.live.requests.filter.words == "r-04"
        assert "nothing matches" in await seat.press("slash", *"zz", "enter")


async def test_sorting_inverting_following_freezing_and_matching() -> None:
    async with seated() as seat:
        table = seat.live.requests
        await seat.press("3", "greater_than_sign")
        assert table.sort == "age"
        await seat.press("less_than_sign", "less_than_sign")
        assert table.sort == "progress"
        shown = list(table.listed)
        await seat.press("I")
        assert not table.descending and table.listed != shown
        text = await seat.press("f", "F")
        assert "following" in text and "order frozen" in text
        order = list(table.listed)
        await seat.steps(3)
        assert [number for number in table.listed if number in order] == [n for n in order if n in table.listed]
        first = table.selected
        await seat.press("n")
        assert table.selected != first
        await seat.press("N")
        assert table.selected == first


async def test_what_a_title_would_tell_is_said_where_tabs_hide_it() -> None:
    async with seated(COMPACT) as seat:
        assert "the selected request is kept in sight" in await seat.press("3", "f")
        assert "no longer following" in await seat.press("f")
        assert "the order is frozen" in await seat.press("F")
        assert "sorted by kv again" in await seat.press("F")
        assert "events listed: important" in await seat.press("7", "o")


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
async def test_no_column_of_the_table_is_cut(policy: str) -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    messages = [engine.header(policy=policy), engine.snapshot(), *engine.records(60)]
    async with seated((50, 40), link=PlayedLink(messages)) as seat:
        for width in (60, 79, 80, 84, 90, 96, 100, 120, 140, 160, 200, 300):
            await seat.pilot.resize_terminal(width, 40)
            table = seat.live.requests
            await seat.press("3")
            columns = table.columns(table.size.width)
            assert sum(size for _, _, size in columns) + 2 <= table.size.width <= width
            assert ("priority" in [name for name, _, _ in columns]) is (policy == "priority")
            shown = [table.list.row(number) for number in table.listed[:3]]
            assert shown and all(row.id in seat.text for row in shown)


async def test_moving_through_the_table() -> None:
    async with seated() as seat:
        table = seat.live.requests
        await seat.press("3", "g")
        assert table.selected == table.listed[0]
        await seat.press("j", "down", "k")
        assert table.selected == table.listed[1]
        await seat.press("G")
        assert table.selected == table.listed[-1]
        await seat.press("pageup", "pagedown", "home")
        assert table.selected == table.listed[0]


async def test_the_latency_window_is_chosen_and_shown() -> None:
    async with seated() as seat:
        assert "window 60.0s" in seat.text or "window 60s" in seat.text
        text = await seat.press("4", "+")
        assert "window 5m00s" in text
        text = await seat.press("-", "-")
        assert "window 30s" in text


async def test_a_knob_is_staged_foreseen_applied_and_undone() -> None:
    async with seated() as seat:
        assert isinstance(seat.link, EngineLink)
        seat.link.warnings = ["14 running, cap 13: 1 must finish first"]
        await seat.press("6", "down", "down", "-", "-", "-")
        assert "1 staged" in seat.text and "16→13*" in seat.text
        assert "14 running, cap 13" in seat.text
        assert [command.dry_run for command in seat.asked(SetKnobs)][-1]
        await seat.press("enter")
        applied = seat.asked(SetKnobs)[-1]
        assert (applied.values, applied.dry_run, applied.expected_version) == ({"max_num_seqs": 13}, False, 1)
        assert seat.app.history.live.knobs["max_num_seqs"] == 13
        assert "K max_num_seqs 16→13" in seat.text
        await seat.press("u")
        assert "13→16*" in seat.text
        await seat.press("enter")
        assert seat.app.history.live.knobs["max_num_seqs"] == 16


async def test_a_lowered_cap_shows_what_still_drains() -> None:
    async with seated() as seat:
        await seat.press("6", "down", "down", "equals_sign")
        await seat.press(*["backspace"] * 2, "3", "enter", "enter")
        running = seat.app.history.live.num_running
        assert running > 3 and f"draining {running}" in seat.text


async def test_a_step_far_back_is_in_sight_with_the_steps_around_it() -> None:
    async with seated(steps=600) as seat:
        await seat.press("1", "z")
        width = seat.live.batch_panel.size.width
        first = seat.app.history.records[0].seq
        seat.app.view.pin(first + 100)
        await seat.settle()
        shown = seat.live.batch_panel.shown_steps()
        assert shown[0].seq < first + 100 < shown[-1].seq
        assert f"columns {shown[0].step}-{shown[-1].step}" in seat.lines[2]
        assert f"oldest {shown[0].step}" in seat.text and f"up to {shown[-1].step}, newest 600" in seat.text
        assert "▲" in seat.text
        text = await seat.press("right")
        assert seat.live.batch_panel.shown_steps() == shown, "what is in sight stays"
        await seat.press("g")
        shown = seat.live.batch_panel.shown_steps()
        assert shown[0].seq == first == seat.app.view.pinned and len(shown) <= width
        text = await seat.press("end")
        assert "newest 600" in text and "up to" not in text


HEADS = (
    (Limiter.BLOCKS, 44, 38, 0, "blocks: needs 44, 38 free, short 6"),
    (Limiter.WATERMARK, 5, 7, 3, "watermark: 7 − 5 < 3"),
    (Limiter.FULL_SEQUENCE, 4, 9, 20, "full sequence: needs 24, 9 free, short 15"),
    (Limiter.SEQUENCE_CAP, 3, 8, 0, "sequence cap 3, 8 running, draining"),
    (Limiter.TOKEN_BUDGET, 512, 0, 0, "token budget: 0 left of 512"),
    (Limiter.CHUNKING_OFF, 700, 120, 0, "chunking off: needs 700 tokens, 120 left in this step"),
    (Limiter.PREEMPTED_NOW, None, None, 0, "preempted now"),
    (Limiter.PAUSED, None, None, 0, "paused"),
)


async def test_the_head_says_what_holds_it_and_how_much_is_short() -> None:
    link = EngineLink(SyntheticEngine(rate=40.0, num_blocks=200), 200)
    async with seated((240, 45), link=link) as seat:
        for reason, need, have, reserve, words in HEADS:
            record = link.engine.run_step()
            assert record.head is not None
            head = Head(record.head.number, reason, need, have, reserve)
            link.push(msgspec.structs.replace(record, head=head))
            await seat.settle()
            assert f"HEAD {words}" in seat.text
            assert f"r-{head.number:04d}" in seat.text and "behind r-" in seat.text


async def test_no_key_is_lost_however_fast_they_come() -> None:
    """As when they are pasted, or typed while the machine is busy: each means what it would have meant alone."""

    async def burst(seat: Seat, *keys: str) -> None:
        for key in keys:
            name = {"-": "minus", "/": "slash"}.get(key, key)
            seat.app.post_message(Key(name, key if len(key) == 1 else None))
        await seat.settle()

    async with seated() as seat:
        await burst(seat, "6", "home", "down", "down", "-", "-")
        assert seat.app.staging.staged == {"max_num_seqs": 14}
        await burst(seat, "c", "4", "5", "enter")
        assert seat.asked(SetKnobs)[-1].trial_s == 45.0
        await burst(seat, "1", "5", "enter")
        assert not seat.live.typing
        await burst(seat, "3", "/", *"r-04", "enter")
        assert seat.live.requests.filter.words == "r-04" and not seat.live.typing
        await burst(seat, "K", "tab", "down", "enter")
        assert "watermark" in seat.app.staging.staged
        await burst(seat, "escape", "escape", "q", "y")
        assert seat.app.return_code is not None


async def test_a_knob_at_its_bound_says_so() -> None:
    async with seated() as seat:
        text = await seat.press("6", "+")
        assert "max_num_batched_tokens 2048 is at its limit: 1..2048" in text
        assert not seat.app.staging.staged


async def test_an_out_of_range_value_is_refused_with_its_bound() -> None:
    async with seated() as seat:
        await seat.press("6", "down", "down", "equals_sign", *["backspace"] * 2, *"9999", "enter")
        assert "must be at most 64" in seat.text and "max_seqs_ceiling" in seat.text
        assert not seat.live.staging.staged and not seat.asked(SetKnobs)


async def test_a_refused_change_says_why_and_stays_staged() -> None:
    link = EngineLink(
        SyntheticEngine(rate=12.0), 50, refuse=lambda c: "" if c.dry_run else "knobs were changed meanwhile"
    )
    async with seated(link=link) as seat:
        await seat.press("6", "down", "down", "-", "enter")
        assert "knobs were changed meanwhile" in seat.text
        assert seat.live.staging.staged == {"max_num_seqs": 15}
        await seat.press("escape")
        assert not seat.live.staging.staged


async def test_launch_values_are_staged_in_one_key() -> None:
    async with seated() as seat:
        await seat.press("6", "-", "enter", "down", "+", "enter")
        await seat.press("R")
        launch = SyntheticEngine(rate=12.0).knobs
        assert seat.live.staging.staged and all(
            launch[name] == value for name, value in seat.live.staging.staged.items()
        )


async def test_read_only_changes_nothing() -> None:
    async with seated(read_only=True) as seat:
        await seat.press("6", "-", "enter", "P")
        assert "read-only" in seat.text
        assert not seat.link.sent


async def test_an_event_leads_to_its_step() -> None:
    async with seated() as seat:
        await seat.press("7", "down", "down")
        event = seat.live.events.selected()
        assert event is not None
        await seat.press("enter")
        assert seat.app.view.pinned == event.seq
        assert seat.app.view.moment.state.step == event.step


async def test_events_are_listed_by_weight() -> None:
    async with seated() as seat:
        await seat.press("7", "o")
        assert all(event.kind != "A" for event in seat.live.events.listed())
        await seat.press("o")
        assert any(event.kind == "F" for event in seat.live.events.listed())


async def test_zoom_fills_the_screen_and_escape_never_quits() -> None:
    async with seated() as seat:
        await seat.press("3", "z")
        assert seat.live.requests.size.height == 42 and "[2]" not in seat.text
        await seat.press("escape", "escape", "escape")
        assert "[2]" in seat.text and seat.app.is_running


@pytest.mark.parametrize("answer", ["y", "n"])
async def test_quitting_asks_while_requests_are_in_flight(answer: str) -> None:
    async with seated() as seat:
        await seat.press("q")
        assert isinstance(seat.app.screen, QuitScreen)
        await seat.pilot.press(answer)
        await seat.pilot.pause()
        assert (seat.app.return_code is not None) is (answer == "y")


async def test_quitting_an_empty_engine_asks_nothing() -> None:
    async with seated(steps=0) as seat:
        assert "No requests" in seat.text
        await seat.pilot.press("q")
        assert seat.app.return_code is not None


async def test_the_palette_finds_and_runs_an_action() -> None:
    async with seated() as seat:
        await seat.press("ctrl+p", *"freeze")
        assert isinstance(seat.app.screen, PaletteScreen) and "Freeze the order" in seat.text
        await seat.press("enter")
        assert seat.live.requests.frozen is not None
        await seat.press("colon", "escape")
        assert isinstance(seat.app.screen, LiveScreen)


async def test_help_names_every_action_with_its_keys() -> None:
    async with seated((160, 160)) as seat:
        text = await seat.press("f1")
        assert all(action.title in text for action in seat.app.registry.actions)
        assert "now off" in text


async def test_export_writes_the_window_and_never_over_a_file(tmp_path: Path) -> None:
    async with seated(output_dir=tmp_path) as seat:
        await seat.press("e")
        await seat.press("e")
        await seat.app.workers.wait_for_complete()
        files = sorted(path.name for path in tmp_path.iterdir())
        assert len(files) == 4 and files[0].endswith("-1.csv")
        jsonl = next(path for path in tmp_path.iterdir() if path.suffix == ".jsonl")
        steps = [json.loads(line) for line in jsonl.read_text().splitlines()]
        assert [step["step"] for step in steps] == list(range(steps[0]["step"], 151))
        assert sum(row["tokens"] for row in steps[-1]["rows"]) == steps[-1]["scheduled_tokens"]


async def test_a_screenshot_is_svg_and_text(tmp_path: Path) -> None:
    async with seated(output_dir=tmp_path) as seat:
        await seat.press("s")
        said, _ = seat.live.footer.said or ("", "")
        assert said == f"saved {tmp_path / 'schedtop.svg'} and {tmp_path / 'schedtop.txt'}"
        assert (tmp_path / "schedtop.svg").read_text().startswith("<svg")
        assert "[1]" in (tmp_path / "schedtop.txt").read_text()


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with seated(output_dir=tmp_path / "file") as seat:
        await seat.press("e")
        await seat.app.workers.wait_for_complete()
        await seat.settle()
        assert "cannot export" in seat.text


async def test_copying_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    async with seated(output_dir=tmp_path) as seat:
        await seat.press("3", "y")
        assert "copied" in seat.text and "prompt=" in seat.app.clipboard
        monkeypatch.setenv("TERM", "linux")
        await seat.press("y")
        assert "prompt=" in (tmp_path / "schedtop-copy.txt").read_text()


async def test_themes_follow_one_another() -> None:
    async with seated() as seat:
        names = set()
        for _ in seat.app.themes:
            await seat.press("t")
            names.add(seat.app.view.palette.theme.name)
        assert names == set(seat.app.themes)


async def test_the_mouse_can_be_left_to_the_terminal() -> None:
    async with seated() as seat:
        assert "mouse off" in await seat.press("M")
        assert "mouse on" in await seat.press("M")


async def test_clicking_selects_a_row_and_sorts_by_a_title() -> None:
    async with seated() as seat:
        table = seat.live.requests
        await seat.pilot.click("#requests", offset=(5, 4))
        await seat.settle()
        assert table.selected == table.listed[2]
        await seat.pilot.click("#requests", offset=(20, 1))
        await seat.settle()
        assert table.sort == "state"
        await seat.pilot.click("#batch", offset=(80, 6))
        await seat.settle()
        assert seat.app.view.cursor_s is not None
        await seat.press("z")
        await seat.pilot.click("#batch", offset=(120, 6))
        await seat.settle()
        assert seat.app.view.pinned is not None


async def test_footer_words_can_be_clicked() -> None:
    async with seated() as seat:
        await seat.pilot.click("#footer", offset=(2, 0))
        await seat.settle()
        assert isinstance(seat.app.screen, HelpScreen)


# States


async def test_loading_shows_the_stage_and_its_seconds() -> None:
    async with seated(link=PlayedLink([Stage("loading weights", 3.0)]), now=lambda: 100.0) as seat:
        assert "LOADING" in seat.text and "loading weights, 3." in seat.text
        await seat.pilot.press("q")
        assert seat.app.return_code is not None


async def test_an_empty_engine_says_how_to_send_a_request() -> None:
    engine = SyntheticEngine()
    async with seated(link=PlayedLink([engine.header(workload={}), engine.snapshot()])) as seat:
        assert "No requests" in seat.text and "--workload" in seat.text
    async with seated(steps=0) as seat:
        assert "No requests" in seat.text and "None of the workload mixed is here at this moment" in seat.text


async def test_a_stopped_engine_leaves_its_history_and_takes_no_knobs() -> None:
    async with seated() as seat:
        seat.link.push(Bye("drained: nothing in flight", 150))
        await seat.settle()
        assert "STOPPED" in seat.text and "at step 150: drained: nothing in flight" in seat.text
        assert "step 149" in await seat.press("1", "z", "left")
        assert "not connected to an engine" in await seat.press("6", "+")
        assert not seat.asked(SetKnobs)


async def test_a_broken_link_without_a_way_back_is_a_stopped_engine() -> None:
    async with seated() as seat:
        seat.link.break_off("the engine was killed by signal 9")
        await seat.settle()
        assert "STOPPED" in seat.text and "killed by signal 9" in seat.text


async def test_a_lost_engine_fades_counts_and_comes_back_with_a_visible_gap() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    first = EngineLink(engine, 100)
    second: list[EngineLink] = []
    back = threading.Event()

    def reopen() -> PlayedLink:
        back.wait()
        engine.records(30)
        second.append(EngineLink(engine, 5))
        return second[0]

    async with seated(link=first, reopen=reopen) as seat:
        first.break_off("the connection was closed")
        await seat.settle()
        assert "DISCONNECTED" in seat.text and "the connection was closed" in seat.text
        assert seat.app.view.palette.faded
        back.set()
        while not second:
            await seat.pilot.pause(0.01)
        seat.link = second[0]
        while not seat.link.taken:
            await seat.pilot.pause(0.01)
        await seat.settle()
        assert "LIVE" in seat.text and not seat.app.view.palette.faded
        assert seat.app.history.live.step == 135
        assert "G 30 records missing" in seat.text


async def test_another_protocol_is_one_clear_line() -> None:
    header = SyntheticEngine().header(protocol=99)
    async with seated(link=PlayedLink([header])) as seat:
        assert "the engine uses protocol 99" in seat.text


async def test_text_from_outside_stays_text() -> None:
    engine = SyntheticEngine(rate=12.0)
    header = engine.header(model="[red]m\x1b[2J", device="d\u202ex")
    link = PlayedLink(
        [header, engine.snapshot(), *engine.records(20), Notice("warning", "[b]disk\x07 full[/b]\nx")]
    )
    async with seated(link=link) as seat:
        assert "[red]m?[2J" in seat.text and "d?x" in seat.text
        assert "[b]disk? full[/b] x" in seat.text
        assert "\x1b" not in seat.text and "\u202e" not in seat.text


async def test_ascii_mode_draws_nothing_else() -> None:
    async with seated(ascii=True) as seat:
        assert seat.text.isascii()
        for keys in (["1", "left"], ["6", "-"], ["3", "slash", "x", "enter"], ["f1"], ["escape", "ctrl+p"]):
            text = await seat.press(*keys)
            assert not [char for char in text if not char.isascii()], keys


async def test_no_color_leaves_only_bold_reverse_and_underline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with seated() as seat:
        styles = [segment.style for strip in seat.app.screen_strips() for segment in strip if segment.style]
        for style in styles:
            assert style.color is None or style.color.is_default
            assert style.bgcolor is None or style.bgcolor.is_default


@pytest.mark.parametrize("key", ["1", "K", "x", "question_mark"])
async def test_sixteen_colours_are_enough(key: str) -> None:
    """Nothing but the terminal's own colours, and every class has its own pattern besides."""
    async with seated(theme="ansi") as seat:
        await seat.press(key)
        styles = [part.style for strip in seat.app.screen_strips() for part in strip if part.style]
        colours = [colour for style in styles for colour in (style.color, style.bgcolor) if colour is not None]
        assert {colour.type for colour in colours} <= {ColorType.STANDARD, ColorType.DEFAULT}
        glyphs = seat.app.view.glyphs
        for classes in (("decode", "prefill", "draft", "unused"), ("held", "shared", "cached", "empty")):
            assert len({getattr(glyphs, name) for name in classes}) == 4
            if key == "1":
                assert all(getattr(glyphs, name) in seat.text for name in classes if name != "empty")


async def test_a_broken_theme_is_a_notice_and_a_good_one_is_offered(tmp_path: Path) -> None:
    themes = tmp_path / "themes"
    themes.mkdir()
    (themes / "broken.toml").write_text("[colours]\ntext = 'red'")
    good = (Path(__file__).parents[2] / "themes" / "dark.toml").read_text()
    (themes / "mine.toml").write_text(good)
    async with seated(config_dir=tmp_path, theme="mine") as seat:
        assert seat.app.view.palette.theme.name == "mine"
        assert "theme broken.toml skipped" in seat.text


async def test_keys_can_be_changed_by_the_user(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('zoom = ["Z"]\n')
    async with seated(config_dir=tmp_path) as seat:
        await seat.press("3", "Z")
        assert seat.live.zoomed == "requests"


async def test_no_abort_is_ever_sent_by_moving_about() -> None:
    async with seated() as seat:
        for key in ("1", "left", "end", "2", "3", "down", "4", "5", "7", "z", "z", "space", "space"):
            await seat.press(key)
        assert not seat.asked(Abort) and not seat.link.sent


async def test_a_pause_of_a_server_holds_admissions_only() -> None:
    class Server(SyntheticEngine):
        def header(self) -> Header:
            return msgspec.structs.replace(super().header(), source="vllm")

    async with seated(link=EngineLink(Server(), 100)) as seat:
        assert "ADMISSIONS PAUSED" in await seat.press("P")
        assert "no single steps" in await seat.press("full_stop")
