"""The consequences of a knob change, before it is applied: refusals with their numbers, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.knobs import BY_NAME, KnobError, check_value, in_force, with_followers
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import SchedulerState


def check_change(
    config: SchedulerConfig, state: SchedulerState, now: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """`values` as typed live knob values; raises `KnobError` if one, or their combination, cannot be used."""
    if not values:
        raise KnobError("no knob was named")
    typed: dict[str, Any] = {}
    for name, value in values.items():
        knob = BY_NAME.get(name)
        if knob is not None and not knob.live:
            raise KnobError(f"{name} is set at start-up only: restart with {knob.option}")
        typed[name] = check_value(name, value, config.ceilings)
    after = {**now, **with_followers(typed)}
    _check_rows(config, after)
    _check_drafts(config, after)
    _check_unchunked(config, state, after, typed)
    return typed


def _check_rows(config: SchedulerConfig, knobs: Mapping[str, Any]) -> None:
    rows = knobs["max_num_batched_tokens"]
    if rows <= config.draft_slots:
        raise KnobError(
            f"max_num_batched_tokens={rows} leaves no row beside draft_slots={config.draft_slots}:"
            f" it must be at least {config.draft_slots + 1}"
        )


def _check_drafts(config: SchedulerConfig, knobs: Mapping[str, Any]) -> None:
    drafts = knobs["num_speculative_tokens"]
    if drafts and config.pipeline_depth > 1 and not config.async_scheduling:
        raise KnobError(
            f"num_speculative_tokens={drafts}: drafts over pipeline stages need async scheduling, which is off"
        )


def _check_unchunked(
    config: SchedulerConfig, state: SchedulerState, knobs: Mapping[str, Any], typed: Mapping[str, Any]
) -> None:
    budgets = {"max_num_batched_tokens", "max_num_scheduled_tokens"} & typed.keys()
    if config.enable_chunked_prefill or not budgets:
        return
    longest = max(state.requests.values(), key=_unfinished_tokens, default=None)
    room = min(in_force(knobs, "max_num_scheduled_tokens"), knobs["max_num_batched_tokens"] - config.draft_slots)
    if longest is not None and _unfinished_tokens(longest) > room:
        raise KnobError(
            f"{min(budgets)}={typed[min(budgets)]}: chunked prefill is off and request {longest.id} has"
            f" {_unfinished_tokens(longest)} tokens; a step would take {room}"
        )


def _unfinished_tokens(request: Request) -> int:
    return request.num_prompt_tokens + len(request.output_token_ids)


def warnings_for(state: SchedulerState, now: Mapping[str, Any], typed: Mapping[str, Any]) -> list[str]:
    """The effect of a checked change on running and waiting requests, in an operator's words."""
    knobs, lines = {**now, **with_followers(typed)}, []
    running, table = state.table.size, state.table
    cap = typed.get("max_num_active_seqs") or typed.get("max_num_seqs")
    if cap is not None and cap < running:
        lines.append(f"{running} running, cap {cap}: {running - cap} must finish first")
    if {"max_num_batched_tokens", "max_num_scheduled_tokens"} & typed.keys():
        budget = min(in_force(knobs, "max_num_scheduled_tokens"), knobs["max_num_batched_tokens"])
        gaps = table.num_tokens[:running] - table.num_computed[:running]
        decoding = int(np.count_nonzero(gaps == 1))
        if decoding > budget:
            lines.append(f"{decoding} decoding, budget {budget}: {decoding - budget} get no token")
        elif decoding == budget and decoding < running + len(state.waiting):
            lines.append(f"{decoding} decoding use the whole budget of {budget}: no prompt advances")
    if "watermark" in typed:
        blocks, free = int(typed["watermark"] * (state.kv.pool.num_blocks + 1)), state.kv.pool.num_free
        if running and blocks > free:
            lines.append(
                f"watermark {blocks} blocks, {free} free: nobody is admitted until {blocks - free} more are free"
            )
    threshold = typed.get("long_prefill_token_threshold")
    if threshold and 0 < threshold < 1 + (knobs.get("num_speculative_tokens") or 0):
        lines.append(f"threshold {threshold} is below 1 + drafts: drafts are cut")
    if typed.get("enable_prefix_caching") is False and state.kv.caching:
        lines.append("new prompts find no cached prefix; blocks in the cache are kept until they are taken")
    return lines
