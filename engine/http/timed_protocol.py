"""uvicorn's HTTP protocol with limits: how long a request's head may take, and how many connections there may be."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN_S = 10.0
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class TimedProtocol(H11Protocol):
    """Hangs up on a connection that does not finish a request's head in time (slow loris).

    Beyond `most` connections the one that has been silent for longest makes room; if all are busy, the new
    one gets 503.
    """

    most: ClassVar[int] = 1 << 16
    _silent: ClassVar[dict[TimedProtocol, None]] = {}

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            if not self._silent:
                transport.write(_FULL)
                transport.close()
                return
            next(iter(self._silent)).hang_up()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._head_came()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._silent[self] = None  # it may keep the connection for its next request

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close immediately, discarding unsent data."""
        self._head_came()
        self.transport.abort()

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_WITHIN_S, self.hang_up)
            self._silent[self] = None

    def _head_came(self) -> None:
        self._silent.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
