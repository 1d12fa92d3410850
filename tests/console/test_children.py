"""Children of one request in the console: a column where there are any, the filter, the life page, the status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from links import PlayedLink
from schedtop.console.past.history import History
from schedtop.console.status import facts, page
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from seat import seated


def played(folder: Path, parents: tuple[str, ...]) -> list[Any]:
    path = folder / "trace.csv"
    rows = [f"0,{400 + 10 * place},300,{parent}" for place, parent in enumerate(parents)]
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens,parent", *rows, ""]))
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=str(path))))
    return [engine.header, engine.snapshot(), *(engine.step() for _ in range(40))]


@pytest.mark.parametrize("parents", [("", "", ""), ("ask-7", "ask-7", "ask-8", "")])
async def test_the_table_has_a_column_where_anybody_is_a_child(tmp_path: Path, parents: tuple[str, ...]) -> None:
    async with seated((160, 45), link=PlayedLink(played(tmp_path, parents))) as seat:
        await seat.press("3")
        table = seat.live.requests
        columns = table.columns(table.size.width)
        assert sum(size for _, _, size in columns) + 2 <= table.size.width
        assert ("parent" in [name for name, _, _ in columns]) is any(parents)
        assert ("ask-8" in seat.text) is any(parents)


async def test_a_filter_finds_siblings_and_a_life_names_the_parent(tmp_path: Path) -> None:
    async with seated((160, 45), link=PlayedLink(played(tmp_path, ("ask-7", "ask-8", "ask-7")))) as seat:
        await seat.press("3", "/", *"ask-7", "enter")
        table = seat.live.requests
        assert [table.list.row(number).parent for number in table.listed] == ["ask-7", "ask-7"]
        await seat.press("enter")
        assert "parent ask-7" in seat.text


def test_the_status_counts_parents(tmp_path: Path) -> None:
    history = History()
    for message in played(tmp_path, ("a", "a", "b", "")):
        history.apply(message)
    found = facts(history, [], {})
    assert found["parents"] == 2
    assert "requests: 4 running, 0 waiting, children of 2 parents" in "\n".join(page(found))
