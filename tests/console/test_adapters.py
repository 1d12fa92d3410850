"""Adapters in the console: a column of the request table where there are any, the filter, and what Explain advises."""

from __future__ import annotations

from typing import Any

import pytest
from links import PlayedLink
from schedtop.console.explain.diagnosis import Diagnosis
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from seat import seated


def played(adapters: int, seconds: float = 4.0) -> list[Any]:
    config = EngineConfig(
        workload=WorkloadSpec(source="mixed", rate=20.0, adapters=adapters), scheduler={"max_loras": 2}
    )
    engine = build_engine(config)
    messages: list[Any] = [engine.header, engine.snapshot()]
    while engine.clock_s < seconds:
        messages.append(engine.step())
    return messages


@pytest.mark.parametrize("adapters", [0, 6])
async def test_the_table_has_a_column_where_anybody_asks_for_one(adapters: int) -> None:
    async with seated((160, 45), link=PlayedLink(played(adapters))) as seat:
        await seat.press("3")
        table = seat.live.requests
        columns = table.columns(table.size.width)
        assert sum(size for _, _, size in columns) + 2 <= table.size.width
        assert ("adapter" in [name for name, _, _ in columns]) is bool(adapters)
        assert ("adapter-" in seat.text) is bool(adapters)


async def test_a_filter_matches_the_adapter() -> None:
    async with seated((160, 45), link=PlayedLink(played(6))) as seat:
        await seat.press("3", "/", *"adapter-4", "enter")
        table = seat.live.requests
        assert table.listed
        assert {table.list.row(number).adapter for number in table.listed} == {"adapter-4"}


def test_explain_names_the_slots_and_the_flag() -> None:
    diagnosis = Diagnosis()
    for message in played(6, 20.0):
        diagnosis.take(message)
    found = {finding.id: finding for finding in diagnosis.findings()}
    for name in ("queue-low-use", "starvation"):
        advice = found[name].advice[0]
        assert (advice.knob, advice.direction) == ("max_loras", "up")
    assert any("other adapters have all 2 slots" in link.words for link in found["queue-low-use"].links)
