"""A recording's file format: a mark, then frames that can each be checked and read alone.

    file    = MARK, frame...            the first frame is the header; the last one of a closed file is the end
    frame   = head (88 bytes), payload  the payload is zstd; the head has lengths, checksums and what seeking needs
    segment = a keyframe and the frames up to the next one

Files are only ever appended to. Whatever is cut off or flipped, the frames before it stay readable.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import zstandard

FORMAT = 2
MARK_BYTES = 16
_NAME = b"\x8aschedtop\r\n\x1a\n"
MARK = (_NAME + bytes([FORMAT])).ljust(MARK_BYTES, b"\0")
"""Begins every file; the line ends in it reveal a transfer that changed them."""

MAX_RAW_BYTES = 64 << 20
"""Of one frame: bounds what a reader allocates, whatever a file claims."""

_SYNC = b"\xf5ST\xaf"
_WINDOW_BYTES = 1 << 20
_MOST_TRIES = 1 << 18
"""A crafted file may be full of apparent frames: the search for the next one must end."""
_HEAD = struct.Struct("<4sB3xIIIIQQdd5I2f")
_CHECK = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECK.size


class RecordingError(Exception):
    """A recording cannot be written or read; the text is one line that names the file."""


class FrameError(ValueError):
    """A frame that is cut off, damaged or too large."""


class FrameKind(IntEnum):
    """What a frame holds."""

    HEADER = 1
    KEYFRAME = 2
    STEPS = 3
    SECONDS = 4
    TEXTS = 5
    END = 6


class Marks(NamedTuple):
    """How often what one jumps to happens in a frame, and its longest latencies in seconds (0: none).

    `aborts` are all early ends: answers cut off by a full pool among them.
    """

    preemptions: int = 0
    loops: int = 0
    knobs: int = 0
    refusals: int = 0
    aborts: int = 0
    max_ttft_s: float = 0.0
    max_itl_s: float = 0.0


class FrameSpan(NamedTuple):
    """Which records a frame is about: how many, the index of the first (or of the next, if it holds none), the
    first one's step, and the engine time they cover."""

    num: int = 0
    first: int = 0
    first_step: int = 0
    start_s: float = 0.0
    end_s: float = 0.0


class FrameHead(NamedTuple):
    """The head before a payload."""

    kind: FrameKind
    payload_bytes: int
    raw_bytes: int
    payload_crc: int
    span: FrameSpan
    marks: Marks


class Frame(NamedTuple):
    """A frame's head, and where its payload is."""

    payload_at: int
    head: FrameHead


def make_frame(
    kind: FrameKind, raw: bytes, zstd: zstandard.ZstdCompressor, span: FrameSpan, marks: Marks | None = None
) -> bytes:
    """A whole frame. Raises `FrameError` if `raw` is longer than a reader takes."""
    if len(raw) > MAX_RAW_BYTES:
        raise FrameError(f"a frame of {len(raw)} bytes is more than the {MAX_RAW_BYTES} a reader takes")
    payload = zstd.compress(raw)
    sizes = (len(payload), len(raw), zlib.crc32(payload))
    head = _HEAD.pack(_SYNC, kind, *sizes, *span, *(marks or Marks()))
    return head + _CHECK.pack(zlib.crc32(head)) + payload


def parse_head(data: bytes) -> FrameHead:
    """The head at the start of `data`. Raises `FrameError`."""
    if len(data) < HEAD_BYTES:
        raise FrameError("cut off")
    if _CHECK.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]):
        raise FrameError("damaged")
    sync, kind, payload_bytes, raw_bytes, crc, *rest = _HEAD.unpack_from(data)
    known = sync == _SYNC and kind in FrameKind.__members__.values()
    if not known or raw_bytes > MAX_RAW_BYTES or payload_bytes > 2 * MAX_RAW_BYTES:
        raise FrameError("damaged")
    return FrameHead(FrameKind(kind), payload_bytes, raw_bytes, crc, FrameSpan(*rest[:5]), Marks(*rest[5:]))


def moved_down(frame: Frame, num_missing: int) -> Frame:
    """The frame as it counts where so many records before it are missing."""
    span = frame.head.span
    return frame._replace(head=frame.head._replace(span=span._replace(first=span.first - num_missing)))


def find_frames(fd: int, at: int, size: int, kind: FrameKind) -> Iterator[int]:
    """Where frames of `kind` may begin from byte `at` on, judged by their heads alone. Raises `OSError`."""
    tries = 0
    while at < size and tries < _MOST_TRIES:
        window = os.pread(fd, _WINDOW_BYTES, at)
        place = window.find(_SYNC)
        while place >= 0 and tries < _MOST_TRIES:
            tries += 1
            try:
                if parse_head(os.pread(fd, HEAD_BYTES, at + place)).kind is kind:
                    yield at + place
            except FrameError:
                pass
            place = window.find(_SYNC, place + 1)
        at += max(1, len(window) - len(_SYNC) + 1)


def read_payload(fd: int, frame: Frame) -> bytes:
    """A frame's contents, checked and decompressed. Raises `FrameError`, or `OSError` if the disk fails."""
    head = frame.head
    payload = os.pread(fd, head.payload_bytes, frame.payload_at)
    if len(payload) != head.payload_bytes:
        raise FrameError("cut off")
    if zlib.crc32(payload) != head.payload_crc:
        raise FrameError("damaged")
    try:
        # The size is taken from the payload itself, which a hostile file may set to anything.
        if zstandard.frame_content_size(payload) != head.raw_bytes:
            raise FrameError("damaged")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=head.raw_bytes)
    except zstandard.ZstdError:
        raise FrameError("damaged") from None


def check_mark(data: bytes, path: str) -> None:
    """Raises `RecordingError` unless `data` begins a recording that this version reads."""
    name = len(_NAME)
    if data[:name] != _NAME[: len(data)] or not data:
        if data[: name - 4] == _NAME[: name - 4]:
            raise RecordingError(f"{path}: its line ends were changed in transfer; copy it in binary mode")
        raise RecordingError(f"{path} is not a schedtop recording")
    if len(data) < MARK_BYTES:
        raise RecordingError(f"{path} is cut off within its first {MARK_BYTES} bytes: nothing can be read")
    if data[name] != FORMAT:
        raise RecordingError(f"{path} has recording format {data[name]}, this schedtop reads {FORMAT}")
