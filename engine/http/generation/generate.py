"""`/v1/completions` and `/v1/chat/completions`: from a body to the engine, and its tokens back."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from schedtop.engine.contract.commands import Submit
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import TokenIds
from schedtop.engine.http.access import ClientGoneError, read_body, while_connected
from schedtop.engine.http.errors import ApiError, busy, json_response
from schedtop.engine.http.generation.answers import DONE, AnswerShape, Reader, error_event
from schedtop.engine.http.generation.requests import (
    MAX_ID_CHARS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    read,
)
from schedtop.engine.http.link import MAX_PROMPT_TOKENS, NotTakenError
from schedtop.engine.http.server_state import ServerState
from schedtop.engine.http.streams import Stream, StreamFailedError
from schedtop.engine.http.text import message_text
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_INLINE_CHARS = 4000
"""Longer texts are tokenised in a thread: streaming answers must not wait for it."""

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
PREVIEW_CHARS = 80


class Generation:
    """One request from its arrival to its last byte."""

    def __init__(self, state: ServerState, request: Request, kind: type[GenerationRequest]) -> None:
        self._arrived_s = time.monotonic()
        self._state = state
        self._request = request
        self._kind = kind

    async def respond(self) -> Response:
        """The answer, or the error. Raises `ApiError` for errors before the first byte."""
        asked = read(await read_body(self._request), self._kind)
        state = self._state
        state.check_model(asked.model)
        if asked.asked_logprobs is not None and not state.has_logits:
            raise ApiError(400, "logprobs: a simulated device knows no probabilities", "logprobs")
        with state.admission() as on_taken:
            command = await self._submit(asked)
            stream = await self._queue(command, on_taken)
        try:
            answer = self._answer(asked, command)
            output = state.texts.output(asked.stops)
            reader = Reader(stream, output, frozenset(command.stop_token_ids))
        except BaseException:
            state.link.release(stream)
            raise
        if asked.stream:
            return EventStream(state, stream, answer.events(reader.pieces()))
        return await self._whole(stream, answer, reader)

    async def _queue(self, command: Submit, on_taken: Callable[[], None]) -> Stream:
        streams: list[Stream] = []

        async def submit() -> None:
            streams.append(await self._state.link.submit(command, on_taken))

        try:
            await while_connected(self._request.receive, submit())
        except NotTakenError as error:
            raise (ApiError(400, str(error), "prompt") if error.never else busy(str(error))) from None
        except ClientGoneError:
            for stream in streams:
                self._state.link.release(stream)
            raise
        return streams[0]

    async def _whole(self, stream: Stream, answer: AnswerShape, reader: Reader) -> Response:
        async def collect() -> Response:
            return json_response(await answer.whole(reader.pieces()))

        try:
            response = await while_connected(self._request.receive, collect())
        except StreamFailedError as error:
            raise busy(str(error)) from None
        finally:
            self._state.link.release(stream)
        assert response is not None
        return response

    async def _submit(self, asked: GenerationRequest) -> Submit:
        try:
            token_ids, preview = await self._encode(asked)
        except ConfigError as error:
            raise ApiError(400, str(error), "messages" if isinstance(asked, ChatRequest) else "prompt") from None
        prompt = len(token_ids)
        return Submit(
            id=0,
            request_id=self._id(asked),
            prompt=token_ids.tobytes(),
            max_tokens=self._max_tokens(asked, prompt),
            sampling=asked.sampling(self._state.advice, self._state.vocab_size),
            stop_token_ids=tuple(asked.stop_token_ids or ()),
            priority=asked.priority or 0,
            arrived_s=self._arrived_s,
            preview=preview,
            client=asked.user or "",
            cache_salt=asked.cache_salt or "",
            adapter=self._state.adapter(asked.model),
            parent=asked.parent or "",
        )

    async def _encode(self, asked: GenerationRequest) -> tuple[TokenIds, str]:
        """Token ids of the prompt, and how its text begins. Raises `ConfigError`."""
        texts = self._state.texts
        if isinstance(asked, ChatRequest):
            messages = [message_text(message) for message in asked.messages]
            size = sum(len(str(message.get("content"))) for message in messages)
            preview = str(messages[-1].get("content"))[:PREVIEW_CHARS]
            if size > _INLINE_CHARS:
                return await asyncio.to_thread(texts.encode_chat, messages), preview
            return texts.encode_chat(messages), preview
        assert isinstance(asked, CompletionRequest)
        prompt = asked.the_prompt()
        if not isinstance(prompt, str):
            return self._state.check_ids(prompt), ""
        special = asked.add_special_tokens is not False
        if len(prompt) > _INLINE_CHARS:
            return await asyncio.to_thread(texts.encode, prompt, special), prompt[:PREVIEW_CHARS]
        return texts.encode(prompt, special), prompt[:PREVIEW_CHARS]

    def _max_tokens(self, asked: GenerationRequest, prompt: int) -> int:
        """Output tokens of the request. Raises `ApiError` with need and capacity if it can never fit."""
        longest = min(self._state.max_model_len, MAX_PROMPT_TOKENS)
        given = asked.asked_tokens
        field = "max_tokens" if asked.max_tokens is not None else "max_completion_tokens"
        if given is not None and given > longest:
            raise ApiError(400, f"{field}={given} is above max_model_len {longest}: ask for fewer", field)
        where = "messages" if isinstance(asked, ChatRequest) else "prompt"
        if prompt >= longest:
            raise ApiError(400, f"the prompt has {prompt} tokens: max_model_len {longest} leaves no output", where)
        if given is not None and prompt + given > longest and (asked.max_tokens or isinstance(asked, ChatRequest)):
            text = f"{prompt} prompt tokens + {given} output tokens = {prompt + given} > max_model_len {longest}"
            raise ApiError(400, f"{text}: shorten the prompt or ask for fewer", field)
        return longest - prompt if given is None else min(given, longest - prompt)

    def _id(self, asked: GenerationRequest) -> str:
        """The client's own id behind the kind, as vLLM has it, or a new one."""
        own = self._request.headers.get("x-request-id") or asked.request_id or ""
        shown = "".join(char for char in own if char.isprintable())[:MAX_ID_CHARS]
        return f"{'chatcmpl' if isinstance(asked, ChatRequest) else 'cmpl'}-{shown or uuid.uuid4().hex[:16]}"

    def _answer(self, asked: GenerationRequest, command: Submit) -> AnswerShape:
        options = asked.stream_options
        return AnswerShape(
            id=command.request_id,
            model=asked.model or self._state.names[0],
            chat=isinstance(asked, ChatRequest),
            prompt_tokens=len(command.prompt) // 4,
            token_text=None if asked.asked_logprobs is None else self._state.texts.token,
            usage=bool(options and options.include_usage),
            continuous=bool(options and options.continuous_usage_stats and options.include_usage),
        )


class EventStream(Response):
    """Server-sent events of one stream, which ends when the client does."""

    def __init__(self, state: ServerState, stream: Stream, events: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._state = state
        self._stream = stream
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except ClientGoneError:
            pass
        finally:
            self._state.link.release(self._stream)

    async def _send(self, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._stream.on_slow = lambda: self._give_up(task)
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            async with aclosing(self._events) as events:  # type: ignore[type-var]
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            last = DONE
        except StreamFailedError as error:
            last = error_event(ApiError(503, str(error)).body())
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        self._state.counts.slow_readers += 1
        task.cancel()


def generation(state: ServerState, kind: type[GenerationRequest]) -> Any:
    """The endpoint for requests of one kind."""

    async def endpoint(request: Request) -> Response:
        try:
            return await Generation(state, request, kind).respond()
        except ClientGoneError:
            return Response(status_code=499)

    return endpoint
