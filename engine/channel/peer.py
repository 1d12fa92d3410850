"""One console as the server sees it: what it is still to be sent, and what it missed."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from schedtop.engine.channel.protocol import MAX_INCOMING_BYTES, FrameBuffer, frame

_CHUNKS_PER_SEND = 128
_SENDS_PER_FLUSH = 4
_READ_BYTES = 1 << 16


class Peer:
    """A connection with a bounded outbox. Nothing here waits.

    `lost_records` counts what was dropped since this console's last snapshot; while it is not zero, the console
    gets no more records until `caught_up`.
    """

    def __init__(self, sock: socket.socket, outbox_bytes: int) -> None:
        self.sock = sock
        self.joined = False
        self.console = True
        self.leaving = False
        self.read_only = False
        self.interest = selectors.EVENT_READ
        self.connected_at = time.monotonic()
        self.synced_at = 0.0
        self.lost_records = 0
        self.outbox_bytes = 0
        self._limit_bytes = outbox_bytes
        self._outbox: deque[bytes | memoryview] = deque()
        self._inbox = FrameBuffer(MAX_INCOMING_BYTES)

    @property
    def full(self) -> bool:
        """True when the outbox can take no more records; commands are then left unread too."""
        return self.outbox_bytes >= self._limit_bytes

    @property
    def caught_up(self) -> bool:
        """True when a console that lost records has read enough to start afresh."""
        return self.lost_records > 0 and self.outbox_bytes <= self._limit_bytes // 4

    def push(self, body: bytes) -> None:
        """Queue a message that is never dropped."""
        for chunk in frame(body):
            self._outbox.append(chunk)
            self.outbox_bytes += len(chunk)

    def push_framed(self, frames: Sequence[bytes]) -> None:
        """Queue frames that are there anyway: the outbox has room for them beside its own."""
        num_bytes = sum(map(len, frames))
        self._outbox.extend(frames)
        self.outbox_bytes += num_bytes
        self._limit_bytes += num_bytes

    def offer(self, body: bytes) -> bool:
        """Queue a message unless the outbox is full or the console waits for a snapshot; False if dropped."""
        if self.lost_records or self.full:
            return False
        self.push(body)
        return True

    def flush(self) -> None:
        """Send what the socket takes now. Raises `OSError` when the console is gone."""
        for _ in range(_SENDS_PER_FLUSH):
            if not self._outbox:
                return
            chunks = list(islice(self._outbox, _CHUNKS_PER_SEND))
            try:
                sent = self.sock.sendmsg(chunks)
            except (BlockingIOError, InterruptedError):
                return
            self.outbox_bytes -= sent
            self._forget(sent)

    def _forget(self, sent: int) -> None:
        while sent:
            chunk = self._outbox.popleft()
            if len(chunk) > sent:
                self._outbox.appendleft(memoryview(chunk)[sent:])
                return
            sent -= len(chunk)

    def read(self) -> list[memoryview] | None:
        """Whole frames that arrived, valid until the next call; None at the end of the stream.

        Raises `OSError` or `ChannelError`.
        """
        try:
            data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        if not data:
            return None
        self._inbox.feed(data)
        frames = []
        while (body := self._inbox.next()) is not None:
            frames.append(body)
        return frames
