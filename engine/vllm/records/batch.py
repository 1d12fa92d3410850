"""One step's batch: the rows of its record, and what it did to the requests in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import ROW_FIELDS, Admission, RowFlag
from schedtop.engine.vllm.records.reasons import Fixed
from schedtop.engine.vllm.records.requests import (
    BLOCKS,
    COMPUTED,
    DECODING,
    GONE,
    HIGH_WATER,
    LAST,
    NUMBER,
    OUTPUTS,
    PROMPT,
    SCRATCH,
    STOP_AT,
    WAITING,
    ServerRequest,
    ServerRequests,
    Slots,
)
from schedtop.engine.vllm.records.tables import Growth, give_back, grow

SAMPLED, NEW, RESUMED, LATE = (int(RowFlag[name]) for name in ("SAMPLED", "NEW", "RESUMED", "LATE"))

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class ServerBatch:
    """`slots` are those that got tokens, `order` all rows of the record; both in the engine's order. The arrays have
    one entry per slot of `slots`. `was_cut`: some request got fewer tokens than it had left, for reasons other than
    missing results or the threshold."""

    slots: Slots
    order: Slots
    tokens: Ints
    drafts: Ints
    computed: Ints
    needed: Ints
    flags: Ints
    admissions: list[Admission]
    admitted: list[ServerRequest]
    growth: Growth
    recomputed: int
    was_cut: bool


def take_batch(
    lives: ServerRequests,
    output: Any,
    running: list[str] | None,
    now_s: float,
    fixed: Fixed,
    threshold: int,
    overlaps: bool,
) -> ServerBatch:
    """Carry out what a scheduler output says; `running` are all that ran where some got no tokens, `threshold` the most
    that one request got (0: no such limit). `overlaps`: the results of the step before were still to come.

    With drafts, an output planned ahead counts them all as computed; what was rejected since is taken off here.

    Raises `KeyError` for an unknown request.
    """
    given = output.num_scheduled_tokens
    slots = lives.slots(given)
    tokens = np.fromiter(given.values(), dtype=np.int64, count=len(given))
    drafts = _drafts(lives, output, slots)
    computed = planned = _computed_before(lives, output, slots)
    if fixed.drafts:
        known, runs = (
            lives.columns[COMPUTED, slots],
            lives.columns[WAITING, slots] + lives.columns[GONE, slots] == 0,
        )
        computed = np.where(runs, known, computed)
    admissions, fresh = _admit(lives, slots, computed, now_s)
    columns = lives.columns
    growth = grow(lives, output, _goes_on(output), {life.id for life in fresh})
    if fixed.gives_back:
        give_back(lives, slots, planned - columns[LAST, slots] * overlaps, fixed.groups)
        columns[LAST] = 0
        columns[LAST, slots] = tokens
    needed = np.maximum(columns[PROMPT, slots] + columns[OUTPUTS, slots], computed + tokens - drafts)
    samples = computed + tokens - drafts >= needed
    flags = columns[DECODING, slots] + samples * SAMPLED
    for life, admission in zip(fresh, admissions, strict=True):
        flags[slots == life.slot] += RESUMED if admission.resumed else NEW
    recomputed = _recomputed(lives, slots, planned, tokens)  # as the engine counted on drafts
    columns[COMPUTED, slots] = computed + tokens
    columns[DECODING, slots] |= samples
    cut = computed + tokens < needed
    was_cut = bool(cut[-1] if fresh else (cut & (tokens != threshold)).any())
    order = slots
    if running is not None:
        order = lives.slots(filter(lives.knows, running))
        idle = np.setdiff1d(order, slots)
        ends = (columns[COMPUTED, idle] + 1 >= columns[STOP_AT, idle]) & fixed.overlaps
        was_cut |= not ends.all()
    return ServerBatch(
        slots,
        order,
        tokens,
        drafts,
        computed,
        needed,
        flags,
        admissions,
        fresh,
        growth,
        recomputed,
        was_cut,
    )


def flag_late(lives: ServerRequests, batch: ServerBatch, left: Iterable[str]) -> None:
    """Mark rows of requests that ended before these results came, or are of those who `left` behind the schedule."""
    batch.flags += LATE * (lives.columns[GONE, batch.slots] > 0)
    names = list(filter(lives.knows, left))
    if names:
        batch.flags |= LATE * np.isin(batch.slots, lives.slots(names))


def _drafts(lives: ServerRequests, output: Any, slots: Slots) -> Ints:
    drafted = output.scheduled_spec_decode_tokens
    if not drafted:
        return np.zeros(len(slots), dtype=np.int64)
    scratch: Ints = lives.columns[SCRATCH]
    scratch[slots] = 0
    scratch[lives.slots(drafted)] = [len(part) for part in drafted.values()]
    return scratch.take(slots)


def _computed_before(lives: ServerRequests, output: Any, slots: Slots) -> Ints:
    scratch: Ints = lives.columns[SCRATCH]
    cached = output.scheduled_cached_reqs
    if _goes_on(output):
        return np.array(cached.num_computed_tokens, dtype=np.int64)
    if cached.req_ids:
        scratch[lives.slots(cached.req_ids)] = cached.num_computed_tokens
    for new in output.scheduled_new_reqs:
        scratch[lives.slots([new.req_id])] = new.num_computed_tokens
    return scratch.take(slots)


def _goes_on(output: Any) -> bool:
    """Nothing was admitted: what is said of running requests is in the batch's order."""
    cached = output.scheduled_cached_reqs
    return not (output.scheduled_new_reqs or getattr(cached, "resumed_req_ids", True))


