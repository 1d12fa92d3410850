"""Length-prefixed messages between the console and a helper process."""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct("<I")


def write_message(stream: IO[bytes], body: bytes) -> None:
    """Write one message. Raises `OSError` if the reader is gone."""
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end, also in the middle of one."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    body = stream.read(size)
    return body if len(body) == size else None
