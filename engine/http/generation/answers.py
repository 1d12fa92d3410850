"""Answers in the form that OpenAI's clients expect: one JSON document, or events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from schedtop.engine.contract.telemetry import Ending, FinishReason
from schedtop.engine.http.generation.logprobs import Scored, TokenText, chat_logprobs, completion_logprobs
from schedtop.engine.http.streams import Stream
from schedtop.engine.http.text import OutputText

DONE = b"data: [DONE]\n\n"
REASONS = {FinishReason.STOP: "stop", FinishReason.ABORT: "abort"}
"""Finish reasons by the client's name; any other is `length`."""


@dataclass(slots=True)
class Piece:
    """Certain text, and whether it is the last. `reason` and `stop` belong to the end."""

    text: str
    completion_tokens: int
    reason: str | None = None
    stop: str | int | None = None
    cached_tokens: int = 0
    scored: list[Scored] = field(default_factory=list)


class Reader:
    """Turns the tokens of a stream into pieces of text. Text that is not certain is held back."""

    def __init__(self, stream: Stream, text: OutputText, stop_token_ids: frozenset[int]) -> None:
        self._stream = stream
        self._text = text
        self._stop_token_ids = stop_token_ids
        self._num_tokens = 0
        self._scored: list[Scored] = []

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces with text in them, and the last one. Raises `StreamFailedError`."""
        while True:
            ids = await self._stream.next()
            self._scored += zip(ids, self._stream.take_logprobs(), strict=False)
            ending = self._stream.ending
            text, stop = self._decode(ids, ending)
            if stop is not None or ending is not None:
                last = self._last(text, ending, stop)
                last.scored = self._scored
                yield last
                return
            if text:
                scored, self._scored = self._scored, []
                yield Piece(text, self._num_tokens, scored=scored)

    def _decode(self, ids: list[int], ending: Ending | None) -> tuple[str, str | int | None]:
        """The text of some tokens, and what stopped it."""
        pieces: list[str] = []
        stopped = ending is not None and ending.reason == FinishReason.STOP
        for place, token_id in enumerate(ids):
            self._num_tokens += 1
            if stopped and place == len(ids) - 1 and token_id in self._stop_token_ids:
                return "".join(pieces) + self._text.flush(), token_id
            pieces.append(self._text.push(token_id))
            if self._text.stopped is not None:
                return "".join(pieces), self._text.stopped
        if ending is not None:
            pieces.append(self._text.flush())
        return "".join(pieces), None

    def _last(self, text: str, ending: Ending | None, stop: str | int | None) -> Piece:
        if ending is None:  # the text decides on stop, which the engine cannot see
            return Piece(text, self._num_tokens, "stop", stop)
        reason = "stop" if stop is not None else REASONS.get(FinishReason(ending.reason), "length")
        return Piece(text, self._num_tokens, reason, stop, ending.cached_tokens)


@dataclass(slots=True)
class AnswerShape:
    """The shape of one request's answer. `usage`: at a stream's end; `continuous`: in every chunk, too.

    `token_text` is set where log probabilities are wanted.
    """

    id: str
    model: str
    chat: bool
    prompt_tokens: int
    usage: bool = False
    continuous: bool = False
    token_text: TokenText | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    _length: int = 0

    async def events(self, pieces: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
        """A stream's events, from the first certain text to the last one but `DONE`."""
        first, last = True, Piece("", 0)
        async for piece in pieces:
            if first and self.chat:  # only once there is text: some clients take it for the first token
                yield self._event([self._choice({"role": "assistant", "content": ""})], Piece("", 0))
            first, last = False, piece
            shown = {"content": piece.text} if self.chat else piece.text
            yield self._event([self._choice(shown, piece)], piece)
        if self.usage:
            yield self._event([], last, with_usage=True)

    def _choice(self, shown: Any, piece: Piece | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta" if self.chat else "text": shown}
        choice["logprobs"] = None if piece is None else self._logprobs(piece)
        choice["finish_reason"] = None if piece is None else piece.reason
        choice["stop_reason"] = None if piece is None else piece.stop
        return choice

    def _event(self, choices: list[Any], piece: Piece, with_usage: bool = False) -> bytes:
        values: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if with_usage or self.continuous:
            values["usage"] = self._usage(piece)
        return b"data: %b\n\n" % msgspec.json.encode(values)

    async def whole(self, pieces: AsyncIterator[Piece]) -> dict[str, Any]:
        """The whole answer as JSON values."""
        texts, scored, last = [], [], Piece("", 0)
        async for last in pieces:
            texts.append(last.text)
            scored += last.scored
        last.scored = scored
        text = "".join(texts)
        shown = {"role": "assistant", "content": text} if self.chat else text
        choice = {"index": 0, "message" if self.chat else "text": shown, "logprobs": self._logprobs(last)}
        return {
            "id": self.id,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [{**choice, "finish_reason": last.reason, "stop_reason": last.stop}],
            "usage": self._usage(last),
        }

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self.token_text is None:
            return None
        if self.chat:
            return chat_logprobs(piece.scored, self.token_text)
        shaped = completion_logprobs(piece.scored, self.token_text, self._length)
        self._length += sum(map(len, shaped["tokens"]))
        return shaped

    def _usage(self, piece: Piece) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + piece.completion_tokens,
            "completion_tokens": piece.completion_tokens,
        }
        if piece.reason is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": piece.cached_tokens}
        return usage


def error_event(error: dict[str, Any]) -> bytes:
    """An error after the answer had begun."""
    return b"data: %b\n\n" % msgspec.json.encode(error)
