"""A console's end of the channel."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress

from schedtop.engine.channel.protocol import (
    MAX_OUTGOING_BYTES,
    ChannelError,
    FrameBuffer,
    Loopback,
    decode_outgoing,
    encode,
    frame,
    parse_address,
)
from schedtop.engine.channel.token_file import token_for
from schedtop.engine.contract.commands import Command, Join
from schedtop.engine.contract.telemetry import PROTOCOL, Bye, Outgoing

_READ_BYTES = 1 << 18
_GATHER_S = 0.05
_GATHER_BYTES = 1 << 20
"""A busy engine's records are handed on together: each waking up for a few costs more than they do."""

_READ_EVERY_S, _MANY_BYTES = 0.005, 1 << 15
"""Less than a socket's buffer takes to fill; four times as long after a read of fewer bytes than that."""

_SEND_WITHIN_S = 5.0


class ChannelClosedError(ChannelError):
    """The engine is gone or has ended, or this end was closed; nothing more will come."""


class ChannelClient:
    """One joined connection. `receive` belongs to one thread; `send` and `close` may be called from any."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.address = address
        self._sock = sock
        self._frames = FrameBuffer(MAX_OUTGOING_BYTES)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._closed = False
        self._first: Outgoing | None = None
        self._gathered_at_s = 0.0

    @classmethod
    def connect(
        cls,
        address: str,
        timeout_s: float = 5.0,
        *,
        token_file: str | None = None,
        read_only: bool = False,
        from_start: bool = False,
        recent: bool = False,
    ) -> ChannelClient:
        """Connect and say `Join`, over TCP with the token of `token_file`. The engine holds `read_only`.

        `from_start` asks for all records since the engine's start, `recent` for those of the last minutes.

        Raises `ChannelError` when nobody listens there.
        """
        place = parse_address(address)
        token = token_for(token_file) if isinstance(place, Loopback) else ""
        ipv6 = isinstance(place, Loopback) and ":" in place.host
        family = socket.AF_UNIX if not isinstance(place, Loopback) else socket.AF_INET6 if ipv6 else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        try:
            sock.connect(place if isinstance(place, Loopback) else place.path)
        except TimeoutError:
            sock.close()
            raise ChannelError(f"no answer from {address} within {timeout_s:g} s") from None
        except OSError as error:
            sock.close()
            raise ChannelError(f"no engine at {address}: {error.strerror or error}") from None
        sock.settimeout(_SEND_WITHIN_S)
        client = cls(sock, address)
        with suppress(ChannelClosedError):  # turned away already: `receive` says why
            join = Join(0, PROTOCOL, token, read_only=read_only, from_start=from_start, recent=recent)
            client.send(join)
        return client

    def await_welcome(self, timeout_s: float = 5.0) -> None:
        """Wait for the engine's first message, which `receive` still returns.

        Raises `ChannelClosedError` with the engine's reason if it turned this console away.
        """
        first = self.receive(timeout_s)
        if isinstance(first, Bye):
            raise ChannelClosedError(f"{self.address}: {first.reason}")
        self._first = first

    def send(self, command: Command) -> None:
        """Send one command; its `Reply` comes through `receive`. Raises `ChannelClosedError` if it is gone."""
        data = b"".join(frame(encode(command)))
        try:
            with self._sending:
                self._sock.sendall(data)
        except OSError as error:
            # The engine's last words (a `Bye`, say) may still be in the socket: `receive` gets them.
            raise ChannelClosedError(f"the engine takes no commands: {error.strerror or error}") from None

    def receive(self, timeout_s: float | None = None) -> Outgoing | None:
        """The next message; None if none came within `timeout_s` (None waits forever, 0 only looks).

        Raises `ChannelClosedError` at the end of the stream and `ChannelError` for bytes that are not a message or for
        another protocol.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        body = self._frames.next()
        if body is None:
            with self._receiving:
                body = self._next_frame(None if timeout_s is None else time.monotonic() + timeout_s)
        return None if body is None else decode_outgoing(body)

    def _next_frame(self, deadline_s: float | None) -> memoryview | None:
        while (body := self._frames.next()) is None:
            if self._closed:
                raise ChannelClosedError("the connection was closed")
            left_ms = None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1000
            if not self._poll.poll(left_ms):
                return None
            self._read()
            self._gather()
        return body

    def _read(self) -> None:
        try:
            num_bytes = self._receive()
        except OSError as error:
            raise ChannelClosedError(f"the connection to the engine broke: {error.strerror or error}") from None
        if num_bytes == 0:
            raise ChannelClosedError("the connection was closed" if self._closed else "the engine is gone")

    def _gather(self) -> None:
        """Read on while the last gathering is not long ago. An end is found again by the next `_read`."""
        until_s, wait_s = self._gathered_at_s + _GATHER_S, _READ_EVERY_S
        with suppress(OSError):
            while len(self._frames) < _GATHER_BYTES and time.monotonic() < until_s:
                time.sleep(wait_s)
                num_bytes = self._receive()
                if num_bytes == 0:
                    break
                wait_s = _READ_EVERY_S if (num_bytes or 0) >= _MANY_BYTES else 4 * _READ_EVERY_S
        self._gathered_at_s = time.monotonic()

    def _receive(self) -> int | None:
        """Bytes received without waiting; None if there were none, 0 at the end of the stream."""
        try:
            # Not by the socket's own methods: under its timeout for sending they would wait for bytes to come.
            num_bytes = os.readv(self._sock.fileno(), [self._frames.room(_READ_BYTES)])
        except (BlockingIOError, InterruptedError):
            return None
        self._frames.took(num_bytes)
        return num_bytes

    def close(self) -> None:
        """Hang up; a `receive` waiting in another thread raises `ChannelClosedError`."""
        self._closed = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._receiving:  # its number must not be given to another file while `receive` polls it
            self._sock.close()

    def __enter__(self) -> ChannelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
