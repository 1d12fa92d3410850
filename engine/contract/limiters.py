"""What each limiter is called, what it means, and which knobs let go of what it holds: one row each."""

from __future__ import annotations

from typing import NamedTuple

from schedtop.engine.contract.telemetry import Limiter

BUDGET, CAP, CHUNKS = "budget", "cap", "chunks"
"""Remedies that depend on which of two knobs holds: either token budget, either sequence cap, the long-prefill cap."""


class LimiterText(NamedTuple):
    """`remedies`: knobs (or names above) and directions, the first one first; none where no limit is at fault."""

    meaning: str
    remedies: tuple[tuple[str, str], ...] = ()


LIMITERS: dict[Limiter, LimiterText] = {
    Limiter.TOKEN_BUDGET: LimiterText("this step's token budget is used up", ((BUDGET, "up"), (CHUNKS, ""))),
    Limiter.INPUT_BUDGET: LimiterText(
        "this step's rows of model input are used up", (("max_num_batched_tokens", "up"), (CHUNKS, ""))
    ),
    Limiter.SEQUENCE_CAP: LimiterText("max_num_seqs (or max_num_active_seqs) requests are running", ((CAP, "up"),)),
    Limiter.BLOCKS: LimiterText("the pool has too few free blocks for the next chunk", (("num_blocks", "up"),)),
    Limiter.WATERMARK: LimiterText("it would fit, but not leave the watermark free", (("watermark", "down"),)),
    Limiter.FULL_SEQUENCE: LimiterText(
        "the next chunk would fit, the whole sequence would not",
        (("scheduler_reserve_full_isl", "off"), ("num_blocks", "up")),
    ),
    Limiter.CHUNKING_OFF: LimiterText(
        "the whole prompt must fit into the rest of the step, and does not",
        ((BUDGET, "up"), ("enable_chunked_prefill", "on")),
    ),
    Limiter.PAUSED: LimiterText("the engine is paused"),
    Limiter.PREEMPTED_NOW: LimiterText(
        "a request was preempted in this step, so none is admitted", (("max_num_seqs", "down"), ("watermark", "up"))
    ),
    Limiter.GRAMMAR: LimiterText("its grammar is still compiling; others may pass"),
    Limiter.REMOTE_KV: LimiterText("its KV state is still loading; others may pass"),
    Limiter.STREAMING_INPUT: LimiterText("it waits for more of its input; others may pass"),
    Limiter.STALE_OUTPUT: LimiterText("results from before its preemption are under way; others may pass"),
    Limiter.LORA: LimiterText("max_loras other adapters are in this step; others may pass", (("max_loras", "up"),)),
    Limiter.ENCODER: LimiterText(
        "the next image does not fit the encoder's budget or cache",
        (("encoder_budget", "up"), ("encoder_cache", "up")),
    ),
    Limiter.RESERVED: LimiterText(
        "its load would take blocks that requests in the middle of their prompts still need",
        (("num_blocks", "up"),),
    ),
    Limiter.DP_THROTTLE: LimiterText("another data-parallel rank holds prefills back"),
}


def limiter_help() -> str:
    """One line per limiter, for the help of panels that show them."""
    return "\n".join(f"  {name.replace('_', ' '):<16} {text.meaning}" for name, text in LIMITERS.items())
