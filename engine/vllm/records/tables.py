"""Block tables of the requests, one per KV group, as the server keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from schedtop.engine.handoff.request import GroupBlocks
from schedtop.engine.kv.groups import Group
from schedtop.engine.vllm.records.requests import BLOCKS, RELEASE, RELEASED, ServerRequest, ServerRequests, Slots


class Growth(NamedTuple):
    """What a step added to the tables: `grown`, `grown_blocks` and `grown_groups` of its record, as lists."""

    pairs: list[int]
    blocks: list[int]
    groups: list[int]


def new_tables(output: Any) -> Iterable[tuple[str, list[list[int]]]]:
    """Whose tables a step made longer, by which blocks of each KV group; -1 where the group needs none."""
    cached = output.scheduled_cached_reqs
    for name, groups in zip(cached.req_ids, cached.new_block_ids, strict=True):
        if groups and any(groups):
            yield name, [[block - 1 for block in ids] for ids in groups]
    for new in output.scheduled_new_reqs:
        if new.block_ids and any(new.block_ids):
            yield new.req_id, [[block - 1 for block in ids] for ids in new.block_ids]


def grow(lives: ServerRequests, output: Any, in_order: bool, fresh: set[str]) -> Growth:
    """Make the tables longer; those of `fresh` requests start empty. `in_order`: the output names them in the batch's
    order."""
    found = Growth([], [], [])
    tables = dict(new_tables(output))
    for name in tables if in_order else [name for name in output.num_scheduled_tokens if name in tables]:
        gained, life = tables[name], lives.by_id.get(name) or lives.by_slot[int(lives.slots([name])[0])]
        if name in fresh or not life.tables:
            life.tables = [GroupBlocks() for _ in gained]
            lives.columns[BLOCKS, life.slot] = 0
        lives.columns[BLOCKS, life.slot] += sum(len(ids) - ids.count(-1) for ids in gained)
        for group, (held, ids) in enumerate(zip(life.tables, gained, strict=True)):
            held.block_ids += ids
            if ids:  # also of those that have ended since: these blocks were handed out
                found.pairs.extend((life.number, len(ids)))
                found.blocks.extend(ids)
                found.groups.append(group)
    return found


def give_back(lives: ServerRequests, slots: Slots, processed: Any, groups: Sequence[Group]) -> None:
    """Take what no token behind the `processed` ones (of each slot) needs out of the tables, as the server does when it
    plans a step."""
    for place in (processed >= lives.columns[RELEASE, slots]).nonzero()[0].tolist():
        life = lives.by_slot[int(slots[place])]
        if life.tables:
            _give_back(lives, life, int(processed[place]), groups)


def _give_back(lives: ServerRequests, life: ServerRequest, processed: int, groups: Sequence[Group]) -> None:
    columns, slot = lives.columns, life.slot
    for group, held in zip(groups, life.tables, strict=True):
        skipped = min(group.num_skipped(processed), len(held.block_ids))
        count = skipped - held.num_released
        if count > 0:
            behind = slice(held.num_released, skipped)
            columns[BLOCKS, slot] -= count - held.block_ids[behind].count(-1)
            held.block_ids[behind] = [-1] * count
            held.num_released = skipped
            columns[RELEASED, slot] += 0 if group.is_state else count * group.size
    columns[RELEASE, slot] = min(group.next_release(held) for group, held in zip(groups, life.tables, strict=True))
