"""Submission: requests that can never fit are refused at once, with need and capacity."""

from __future__ import annotations

from schedtop.engine.contract.telemetry import Refusal
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.state import SchedulerState


def refuse(state: SchedulerState, request: Request) -> Refusal | None:
    """Why this engine can never serve a request; None if it can."""
    prompt, config = request.num_prompt_tokens, state.config
    if prompt < 1:
        return _refusal(request, "the prompt is empty: it needs at least 1 token", 1, 0)
    if request.max_tokens < 1 and not config.pooling:
        return _refusal(
            request, f"max_tokens is {request.max_tokens}: it must be at least 1", 1, request.max_tokens
        )
    if prompt > config.max_model_len or (prompt == config.max_model_len and not config.pooling):
        own = config.own_model_len
        if own is not None and prompt >= own:
            text = f"the prompt has {prompt} tokens; the model's own length, {own}, leaves room for no output"
            return _refusal(request, text, prompt + 1, own)
        text = f"the prompt has {prompt} tokens; max_model_len {config.max_model_len} leaves room for no output"
        return _refusal(request, text, prompt + 1, config.max_model_len, "--max-model-len")
    return _refuse_blocks(state, request) or _refuse_unchunked(state, request) or _refuse_images(state, request)


def _refuse_blocks(state: SchedulerState, request: Request) -> Refusal | None:
    capacity = state.kv.capacity_tokens
    if capacity is None or request.num_prompt_tokens <= capacity:
        return None
    need = state.kv.needs(request.num_prompt_tokens)
    have = state.kv.pool.num_blocks
    return _refusal(request, f"the prompt needs {need} KV blocks, the pool has {have}", need, have, "--num-blocks")


def _refuse_unchunked(state: SchedulerState, request: Request) -> Refusal | None:
    room = step_room(state)
    if state.config.enable_chunked_prefill or request.num_prompt_tokens <= room:
        return None
    text = f"the prompt has {request.num_prompt_tokens} tokens; without chunked prefill a step takes {room}"
    return _refusal(request, text, request.num_prompt_tokens, room, "--max-num-batched-tokens")


def _refuse_images(state: SchedulerState, request: Request) -> Refusal | None:
    """An image is encoded and cached whole, in one step."""
    encoder = state.encoder
    if encoder is None or not state.config.refuses_images or not request.images:
        return None
    largest = max(image.length for image in request.images)
    for what, size in (("budget", encoder.budget), ("cache", encoder.size)):
        if largest > size:
            text = f"an image has {largest} tokens; the encoder's {what} is {size}"
            return _refusal(request, text, largest, size, f"--encoder-{what}")
    return None


def step_room(state: SchedulerState) -> int:
    """Most tokens that one request can get in an otherwise empty step."""
    return min(state.limits.token_budget, state.limits.input_budget - state.config.draft_slots)


def _refusal(request: Request, reason: str, need: int, capacity: int, setting: str = "") -> Refusal:
    return Refusal(request.number, request.id, reason, need, capacity, setting)
