"""Log probabilities in the shapes of OpenAI's two interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schedtop.engine.contract.telemetry import TokenLogprob

Scored = tuple[int, TokenLogprob]
"""An output and its log probabilities."""

TokenText = Callable[[int], str]


def completion_logprobs(scored: Sequence[Scored], text: TokenText, offset: int) -> dict[str, Any]:
    """Parallel lists, as of `/v1/completions`; `offset` is where the first token starts in the answer's text."""
    tokens = [text(token_id) for token_id, _ in scored]
    offsets = [offset + sum(map(len, tokens[:place])) for place in range(len(tokens))]
    return {
        "text_offset": offsets,
        "token_logprobs": [entry.logprob for _, entry in scored],
        "tokens": tokens,
        "top_logprobs": [
            {text(token_id): value for token_id, value in (*entry.top, (own, entry.logprob))}
            for own, entry in scored
        ],
    }


def chat_logprobs(scored: Sequence[Scored], text: TokenText) -> dict[str, Any]:
    """One entry per token, as of `/v1/chat/completions`."""
    content = [
        {
            **_entry(text(token_id), entry.logprob),
            "top_logprobs": [_entry(text(top), value) for top, value in entry.top],
        }
        for token_id, entry in scored
    ]
    return {"content": content}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
