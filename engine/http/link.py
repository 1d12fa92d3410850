"""The HTTP server's end of the channel: requests out, tokens and records in."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np
from schedtop.engine.channel.protocol import (
    MAX_INCOMING_BYTES,
    MAX_OUTGOING_BYTES,
    ChannelError,
    FrameBuffer,
    Loopback,
    decode_outgoing,
    encode,
    frame,
    parse_address,
)
from schedtop.engine.contract.commands import Abort, Command, Join, SetKnobs, Submit
from schedtop.engine.contract.telemetry import (
    PROTOCOL,
    Bye,
    Header,
    KnobChange,
    Output,
    Reply,
    Snapshot,
    StepRecord,
)
from schedtop.engine.http.streams import Stream

MAX_PROMPT_TOKENS = (MAX_INCOMING_BYTES - (1 << 16)) // 4
"""Most that fit into one command."""

_AUDITED_CHANGES = 200
_READ_BYTES = 1 << 16


class NotTakenError(Exception):
    """The engine refused the request; `never`: it always will. The text is one line."""

    def __init__(self, text: str, never: bool) -> None:
        super().__init__(text)
        self.never = never


class TimedChange(NamedTuple):
    """A knob change, and when it happened on the engine's clock."""

    step: int
    clock_s: float
    change: KnobChange


class EngineLink(asyncio.BufferedProtocol):
    """One joined connection. `on_record` gets every record, `on_end` is called once, when the engine is gone.

    `knobs` are the live limits at `knobs_version`, `changes` the latest ones, oldest first.
    """

    def __init__(self, token: str, on_record: Callable[[StepRecord], object]) -> None:
        self.header: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        self.knobs: dict[str, Any] = {}
        self.knobs_version = 0
        self.changes: deque[TimedChange] = deque(maxlen=_AUDITED_CHANGES)
        self.ended: str | None = None
        self.on_end: Callable[[], object] = lambda: None
        self.on_record = on_record
        self._token = token
        self._frames = FrameBuffer(MAX_OUTGOING_BYTES)
        self._commands = itertools.count(1)
        self._transport: asyncio.Transport
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._submitted: dict[int, tuple[asyncio.Future[Stream], Callable[[], None]]] = {}
        self._streams: dict[int, Stream] = {}
        self._queued: set[int] = set()

    @classmethod
    async def connect(cls, address: str, token: str, on_record: Callable[[StepRecord], object]) -> EngineLink:
        """Connect and join. Raises `OSError`."""
        loop, place = asyncio.get_running_loop(), parse_address(address)
        if isinstance(place, Loopback):
            _, link = await loop.create_connection(lambda: cls(token, on_record), place.host, place.port)
        else:
            _, link = await loop.create_unix_connection(lambda: cls(token, on_record), place.path)
        return link

    @property
    def num_queued(self) -> int:
        """Requests that the engine took and has not yet admitted."""
        return len(self._queued)

    async def submit(self, command: Submit, on_taken: Callable[[], None] = lambda: None) -> Stream:
        """Hand a request to the engine; its `id` is set here. Raises `NotTakenError`.

        `on_taken` is called in the moment in which it counts as queued.
        """
        if self.ended is not None:
            raise NotTakenError(self.ended, never=False)
        id = next(self._commands)
        future: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._submitted[id] = future, on_taken
        self._send(msgspec.structs.replace(command, id=id))
        return await future

    async def set_knobs(self, command: SetKnobs) -> Reply:
        """Change limits; the engine's answer. Raises `NotTakenError` once it is gone."""
        if self.ended is not None:
            raise NotTakenError(self.ended, never=False)
        id = next(self._commands)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[id] = future
        self._send(msgspec.structs.replace(command, id=id))
        return await future

    def release(self, stream: Stream) -> None:
        """The client has gone: abort the rest of its request."""
        self._streams.pop(stream.number, None)
        self._queued.discard(stream.number)
        if not stream.over:
            self._send(Abort(next(self._commands), stream.number))

    def _send(self, command: Command) -> None:
        if self.ended is None:
            self._transport.writelines(frame(encode(command)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(MAX_OUTGOING_BYTES)
        self._send(Join(id=0, protocol=PROTOCOL, token=self._token, console=False))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room(_READ_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.took(nbytes)
        try:
            while (body := self._frames.next()) is not None:
                self._take(decode_outgoing(body))
        except ChannelError as error:
            self._end(str(error))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the engine is gone")

    def _take(self, message: Any) -> None:
        match message:
            case StepRecord():
                self._take_record(message)
            case Output():
                self._take_output(message)
            case Reply():
                self._take_reply(message)
            case Header():
                self.header.set_result(message)
            case Snapshot():
                self.knobs, self.knobs_version = message.knobs, message.knobs_version
                self._queued &= set(message.waiting)
            case Bye():
                self._end(message.reason)

    def _take_record(self, record: StepRecord) -> None:
        self._queued.difference_update(admission.number for admission in record.admissions)
        for change in record.knobs:
            self.knobs[change.name] = change.new
            self.changes.append(TimedChange(record.step, record.end_s, change))
        self.knobs_version = record.knobs_version
        self.on_record(record)

    def _take_output(self, output: Output) -> None:
        ids = np.frombuffer(output.token_ids, dtype=np.int32).tolist()
        numbers, counts = (np.frombuffer(data, dtype=np.int32).tolist() for data in (output.numbers, output.counts))
        logprobs = dict(output.logprobs)
        start = 0
        for number, count in zip(numbers, counts, strict=True):
            if (stream := self._streams.get(number)) is not None:
                stream.push(ids[start : start + count], logprobs.get(number, ()))
            start += count
        for ending in output.ends:
            self._queued.discard(ending.number)
            if (stream := self._streams.pop(ending.number, None)) is not None:
                stream.end(ending)

    def _take_reply(self, reply: Reply) -> None:
        if (waiting := self._replies.pop(reply.command, None)) is not None and not waiting.done():
            waiting.set_result(reply)
        if reply.command not in self._submitted:
            return
        asked, on_taken = self._submitted.pop(reply.command)
        if asked.done():  # its client has gone
            if reply.ok:
                self._send(Abort(next(self._commands), reply.number))
        elif reply.ok:
            stream = self._streams[reply.number] = Stream(reply.number)
            self._queued.add(reply.number)
            on_taken()
            asked.set_result(stream)
        else:
            asked.set_exception(NotTakenError(reply.text, never=reply.number >= 0))

    def _end(self, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        for stream in self._streams.values():
            stream.fail(reason)
        waiting: list[asyncio.Future[Any]] = [
            *(future for future, _ in self._submitted.values()),
            *self._replies.values(),
        ]
        for future in waiting:
            if not future.done():
                future.set_exception(NotTakenError(reason, never=False))
        self._streams.clear()
        if not self.header.done():
            self.header.set_exception(ChannelError(reason))
        with suppress(RuntimeError):
            self.on_end()
