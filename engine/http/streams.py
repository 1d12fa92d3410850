"""The tokens of one request on their way to its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from schedtop.engine.contract.telemetry import Ending, TokenLogprob

MAX_UNSENT_TOKENS = 16_384
MAX_UNSENT_S = 60.0
"""A client that has not read for this long, or has this much unread, is dropped while its answer still grows."""


class StreamFailedError(Exception):
    """The answer will not be finished; the text is one line."""


class Stream:
    """An outbox of token ids. A slow reader gets many at once; nothing waits for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ending: Ending | None = None
        self.on_slow: Callable[[], object] = lambda: None
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._unsent_since_s = 0.0
        self._failure: str | None = None
        self._news = asyncio.Event()

    @property
    def over(self) -> bool:
        """The engine will send nothing more."""
        return self.ending is not None or self._failure is not None

    def push(self, ids: list[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        """More tokens, with their log probabilities if they were asked for."""
        now_s = time.monotonic()
        if not self._ids:
            self._unsent_since_s = now_s
        self._ids += ids
        self._logprobs += logprobs
        if len(self._ids) > MAX_UNSENT_TOKENS or now_s - self._unsent_since_s > MAX_UNSENT_S:
            self.on_slow()
        self._news.set()

    def end(self, ending: Ending) -> None:
        """No more tokens."""
        self.ending = ending
        self._news.set()

    def fail(self, reason: str) -> None:
        """The engine ended before the answer did."""
        self._failure = reason
        self._news.set()

    async def next(self) -> list[int]:
        """All tokens that came since the last call, at least one unless it has ended.

        Raises `StreamFailedError`.
        """
        while not self._ids and not self.over:
            self._news.clear()
            await self._news.wait()
        ids, self._ids = self._ids, []
        if self._failure is not None and not ids:
            raise StreamFailedError(self._failure)
        return ids

    def take_logprobs(self) -> list[TokenLogprob]:
        """Those of the tokens that `next` gave last."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs
