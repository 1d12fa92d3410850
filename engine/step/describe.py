"""Requests, and the growth of their block tables, as telemetry describes them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Set
from itertools import chain

import numpy as np
from schedtop.engine.contract.telemetry import PREFIX_KEY_BYTES, Arrival
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import PlannedStep

BYTE_ORDER = sys.byteorder


def growth(planned: PlannedStep, reported: Set[int]) -> tuple[bytes, bytes, bytes]:
    """`grown`, `grown_blocks` and `grown_groups` of the step, without requests whose end was reported (`reported`)."""
    if planned.group_growth or (planned.started and planned.started[0].further):
        return _group_growth(planned, reported)
    tables = planned.new_blocks
    if planned.started:
        tables = tables | {started.request.number: started.block_table for started in planned.started}
    if reported:
        tables = {number: ids for number, ids in tables.items() if number not in reported}
    pairs = [*chain.from_iterable(zip(tables, map(len, tables.values()), strict=True))]
    return packed(pairs), packed([*chain.from_iterable(tables.values())]), b""


def _group_growth(planned: PlannedStep, reported: Set[int]) -> tuple[bytes, bytes, bytes]:
    """As `growth`, with an entry for each KV group of a request."""
    entries: list[tuple[int, int, list[int]]] = []
    for number, ids in planned.new_blocks.items():
        start = 0
        for group, count in enumerate(planned.group_growth[number]):
            if count:
                entries.append((number, group, ids[start : start + count]))
                start += count
    for started in planned.started:
        for group, ids in enumerate((started.block_table, *started.further)):
            entries.append((started.request.number, group, ids))
    entries = [entry for entry in entries if entry[0] not in reported]
    pairs = [number for entry in entries for number in (entry[0], len(entry[2]))]
    blocks = [block for entry in entries for block in entry[2]]
    return packed(pairs), packed(blocks), bytes(group for _, group, _ in entries)


def describe_arrival(request: Request, block_size: int) -> Arrival:
    """A request as telemetry describes it: lengths and prefix digests, and no text except its preview."""
    keys = request.block_keys[: request.num_prompt_tokens // block_size]
    return Arrival(
        number=request.number,
        id=request.id,
        arrival_s=request.arrival_s,
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        priority=request.priority,
        prefix_keys=_cut_keys(keys),
        client_wait_s=request.client_wait_s,
        preview=request.preview,
        client=request.client,
        adapter=request.adapter,
        skip_reading_prefix_cache=request.skip_reading_prefix_cache,
        images=tuple((image.offset, image.length, image.name) for image in request.images),
        adapter_name=request.adapter_name,
        parent=request.parent,
    )


def packed(numbers: list[int]) -> bytes:
    """The numbers as int32."""
    if len(numbers) == 1:  # by far the most common, and quicker without an array
        return numbers[0].to_bytes(4, BYTE_ORDER, signed=True)
    return array("i", numbers).tobytes()


def _cut_keys(keys: list[bytes]) -> bytes:
    """The first `PREFIX_KEY_BYTES` of each key, joined."""
    if not keys:
        return b""
    whole = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)
    return whole[:, :PREFIX_KEY_BYTES].tobytes()
