"""Turns an ask into a request with its tokens, at the moment it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

import numpy as np
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.handoff.request import Image, Request, TokenIds
from schedtop.engine.workload.paced import Ask
from schedtop.engine.workload.tokens import key_tokens, mixed, mixed_number, own_tokens, text_tokens

Encode = Callable[[str], Sequence[int]]

SAMPLING = SamplingParams(ignore_eos=True)
"""A workload defines output lengths, so no end token may cut them."""


class RequestBuilder:
    """Makes requests, all their tokens below `vocab_size`. The same seed and ask give the same prompt.

    `encode` turns text into ids where there is a tokenizer; without one, stand-in tokens take its place. Requests
    that name no adapter are spread over `num_adapters`, by seed and ordinal.
    """

    def __init__(
        self,
        seed: int,
        vocab_size: int,
        max_model_len: int,
        max_prompt_tokens: int | None = None,
        encode: Encode | None = None,
        num_adapters: int = 0,
        pooling: bool = False,
    ) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_prompt_tokens = max_prompt_tokens
        self._encode = encode
        self._num_adapters = num_adapters
        self._pooling = pooling
        self._adapters: dict[str, int] = {}

    def __call__(self, ask: Ask, arrival_s: float) -> Request:
        prompt = self._synthetic(ask) if ask.text is None else self._from_text(ask.text, ask.images)
        adapter = ask.adapter or self._spread(ask.ordinal)
        return Request(
            ask.id,
            prompt,
            0 if self._pooling else ask.max_tokens,
            arrival_s,
            ask.priority,
            sampling=SAMPLING,
            adapter=self._adapters.setdefault(adapter, len(self._adapters) + 1) if adapter else 0,
            adapter_name=adapter,
            cache_salt=ask.cache_salt,
            skip_reading_prefix_cache=ask.skip_reading_prefix_cache,
            parent=ask.parent,
            images=tuple(image for image in ask.images if image.end <= len(prompt)),
        )

    def _spread(self, ordinal: int) -> str:
        if not self._num_adapters:
            return ""
        return f"adapter-{mixed_number(ordinal, self._seed + 2) % self._num_adapters + 1}"

    def _synthetic(self, ask: Ask) -> TokenIds:
        if ask.prompt_tokens > self._max_model_len:
            # It will be refused for its length; a broadcast view has that length and takes no memory.
            return np.broadcast_to(np.int32(0), (ask.prompt_tokens,))
        shared = 0 if ask.shared is None else min(len(ask.shared) * ask.shared_width, ask.prompt_tokens)
        tokens = np.empty(ask.prompt_tokens, dtype=np.int32)
        if ask.shared is not None and shared:
            pieces = -(-shared // ask.shared_width)
            keys = mixed(ask.shared[:pieces], self._seed)
            tokens[:shared] = key_tokens(keys, ask.shared_width, self._vocab_size)[:shared]
        if shared < ask.prompt_tokens:
            ordinal = _ordinal_of(ask.parent) if ask.parent else ask.ordinal
            key = mixed_number(ordinal, ~self._seed)
            tokens[shared:] = own_tokens(key, ask.prompt_tokens - shared, self._vocab_size)
            # Requests differ from the first token on, whatever the block size, until the vocabulary is used up.
            tokens[shared] = ordinal % self._vocab_size
        return tokens

    def _from_text(self, text: bytes, images: Sequence[Image]) -> TokenIds:
        """The text's tokens behind those of its images, which stand for themselves whatever their ids."""
        if self._encode is None:
            tokens = text_tokens(text, self._vocab_size)
        else:
            tokens = np.asarray(self._encode(text.decode()), dtype=np.int32)
        if images:
            tokens = np.concatenate([np.zeros(images[-1].end, dtype=np.int32), tokens])
        return tokens[: self._max_prompt_tokens]


def _ordinal_of(parent: str) -> int:
    """The children of a parent share its prompt, so their own part follows from the parent's name."""
    return int.from_bytes(sha256(parent.encode()).digest()[:8])
