"""What must be readable where room is short: ids, priorities, and what holds the head."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from links import EngineLink, PlayedLink
from schedtop.engine.telemetry import WORKLOAD_ENDED, Arrival, Bye, Head, Limiter, Notice, StepRecord
from seat import COMPACT, WIDE, seated
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
        rows = [table._table.row(number) for number in table._listed]
        drawn = [table.render_line(y).text.split() for y in range(table.size.height)]
        titles = next(words for words in drawn if words[0] == "ID")
        assert titles[-1] == "PRIO"
        below = drawn[drawn.index(titles) + 1 :][:4]
        shown = [words[1:] if words[0] == "▸" else words for words in below]
        assert [(words[0], words[-1]) for words in shown] == [(row.id, str(row.priority)) for row in rows[:4]]


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
    begin = [engine.header(), engine.snapshot()]
    async with seated(link=PlayedLink(begin)) as seat:
        assert "The workload mixed sends none now" in seat.text and "how many it sends a second" in seat.text
        seat.link.push(Notice("info", f"{WORKLOAD_ENDED}: no more requests will come"))
        await seat.settle()
        assert "has ended after 0 requests" in seat.text and "how many it sends a second" not in seat.text
        seat.link.push(Bye("stopped", 0))
        await seat.settle()
        assert "The engine stopped: none will come" in seat.text
