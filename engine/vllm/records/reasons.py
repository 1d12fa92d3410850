"""Why the head of vLLM's queue waits, found out after the fact in the order in which vLLM asks."""

from __future__ import annotations

from typing import NamedTuple

from schedtop.engine.contract.telemetry import Head, Limiter
from schedtop.engine.kv.groups import Group, fresh_need
from schedtop.engine.vllm.events import HeadSeen, Scheduled

_STATUSES = (
    ("GRAMMAR", Limiter.GRAMMAR),
    ("FSM", Limiter.GRAMMAR),  # its name before 0.32
    ("REMOTE_KV", Limiter.REMOTE_KV),
    ("STREAMING", Limiter.STREAMING_INPUT),
)


class Fixed(NamedTuple):
    """What never changes about a scheduler. `caps` are the most blocks of each KV group that the full-sequence check
    asks for; `gives_back`: some group does not keep all of its blocks. `lookahead`: tokens behind those of a step that
    a drafter writes, too, up to the `longest` a request may be."""

    block_size: int
    draft_slots: int
    chunked: bool
    has_encoder: bool
    drafts: int
    overlaps: bool
    groups: tuple[Group, ...]
    caps: tuple[int, ...]
    lookahead: int
    longest: int

    @property
    def gives_back(self) -> bool:
        return any(type(group) is not Group for group in self.groups)


def head_of(seen: Scheduled, number: int, fixed: Fixed, prefills: bool = False) -> Head:
    """The head with its reason and numbers; `number` is its request. `prefills`: the step goes on with a prompt."""
    head = seen.head
    assert head is not None
    tokens, draft_slots = sum(seen.output.num_scheduled_tokens.values()), fixed.draft_slots
    token_left = seen.token_budget - tokens
    input_left = seen.input_budget - tokens - draft_slots * len(seen.output.num_scheduled_tokens)
    if seen.paused:
        return Head(number, Limiter.PAUSED)
    if seen.preempted:
        return Head(number, Limiter.PREEMPTED_NOW)
    if token_left <= 0:
        return Head(number, Limiter.TOKEN_BUDGET, seen.token_budget, token_left)
    if input_left <= draft_slots:
        return Head(number, Limiter.INPUT_BUDGET, seen.input_budget, input_left)
    if seen.num_running >= seen.seq_cap:
        return Head(number, Limiter.SEQUENCE_CAP, seen.seq_cap, seen.num_running)
    if (reason := _deferred(head)) is not None:
        return Head(number, reason)
    room = min(token_left, input_left - draft_slots)
    wanted = head.num_tokens - head.hit_tokens
    padded = wanted == 1 and not prefills and (seen.num_running or head.hit_tokens)
    wanted += fixed.drafts if padded else 0  # admitted with placeholders or not at all
    chunk = min(wanted, seen.threshold or wanted)
    if padded and wanted > room:
        if token_left <= input_left - draft_slots:
            return Head(number, Limiter.TOKEN_BUDGET, seen.token_budget, token_left)
        return Head(number, Limiter.INPUT_BUDGET, seen.input_budget, input_left)
    if chunk > room and not fixed.chunked:
        return Head(number, Limiter.CHUNKING_OFF, chunk, room)
    return _short_of_blocks(seen, head, number, min(chunk, room), fixed)


def _deferred(head: HeadSeen) -> Limiter | None:
    for part, reason in _STATUSES:
        if part in head.status:
            return reason
    return Limiter.STALE_OUTPUT if head.stale else None


def _short_of_blocks(seen: Scheduled, head: HeadSeen, number: int, chunk: int, fixed: Fixed) -> Head:
    free = seen.num_free
    held = head.hit_blocks or (0,) * len(fixed.groups)

    def needed(num_tokens: int, lookahead: int, caps: tuple[int, ...] | None = None) -> int:
        main, ahead = min(num_tokens, fixed.longest), min(num_tokens + lookahead, fixed.longest)
        return head.revived + fresh_need(fixed.groups, held, head.hit_tokens, main, ahead, caps)

    need, whole = needed(head.hit_tokens + chunk, fixed.lookahead), needed(head.num_tokens, 0, fixed.caps)
    most = max(need, whole) if seen.full_sequence else need
    watermark = seen.watermark_blocks if seen.num_running else 0
    if need > free:
        return Head(number, Limiter.BLOCKS, need, free, watermark)
    if most > free:
        return Head(number, Limiter.FULL_SEQUENCE, whole, free, watermark)
    if most + watermark > free:
        return Head(number, Limiter.WATERMARK, most, free, watermark)
    if head.lora:
        return Head(number, Limiter.LORA)
    if seen.throttled:
        return Head(number, Limiter.DP_THROTTLE)
    return Head(number, Limiter.ENCODER if fixed.has_encoder else Limiter.BLOCKS)
