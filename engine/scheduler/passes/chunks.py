"""Where a chunk must end before the budgets say so: at a state that can be kept, or short of a prompt's last tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from schedtop.engine.contract.telemetry import Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.request_table import IntArray
from schedtop.engine.scheduler.books.state import PlannedStep, SchedulerState
from schedtop.engine.scheduler.books.submission import step_room


def cut(wanted: IntArray, token_left: int, input_left: int, slots: int) -> Limiter:
    """Shorten the first row, if any, that the budgets cannot serve whole, and give nothing to those behind it."""
    active = wanted > 0
    before = np.cumsum(wanted) - wanted
    token_room = token_left - before
    input_room = input_left - before - slots * np.cumsum(active)
    room = np.minimum(token_room, input_room)
    short = active & (wanted > room)
    row = int(np.argmax(short))
    if not short[row]:
        return Limiter.NONE
    wanted[row] = max(int(room[row]), 0)
    wanted[row + 1 :] = 0
    return Limiter.TOKEN_BUDGET if token_room[row] <= input_room[row] else Limiter.INPUT_BUDGET


def stretch_end(state: SchedulerState, first: int) -> int:
    """Rows from `first` to here can be planned together: one with images still to come is planned by itself."""
    table, size = state.table, state.table.size
    if state.encoder is None:
        return size
    for row in range(first, size):
        images = table.requests[row].images
        if images and images[-1].end + state.encoder.ahead > table.num_computed.item(row):
            return max(row, first + 1)
    return size


def plan_in_turn(state: SchedulerState, planned: PlannedStep, first: int, token_left: int, input_left: int) -> int:
    """Cut the tokens of the rows from `first` on to the budgets, chunks of prompts shortened one after the other.

    What a shortened chunk leaves of the budgets goes to the rows behind it. Returns the row it came to.
    """
    table, size, slots = state.table, stretch_end(state, first), state.config.draft_slots
    table.tokens[size : table.size] = 0
    wanted = table.tokens[first:size]
    gaps = table.num_expected[first:size] - table.num_computed[first:size]
    begin = 0
    for row in [*((gaps > 1) & (wanted > 0)).nonzero()[0].tolist(), size - first]:
        before = wanted[begin:row]
        used = int(before.sum())
        if used > token_left or used + slots * int(np.count_nonzero(before)) > input_left:
            planned.limiter = cut(wanted[begin:], token_left, input_left, slots)
            return table.size
        token_left -= used
        input_left -= used + slots * int(np.count_nonzero(before))
        if row == size - first:
            break
        room = max(min(token_left, input_left - slots), 0)
        fits = min(wanted.item(row), room)
        if fits < wanted.item(row):
            planned.limiter = Limiter.TOKEN_BUDGET if token_left <= input_left - slots else Limiter.INPUT_BUDGET
        place = first + row
        start, num_tokens = table.num_computed.item(place), table.num_tokens.item(place)
        chunk = shorten(state, table.requests[place], start, num_tokens, fits) if fits else 0
        wanted[row] = chunk
        token_left -= chunk
        input_left -= chunk + slots if chunk else 0
        begin = row + 1
    return size


def shorten(state: SchedulerState, request: Request, start: int, num_tokens: int, chunk: int) -> int:
    """How many of the `chunk` tokens from `start` on a request of `num_tokens` can take; 0: none in this step."""
    most = step_room(state)
    most = min(most, state.limits.long_prefill_token_threshold or most)
    if state.kv.keeps_states:
        chunk = _end_at_state(state, request, start, num_tokens, chunk, most)
    if state.encoder is not None and request.images and chunk:
        chunk = state.encoder.fit(request, start, chunk)
    remaining, ahead = num_tokens - start - chunk, state.config.prefill_lookahead
    if 0 < remaining < ahead <= most:
        chunk = max(num_tokens - ahead - start, 0)
    return chunk


def _end_at_state(
    state: SchedulerState, request: Request, start: int, num_tokens: int, chunk: int, most: int
) -> int:
    """Mamba: chunks of a prompt end at block boundaries, where their state can be found again.

    Not where no chunk, of `most` tokens at best, ever reached the next one.
    """
    size, end = state.kv.block_size, start + chunk
    bound = max(request.num_prompt_tokens, num_tokens - 1)
    if start >= bound:
        return chunk
    if end < bound:
        rounded = end // size * size
        if rounded > start or size <= most:
            end = max(rounded, start)
    last = (
        num_tokens // size * size - size if state.config.drop_last_cached_block else (num_tokens - 1) // size * size
    )
    stops = [last]
    if start % size:
        stops.append(start - start % size + size)
    if request.junction:
        stops.append(start + (request.junction - start) // size * size)
    return min([end, *(stop for stop in stops if start < stop < end)]) - start


def planned_tokens(state: SchedulerState) -> Iterator[tuple[Request, int]]:
    """The requests that the step schedules so far, each with its tokens known and computed after it."""
    table, size = state.table, state.table.size
    ends = np.minimum(table.num_computed[:size] + table.tokens[:size], table.num_tokens[:size])
    for row in table.tokens[:size].nonzero()[0].tolist():
        yield table.requests[row], ends.item(row)