def _admit(
    lives: ServerRequests, slots: Slots, computed: Ints, now_s: float
) -> tuple[list[Admission], list[ServerRequest]]:
    """Admit the batch's requests that were waiting; where vLLM lists resumed ones varies by version."""
    admissions, fresh = [], []
    entered = (lives.columns[WAITING, slots] > 0) & (lives.columns[GONE, slots] == 0)
    for place in entered.nonzero()[0].tolist():
        life, cached = lives.by_slot[int(slots[place])], int(computed[place])
        resumed = life.first_scheduled_s is not None
        if not resumed:
            life.cached_tokens = cached
        admissions.append(Admission(life.number, cached, lives.admit(life, now_s), resumed))
        fresh.append(life)
    return admissions, fresh


def _recomputed(lives: ServerRequests, slots: Slots, computed: Ints, tokens: Ints) -> int:
    high = lives.columns[HIGH_WATER, slots]
    if not high.any():
        return 0
    again = np.maximum(np.minimum(high, computed + tokens) - computed, 0)
    for place in again.nonzero()[0].tolist():
        lives.by_slot[int(slots[place])].recomputed_tokens += int(again[place])
    return int(again.sum())


def row_bytes(lives: ServerRequests, batch: ServerBatch, emitted: Ints, accepted: Ints) -> bytes:
    """`StepRecord.rows`. `emitted` is by slot of `lives`, `accepted` by slot of the batch."""
    columns, order = lives.columns, batch.order
    table = np.zeros((len(ROW_FIELDS), len(order)), dtype=np.int32)
    own: Any = slice(None)
    if len(order) != len(batch.slots):
        table[4] = columns[COMPUTED, order]
        # Of one that ended while its last result was under way, the outputs alone do not say how far it was.
        known, due = columns[PROMPT, order] + columns[OUTPUTS, order], columns[COMPUTED, order]
        table[5] = np.maximum(known, due + columns[DECODING, order])
        places = np.full(columns.shape[1], -1)
        places[order] = np.arange(len(order))
        own = places[batch.slots]
    table[0], table[6], table[7] = columns[NUMBER, order], emitted[order], columns[BLOCKS, order]
    table[1, own], table[2, own], table[3, own] = batch.tokens, batch.drafts, accepted
    table[4, own], table[5, own], table[8, own] = batch.computed, batch.needed, batch.flags
    return table.tobytes()
