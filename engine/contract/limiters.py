"""Each limiter's name, meaning and the knobs that relieve it: one row each."""

from __future__ import annotations

from typing import NamedTuple

from schedtop.engine.contract.telemetry import DEFERRED, Head, Limiter

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


def describe_head(head: Head) -> str:
    """The waiting head's reason with its numbers, in the words of every screen and report."""
    need, have = head.need, head.have
    if head.reason in DEFERRED:
        return describe_deferral(head.reason)
    if need is None or have is None:
        return head.reason.replace("_", " ")
    match head.reason:
        case Limiter.BLOCKS:
            return f"blocks: needs {need}, {have} free, short {need - have}"
        case Limiter.FULL_SEQUENCE:
            return f"full sequence: needs {need + head.reserve}, {have} free, short {need + head.reserve - have}"
        case Limiter.WATERMARK:
            return f"watermark: {have} − {need} < {head.reserve}"
        case Limiter.SEQUENCE_CAP:
            return f"sequence cap {need}, {have} running" + (", draining" if have > need else "")
        case Limiter.TOKEN_BUDGET | Limiter.INPUT_BUDGET:
            return f"{head.reason.replace('_', ' ')}: {have} left of {need}"
        case Limiter.ENCODER if have < need:
            return f"encoder: its next image has {need} tokens, {have} left in this step"
        case Limiter.ENCODER:
            return f"encoder: no room in its cache for an image of {need} tokens"
        case Limiter.LORA:
            return f"lora: other adapters have {have} of {need} slots"
        case Limiter.CHUNKING_OFF:
            return f"chunking off: needs {need} tokens, {have} left in this step"
    return head.reason.replace("_", " ")


def describe_deferral(reason: str) -> str:
    """Why a request is skipped, in the words of every screen and report."""
    return f"deferred: {reason}"
