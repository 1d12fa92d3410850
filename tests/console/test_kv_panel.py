"""What the KV panel tells of groups and of the host's memory, with room for lines of their own and without."""

from __future__ import annotations

from typing import Any

import pytest
from links import PlayedLink
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import blocks_in_use
from seat import seated


def played(device: str, scheduler: dict[str, Any]) -> list[Any]:
    workload = WorkloadSpec(source="shared-prefix", rate=20.0, limit=10)
    engine = build_engine(EngineConfig(device=device, workload=workload, scheduler=scheduler))
    return [engine.header, engine.snapshot(), *(record for _ in range(40) if (record := engine.step()))]


@pytest.mark.parametrize("size", [(160, 45), (160, 100)])
async def test_each_kind_of_group_is_there(size: tuple[int, int]) -> None:
    messages = played("sim:gpt-oss-20b@h100", {})
    windowed, full = messages[-1].group_blocks
    async with seated(size, link=PlayedLink(messages)) as seat:
        shown = " ".join(seat.text.split())
        assert f"full {full}" in shown and f"window 128 {windowed}" in shown


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (160, 45)])
async def test_what_the_step_leaves_is_told_where_it_differs(size: tuple[int, int]) -> None:
    messages = played("sim:llama-3.1-8b@h100", {"max_num_seqs": 4})
    blocks = next(
        index
        for index, record in enumerate(messages[2:], start=3)
        if blocks_in_use(record) != record.blocks.held + record.blocks.shared
    )
    async with seated(size, link=PlayedLink(messages[:blocks])) as seat:
        left = messages[blocks - 1].blocks
        assert f"after the step {left.held + left.shared}" in await seat.press("2")


@pytest.mark.parametrize("size", [(160, 45), (160, 100)])
async def test_the_hosts_memory_is_there(size: tuple[int, int]) -> None:
    messages = played("sim:llama-3.1-8b@h100", {"kv_host_memory_bytes": "16GiB"})
    async with seated(size, link=PlayedLink(messages)) as seat:
        assert "host 0" in " ".join(seat.text.split())
