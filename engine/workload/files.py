"""Lines of a trace file, in any compression."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO, cast

import zstandard
from schedtop.engine.workload.trace import HEAD_BYTES, BadRowError, Tally, TraceError

MAX_LINE_BYTES = 2**28
"""Longer lines are refused: a compressed file may expand without bound."""

Line = tuple[int, bytes]

_BOM = b"\xef\xbb\xbf"
_UTF_16 = "UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8"
_UNREAD = {
    b"\xfd7zXZ\0": "packed with xz: unpack it, or pack it with gzip or zstd",
    b"BZh": "packed with bzip2: unpack it, or pack it with gzip or zstd",
    b"PK\x03\x04": "a zip archive: unpack it and name the file in it",
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}
"""Magic bytes of unsupported files, and what to do with them."""
_LFS = b"version https://git-lfs"
_ZSTD_FEED_BYTES = 1024
"""Small on purpose: four packed bytes can unfold to 128 KiB."""
_ZSTD_WINDOW_BYTES = 2**27


def open_file(path: Path) -> io.BufferedReader:
    """The file, opened; raises `TraceError` if it cannot be read, is empty or is only a Git LFS pointer."""
    try:
        file = path.open("rb")
        head = file.peek(HEAD_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    problem = None
    if not head:
        problem = "the file is empty"
    elif kind := next((kind for magic, kind in _UNREAD.items() if head.startswith(magic)), None):
        problem = f"it is {kind}"
    elif len(head) > 4 and (not any(head[:64:2]) or not any(head[1:64:2])):  # without a byte-order mark
        problem = f"it is {_UTF_16}"
    elif head.startswith(_LFS):
        problem = "a Git LFS pointer, not the data it stands for: fetch it with git lfs pull"
    if problem:
        file.close()
        raise TraceError(f"{path}: {problem}")
    return file


def packing(head: bytes) -> str | None:
    """How a file that begins with `head` is packed, by its magic bytes."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zstd" if head.startswith(b"\x28\xb5\x2f\xfd") else None


def unpacked(file: io.BufferedReader) -> IO[bytes]:
    """The content of `file`, decompressed as it is read."""
    match packing(file.peek(HEAD_BYTES)):
        case "gzip":
            return cast(IO[bytes], gzip.GzipFile(fileobj=file))
        case "zstd":
            return io.BufferedReader(_Zstd(file), buffer_size=2**17)
    return file


def read_lines(file: io.BufferedReader, tally: Tally) -> Generator[Line, None, None]:
    """Number (from 1) and content of each line that is not blank, without line ends and byte-order mark.

    Damage to the packing and lines over `MAX_LINE_BYTES` are reported to the tally and end the file.
    """
    number = 0
    with file, unpacked(file) as stream:
        while True:
            number += 1
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
            except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile):
                return tally.reject(number, BadRowError("the compressed data is damaged or cut short"))
            except OSError as error:
                raise TraceError(f"{tally.name}: cannot be read: {error.strerror or error}") from None
            if not line:
                return None
            if len(line) > MAX_LINE_BYTES:
                return tally.reject(number, BadRowError(f"a line of more than {MAX_LINE_BYTES >> 20} MiB"))
            if number == 1:
                line = line.removeprefix(_BOM)
                if line.startswith(_LFS):
                    raise TraceError(f"{tally.name}: packs a Git LFS pointer, not the data it stands for")
            line = line.strip(b" \t\r\n")
            if line:
                yield number, line


class _Zstd(io.RawIOBase):
    """Zstandard frames one after another; unlike the library's own reader it notices a frame cut short."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._fresh = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
        self._frame = self._fresh()
        self._inside = False
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            packed = self._packed or self._file.read(_ZSTD_FEED_BYTES)
            if not packed:
                if self._inside:
                    raise EOFError
                return 0
            self._ready = memoryview(self._frame.decompress(packed))
            self._inside, self._packed = not self._frame.eof, self._frame.unused_data
            if self._frame.eof:
                self._frame = self._fresh()
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
