"""What must be readable where room is short: ids, priorities, what holds the head, whether one may change things."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from links import EngineLink, PlayedLink
from schedtop.console.past.events import Event
from schedtop.engine.contract.telemetry import (
    WORKLOAD_ENDED,
    Arrival,
    Bye,
    Head,
    Limiter,
    Notice,
    Preemption,
    StepRecord,
    Trial,
)
from seat import COMPACT, PATIENCE_S, STRIP, WIDE, Clock, seated
from synthetic import SyntheticEngine


class PriorityEngine(SyntheticEngine):
    """Long ids, and priorities of all signs."""

    def header(self, **changes: Any) -> Any:
        return super().header(policy="priority", **changes)

    def _arrivals(self) -> list[Arrival]:
        kinds = ("urgent", "chat", "report")
        found = [
            msgspec.structs.replace(
                arrival, id=f"{kinds[arrival.number % 3]}-{1000 + arrival.number}", priority=arrival.number % 3 - 1
            )
            for arrival in super()._arrivals()
        ]
        for job, arrival in zip(self.waiting[len(self.waiting) - len(found) :], found, strict=True):
            job.arrival = arrival
        return found


@pytest.mark.parametrize("size", [(140, 40), WIDE, (200, 50), COMPACT])
async def test_ids_and_priorities_are_whole_under_priority(size: tuple[int, int]) -> None:
    link = EngineLink(PriorityEngine(rate=40.0, num_blocks=400), 150)
    async with seated(size, link=link) as seat:
        await seat.press("3")
        table = seat.live.requests
        rows = [table.list.row(number) for number in table.listed]
        drawn = [table.render_line(y).text.split() for y in range(table.size.height)]
        titles = next(words for words in drawn if words[0] == "ID")
        assert titles[-1] == "PRIO"
        below = drawn[drawn.index(titles) + 1 :][:3]
        shown = [words[set(words[0]) <= set("▸TIV0") :] for words in below]  # without the gutter
        assert [(words[0], words[-1]) for words in shown] == [(row.id, str(row.priority)) for row in rows[:3]]


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_an_inverted_head_says_so_and_all_that_holds_it(size: tuple[int, int]) -> None:
    link = EngineLink(engine := PriorityEngine(rate=40.0, num_blocks=200), 200)
    last = link.messages[-1]
    assert isinstance(last, StepRecord)
    first = min(engine.waiting, key=lambda job: (job.arrival.priority, job.arrival.arrival_s)).arrival
    head = Head(first.number, Limiter.FULL_SEQUENCE, 312, 300, 20, inverted=True)
    link.messages[-1] = msgspec.structs.replace(last, head=head)
    async with seated(size, link=link) as seat:
        shown = await seat.press("5")
        assert "HEAD inverted" in shown and "full sequence: needs 332, 300 free, short 32" in shown
        assert first.id in shown and "prio " in shown and "more" in shown
        assert "pri~" not in shown and "inv~" not in shown


async def test_an_empty_table_says_why() -> None:
    engine = SyntheticEngine()
    sent = [engine.header(workload={"source": "mixed", "limit": 0}), engine.snapshot()]
    async with seated(link=PlayedLink(sent)) as seat:
        assert "has ended after 0 requests" in seat.text, "the limit says so to a console that came later"
    begin = [engine.header(), engine.snapshot()]
    async with seated(link=PlayedLink(begin)) as seat:
        assert (
            "None of the workload mixed is here at this moment" in seat.text
            and "how many it sends per second" in seat.text
        )
        seat.link.push(Notice("info", f"{WORKLOAD_ENDED}: no more requests will come"))
        await seat.settle()
        assert "has ended after 0 requests" in seat.text and "how many it sends per second" not in seat.text
        seat.link.push(Bye("stopped", 0))
        await seat.settle()
        assert "The engine stopped; no more will arrive" in seat.text


@pytest.mark.parametrize("size", [WIDE, COMPACT, STRIP])
async def test_read_only_is_told_before_rates_and_model(size: tuple[int, int]) -> None:
    async with seated(size, read_only=True) as seat:
        assert "read-only" in seat.lines[0]
        seat.app.view.badge = "! 12 findings x"
        await seat.press("space")
        assert "read-only" in seat.lines[0] or size == STRIP


async def test_a_read_only_console_is_offered_no_key_for_a_trial() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    trial = Trial(1, {"max_num_seqs": 16}, {"max_num_seqs": 12}, 20.0)
    for read_only in (True, False):
        link = EngineLink(engine, 0)
        link.messages[1] = msgspec.structs.replace(engine.snapshot(), trial=trial)
        async with seated(link=link, read_only=read_only) as seat:
            assert "On trial: max_num_seqs 16" in seat.text
            assert ("c confirms" in seat.text) != read_only


async def test_the_lost_engine_is_named_by_its_address() -> None:
    link = EngineLink(SyntheticEngine(rate=12.0, num_blocks=300), 20)
    late = PlayedLink([])
    async with seated(link=link, reopen=lambda: late, address="tcp:127.0.0.1:9") as seat:
        link.break_off("the connection was closed")
        await seat.settle()
        assert "No engine at tcp:127.0.0.1:9 for" in seat.text


async def test_another_engine_is_told_for_a_while() -> None:
    first = EngineLink(SyntheticEngine(rate=12.0, num_blocks=300), 20)
    engine = SyntheticEngine(seed=8, rate=12.0, num_blocks=300)
    second = EngineLink(engine, 20)
    second.messages[0] = engine.header(started_at=1_760_000_100.0)
    clock = Clock()
    async with seated(link=first, reopen=lambda: second, now=clock) as seat:
        assert "Another engine" not in seat.text
        seat.link = second
        first.break_off("the connection was closed")
        until_s = time.monotonic() + PATIENCE_S
        while not second.taken and time.monotonic() < until_s:
            await seat.pilot.pause(0.01)
        await seat.settle()
        assert "A new engine (started at" in seat.lines[1]
        clock.now_s += 31.0
        await seat.settle()
        assert "Another engine" not in seat.lines[1]


async def test_the_window_says_how_much_of_it_there_is() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    engine.records(400)
    link = EngineLink(engine, 100)
    async with seated(link=link) as seat:
        begin, end = seat.app.history.records[0].start_s, seat.app.history.live.clock_s
        assert f"window 60s ({end - begin:.0f}s so far)" in seat.text
        seat.app.view.window_s = end - begin
        await seat.press("4")
        assert "so far" not in seat.text


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_the_hit_rate_of_the_prefix_cache_is_shown(size: tuple[int, int]) -> None:
    async with seated(size, link=EngineLink(SyntheticEngine(rate=12.0, num_blocks=900), 150)) as seat:
        rates = seat.app.history.rates(seat.app.view.moment, 60.0)
        assert rates is not None and rates.hit_rate
        kv = next(line for line in seat.lines if "[2]KV" in line)
        assert f"hits {100 * rates.hit_rate:.0f}%" in kv and "~" not in kv


def test_a_preemption_without_room_keeps_its_figures() -> None:
    detail = Preemption(7, 3, 413, 15, 0.99, 0.95, 9, loop=True)
    event = Event("V", 5, 5, 10.0, detail, "chat-318", "chat-314")
    assert event.describe() == "chat-318 kv-full for=chat-314 freed=15 lost=413 #3 LOOP"
    assert event.describe(short=True) == "chat-318 LOOP for=chat-314 freed=15 lost=413 #3"


async def test_a_preemption_is_whole_at_the_design_size() -> None:
    engine = PriorityEngine(rate=40.0, num_blocks=200)
    async with seated(link=EngineLink(engine, 200)) as seat:
        reported = [event for event in seat.app.history.of_kind("V") if event.detail.count == 1]
        events = seat.live.events
        assert reported
        line = events.line(reported[0], events.size.width)
        assert line.length <= events.size.width and line.pieces[-1][0].endswith(
            f"lost={reported[0].detail.lost_tokens}"
        )
