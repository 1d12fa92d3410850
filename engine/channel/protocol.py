"""Length-prefixed msgpack frames of the structs in `telemetry`, and where a channel may be.

A frame is a little-endian uint32 length and that many bytes of msgpack. A console's first frame is `Join`; the
engine answers with `Stage`s while it loads, then `Header`, `Snapshot` and records, and ends with `Bye`.
"""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec
from schedtop.engine.contract.commands import Incoming, Join
from schedtop.engine.contract.telemetry import PROTOCOL, ROW_FIELDS, Message, Outgoing, StepRecord

MAX_OUTGOING_BYTES = 128 << 20
MAX_INCOMING_BYTES = 1 << 20

_ROOMY = 16
"""Times the next read: a buffer that one long message made larger than that is given back."""

_LENGTH = struct.Struct("<I")
_NUM_FIELDS = len(ROW_FIELDS)
_ROW_BYTES = 4 * _NUM_FIELDS
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, MemoryError)


class ChannelError(Exception):
    """The channel cannot be opened or goes no further; the text is one line for the operator."""


class Sink(Protocol):
    """Takes every record of an engine. `encoded` is `encode(record)`, made once for all sinks."""

    def write(self, record: StepRecord, encoded: bytes) -> None:
        """Raises `OSError` when the sink can take no more."""
        ...


class Unix(NamedTuple):
    """A socket file only its owner may open."""

    path: str


class Loopback(NamedTuple):
    """A TCP port of this machine; `port` 0 lets the system choose."""

    host: str
    port: int


def parse_address(text: str) -> Unix | Loopback:
    """`unix:PATH`, a path with a slash in it, or `tcp:HOST:PORT` with a loopback host; raises `ChannelError`."""
    if not text.startswith("tcp:"):
        path = text.removeprefix("unix:")
        # A bare word or a URL is a slip: it would become a socket file of that name.
        slip = path == text and ("/" not in path or "://" in path)
        if not path or "\0" in path or slip:
            raise ChannelError(f"{text!r} is not an address: give unix:PATH or tcp:127.0.0.1:PORT")
        if len(path.encode(errors="surrogateescape")) > 107:
            raise ChannelError(f"socket path {path} is longer than 107 bytes: choose a shorter one")
        return Unix(path)
    host, _, port = text[4:].rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        what = f"has no port {port}" if port.isdigit() else "has no port"
        raise ChannelError(f"{text!r} {what}: write tcp:127.0.0.1:PORT, 0 to 65535")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ChannelError(f"{text!r}: only a loopback host such as 127.0.0.1 is allowed")
    return Loopback(host, int(port))


_encoder = msgspec.msgpack.Encoder()
_outgoing = msgspec.msgpack.Decoder(Outgoing)
_incoming = msgspec.msgpack.Decoder(Incoming)


def encode(message: Message) -> bytes:
    """One message as msgpack, without its frame. Raises `TypeError` for a value msgpack cannot hold."""
    return _encoder.encode(message)


def frame(body: bytes) -> tuple[bytes, bytes]:
    """Length and body, to be sent one after the other; apart, so that one body serves many receivers."""
    return _LENGTH.pack(len(body)), body


def decode_outgoing(body: bytes | memoryview) -> Outgoing:
    """What an engine said. Raises `ChannelError` for bytes that are not a message, or another protocol's header."""
    if len(body) > 3 and (body[1] == 2 or body[3] == 2):  # as a header has its tag there
        _check_protocol(body)
    try:
        message = _outgoing.decode(body)
    except _UNREADABLE as error:
        raise ChannelError(f"the engine sent an unreadable message ({_one_line(error)})") from None
    if isinstance(message, StepRecord):
        _check_arrays(message)
    return message


def decode_incoming(body: bytes | memoryview) -> Incoming:
    """What a console asked. Raises `ChannelError` for bytes that are not a command."""
    try:
        return _incoming.decode(body)
    except _UNREADABLE as error:
        with suppress(*_UNREADABLE):  # another version's `Join` may have other fields, and still says its protocol
            tag, _, protocol = msgspec.msgpack.decode(body, type=list[msgspec.Raw])[:3]
            if msgspec.msgpack.decode(tag) == Join.__struct_config__.tag:
                return Join(id=0, protocol=msgspec.msgpack.decode(protocol, type=int))
        raise ChannelError(f"unreadable command ({_one_line(error)})") from None


def mismatch(engine: object, console: object) -> str:
    """The line both sides show when their protocols differ."""
    return f"the engine speaks protocol {engine} and the console {console}: use the same schedtop version on both"


def _check_protocol(body: bytes | memoryview) -> None:
    """Compare a header's protocol before its other fields, which another version may have changed."""
    try:
        fields = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        tag, protocol = (msgspec.msgpack.decode(raw) for raw in fields[:2])
    except _UNREADABLE:
        return
    if tag == 2 and protocol != PROTOCOL:
        raise ChannelError(mismatch(_one_line(protocol), PROTOCOL))


def _check_arrays(record: StepRecord) -> None:
    """Arrays travel as bytes, whose lengths msgspec does not know."""
    num_bytes = len(record.rows)
    whole = (
        num_bytes % _ROW_BYTES == 0
        and len(record.itl_s) * _NUM_FIELDS == num_bytes
        and len(record.changed_blocks) % 4 == 0
        and len(record.grown) % 8 == 0
        and len(record.grown_blocks) % 4 == 0
    )
    if not whole:
        raise ChannelError(f"the engine sent step {record.step} with arrays of unequal length")


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:120]


class FrameBuffer:
    """Bytes as they come in, frames as they become whole. Bytes are received where they stay until a frame is out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._view = memoryview(bytearray())
        self._start = self._stop = 0

    def room(self, num_bytes: int) -> memoryview:
        """Where the next bytes may be written, `num_bytes` at least; `took` says how many were."""
        if self._start == self._stop:
            self._start = self._stop = 0
            if len(self._view) > _ROOMY * num_bytes:
                self._view = memoryview(bytearray())
        if self._stop + num_bytes > len(self._view):
            unread = self._view[self._start : self._stop]
            if len(unread) + num_bytes > len(self._view):
                self._view = memoryview(bytearray(2 * (len(unread) + num_bytes)))
            self._view[: len(unread)] = unread
            self._start, self._stop = 0, len(unread)
        return self._view[self._stop :]

    def __len__(self) -> int:
        """Bytes received and not yet taken out."""
        return self._stop - self._start

    def took(self, num_bytes: int) -> None:
        """So many bytes were written to `room`."""
        self._stop += num_bytes

    def feed(self, data: bytes) -> None:
        """Append what was received elsewhere."""
        self.room(len(data))[: len(data)] = data
        self.took(len(data))

    def next(self) -> memoryview | None:
        """The next frame's body, None until it is whole; it is valid until `room` is asked for again.

        Raises `ChannelError` when it claims to be too long.
        """
        body_start = self._start + _LENGTH.size
        if self._stop < body_start:
            return None
        (length,) = _LENGTH.unpack_from(self._view, self._start)
        if length > self._max_bytes:
            raise ChannelError(f"a message claims {length} bytes, more than the {self._max_bytes} allowed")
        if self._stop < body_start + length:
            return None
        self._start = body_start + length
        return self._view[body_start : self._start]
