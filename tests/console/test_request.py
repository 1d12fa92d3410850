"""The Request screen and the life it shows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from links import EngineLink, PlayedLink
from schedtop.console.life.reader import read_life, sharers
from schedtop.console.past.history import History
from schedtop.console.screens.live import LiveScreen
from schedtop.console.screens.request import RequestScreen
from schedtop.engine.contract.commands import Abort, Incoming
from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.reading import row_matrix
from schedtop.engine.contract.telemetry import Reply, StepRecord, TextDelta
from seat import COMPACT, WIDE, seated
from synthetic import SyntheticEngine


def lived(num: int = 600) -> tuple[History, list[StepRecord]]:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    history = History()
    history.apply(engine.header())
    history.apply(engine.snapshot())
    records = engine.records(num)
    for record in records:
        history.apply(record)
    return history, records


def preempted_and_finished(history: History, records: list[StepRecord]) -> int:
    victims = {preemption.number for record in records for preemption in record.preemptions}
    return next(number for number in history.finished if number in victims)


def test_a_life_adds_up_to_its_length() -> None:
    history, _ = lived()
    for number in [*history.finished, *history.live.requests]:
        life = read_life(history, history.now(), number)
        assert life is not None
        parts = life.split()
        assert all(seconds >= 0 for seconds in parts.values())
        if life.finish is None:
            assert sum(parts.values()) == pytest.approx(life.until_s - life.arrival.arrival_s, abs=1e-6)


def test_every_step_a_request_was_in_is_a_visit() -> None:
    history, records = lived()
    number = next(iter(history.finished))
    life = read_life(history, history.now(), number)
    assert life is not None and life.complete
    rows = [row_matrix(record) for record in records]
    assert [visit.seq for visit in life.visits] == [
        record.seq for record, matrix in zip(records, rows, strict=True) if number in matrix[0]
    ]
    assert sum(visit.emitted for visit in life.visits) == history.finished[number][1].output_tokens


def test_a_preemption_is_blamed_on_who_needed_the_room() -> None:
    history, records = lived()
    number = preempted_and_finished(history, records)
    life = read_life(history, history.now(), number, slo_s=0.06)
    assert life is not None and life.lost
    record, preemption = life.lost[0]
    blamed = [blame for blame in life.blames if not blame.caused and f"at step {record.step}:" in blame.words]
    if any(visit.emitted for visit in life.visits if visit.seq < record.seq):
        assert blamed and f"for r-{preemption.for_number:04d}" in blamed[0].words


def test_both_sides_of_a_preemption_tell_of_it() -> None:
    history, records = lived()
    record = next(r for r in records if r.preemptions and r.preemptions[0].number != r.preemptions[0].for_number)
    preemption = record.preemptions[0]
    taker = read_life(history, history.now(), preemption.for_number)
    victim = read_life(history, history.now(), preemption.number)
    assert taker is not None and victim is not None
    words = f"took the room of r-{preemption.number:04d}"
    assert any(blame.caused and blame.words.startswith(words) for blame in taker.blames)
    assert record.seq in [lost.seq for lost, _ in victim.lost]


def test_a_slow_gap_names_whose_prompt_made_the_step_long() -> None:
    history, records = lived(300)
    step_s = np.array([record.end_s - record.start_s for record in records])
    limit_s = float(np.median(step_s)) * 1.5
    for number in list(history.finished)[:20]:
        life = read_life(history, history.now(), number, slo_s=limit_s)
        assert life is not None
        for blame in (blame for blame in life.blames if not blame.caused and "prompt tokens" in blame.words):
            step = next(r for r in records if f"step {r.step} took" in blame.words)
            matrix = row_matrix(step)
            chunks = matrix[:, (matrix[8] & 1 == 0) & (matrix[0] != number)]
            largest = int(chunks[1].max())
            assert f"({largest} prompt tokens)" in blame.words
            return
    pytest.fail("no slow gap was found: the engine under test is too idle")


def test_sharers_are_counted_from_the_block_tables() -> None:
    history, _ = lived(80)
    numbers = list(history.live.tables)[:2]
    table = history.live.tables[numbers[0]]
    history.live.tables[numbers[1]] = table[:8]
    assert (numbers[1], 2) in sharers(history.now(), numbers[0])


def test_nothing_is_known_of_a_stranger() -> None:
    history, _ = lived(20)
    assert read_life(history, history.now(), 10**6) is None


@pytest.mark.parametrize("size", [WIDE, COMPACT, (60, 12), (300, 80)])
async def test_the_screen_opens_shows_the_life_and_returns(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press("3")
        row = seat.live.requests.selected_row()
        assert row is not None
        text = await seat.press("enter")
        assert isinstance(seat.app.screen, RequestScreen)
        assert row.id in text and "queue" in text and "slow gaps" in text
        await seat.press("escape")
        assert isinstance(seat.app.screen, LiveScreen)


async def test_walking_through_steps_and_requests() -> None:
    async with seated(steps=300) as seat:
        await seat.press("3", "enter")
        screen = seat.app.screen
        assert isinstance(screen, RequestScreen)
        first = screen.panel.number
        await seat.press("left", "left")
        assert screen.panel.visit is not None
        await seat.press("enter")
        assert isinstance(seat.app.screen, LiveScreen) and seat.app.view.pinned == screen.panel.visit
        await seat.press("end", "3", "enter", "n")
        turned = seat.app.screen
        assert isinstance(turned, RequestScreen) and turned.panel.number != first
        await seat.press("N", "down", "up", "g", "G")
        assert turned.panel.number == first


async def test_a_digit_leads_back_to_its_panel() -> None:
    async with seated() as seat:
        await seat.press("3", "enter", "7")
        assert isinstance(seat.app.screen, LiveScreen)
        assert seat.live.focused_panel is seat.live.events


async def test_a_request_that_ends_keeps_its_page() -> None:
    async with seated() as seat:
        await seat.press("3", "enter")
        screen = seat.app.screen
        assert isinstance(screen, RequestScreen)
        for _ in range(12):
            await seat.steps(50)
            if screen.panel.number in seat.app.history.finished:
                break
        await seat.steps(8)
        assert "finished: length" in seat.text


async def test_text_of_a_request_is_shown_cleaned() -> None:
    async with seated() as seat:
        await seat.press("3")
        row = seat.live.requests.selected_row()
        assert row is not None
        seat.link.push(TextDelta(row.number, "once upon\x1b[2J a [b]time[/b]"))
        await seat.settle()
        assert "once upon?[2J a [b]time[/b]" in await seat.press("enter")


async def test_a_waiting_request_says_what_it_waits_for() -> None:
    async with seated(link=EngineLink(SyntheticEngine(rate=40.0, num_blocks=200), 200)) as seat:
        record = seat.app.history.latest
        assert record is not None and record.head is not None
        head = record.head.number
        other = next(number for number in seat.app.history.live.queue("fcfs") if number != head)
        seat.app.show_request(head)
        await seat.settle()
        assert f"waits: {describe_head(record.head)}" in seat.lines[1].replace("waits again", "waits")
        seat.app.show_request(other)
        await seat.settle()
        words = f"waits behind r-{head:04d} ({describe_head(record.head)})"
        assert words in seat.lines[1].replace("waits again", "waits")


async def test_a_starved_request_is_shown_as_one() -> None:
    async with seated(link=EngineLink(SyntheticEngine(rate=12.0), 100)) as seat:
        assert isinstance(seat.link, EngineLink)
        seat.link.push(seat.link.engine.run_step({"max_num_scheduled_tokens": 2}))
        await seat.steps(40)
        starved = seat.app.history.live.running()[-1]
        seat.app.show_request(starved)
        await seat.settle()
        title, bar, _, parts = seat.lines[1:5]
        assert "starved" in title and "prefill" not in title
        assert "0000" in bar and " 0  starved" in parts
        assert "starved 0 tokens" in seat.text and "TPOT" in seat.text and "E2E" in seat.text


async def test_all_parts_of_a_life_are_told_where_the_terminal_is_narrow() -> None:
    history, _ = lived()
    long = max(history.finished, key=lambda number: len(set(span_words(history, number))))
    async with seated(COMPACT, link=EngineLink(SyntheticEngine(rate=12.0, num_blocks=300), 600)) as seat:
        seat.app.show_request(long)
        await seat.settle()
        words = set(span_words(history, long))
        assert len(words) >= 5
        assert all(f" {word} " in seat.text for word in words) and "~" not in "".join(seat.lines[2:6])


def span_words(history: History, number: int) -> list[str]:
    life = read_life(history, history.now(), number, 0.08)
    assert life is not None
    return [span.phase for span in life.spans]


async def test_what_came_before_the_console_is_blank() -> None:
    engine = SyntheticEngine(rate=12.0)
    engine.records(100)
    number = engine.running[0].arrival.number
    async with seated(link=EngineLink(engine, 30)) as seat:
        seat.app.show_request(number)
        await seat.settle()
        title, bar, _, parts = seat.lines[1:5]
        assert "partly unknown" in title
        assert "    " in bar
        assert "unknown" in parts and "prefill 0.0s" not in parts


async def test_a_long_id_is_told_apart_filtered_and_shown_whole() -> None:
    engine = SyntheticEngine(rate=12.0)
    records = engine.records(60)
    long = "chatcmpl-___prefill_addr_10.0.0.1:8000___decode_addr_10.0.0.2:8000_5b1f6f0e-{}"
    renamed = [
        msgspec.structs.replace(
            record,
            arrivals=tuple(msgspec.structs.replace(a, id=long.format(a.number)) for a in record.arrivals),
        )
        for record in records
    ]
    link = PlayedLink([engine.header(), SyntheticEngine(rate=12.0).snapshot(), *renamed])
    async with seated(link=link) as seat:
        number = seat.live.requests.listed[0]
        rows = [line for line in seat.lines if line[3:].startswith("chatcmpl") and "~" in line[:32]]
        assert len({row[3:].split()[0] for row in rows}) == len(rows) > 1
        await seat.press("/", *f"{number}", "enter")
        assert number in seat.live.requests.listed
        await seat.press("enter")
        assert long.format(number) in seat.text.replace("\n", "")


@pytest.mark.parametrize("opened", [False, True], ids=["in the table", "on its screen"])
async def test_a_request_is_aborted_once_the_operator_means_it(opened: bool) -> None:
    async with seated(steps=300) as seat:
        await seat.press("3", "enter") if opened else await seat.press("3")
        row = seat.live.requests.selected_row()
        assert row is not None
        assert f"Abort {seat.app.history.name(row.number)}?" in await seat.press("delete")
        await seat.press("n")
        assert not seat.link.sent
        await seat.press("delete")
        await seat.press("y")
        assert [(type(command), command.number) for command in seat.link.sent] == [(Abort, row.number)]
        assert "aborted" in seat.text


async def test_a_request_that_was_gone_is_named_as_its_client_names_it() -> None:
    async with seated(steps=300) as seat:
        await seat.press("3")
        row = seat.live.requests.selected_row()
        assert row is not None

        def gone(command: Incoming) -> None:
            assert isinstance(command, Abort)
            seat.link.push(Reply(command.id, False, f"request {command.number} is not in flight", 0))

        seat.link.answer = gone  # type: ignore[method-assign]
        await seat.press("delete", "y")
        assert f"{seat.app.history.name(row.number)} is not in flight" in seat.text
