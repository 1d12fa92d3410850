"""What can happen to a recording's file while it is written, and where writing then continues."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from schedtop.engine.contract.files.output_files import PRIVATE_FILE

NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
"""How a recording is opened. Appending shows a cut file by its size; writing on at our place would leave a hole."""

_COPIED_BYTES = 1 << 20
_MOST_BESIDE = 10_000


class Loss(StrEnum):
    """What happened, in words for the operator. The first two leave our own file whole behind its descriptor."""

    REMOVED = "was removed or moved away"
    REPLACED = "was replaced by another file"
    CHANGED = "was cut or written to by another"


def loss_of(fd: int, path: str, size: int) -> Loss | None:
    """What happened to the file behind `fd`, of which `size` bytes were written at `path`; None if it is unchanged."""
    own = os.fstat(fd)
    if own.st_size != size:
        return Loss.CHANGED
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return Loss.REMOVED
    return None if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) else Loss.REPLACED


def open_beside(path: str) -> tuple[int, str]:
    """A new file next to `path`, `run-2.rec` for `run.rec`; its descriptor and path. Raises `OSError`."""
    named = Path(path)

    for number in range(2, _MOST_BESIDE):
        beside = str(named.with_name(f"{named.stem}-{number}{named.suffix}"))
        try:
            return os.open(beside, NEW_FILE, PRIVATE_FILE), beside
        except FileExistsError:
            continue
    raise OSError(f"{named.parent} is full of files called {named.stem}")


def copy_bytes(source: int, target: int, size: int) -> None:
    """The first `size` bytes of one descriptor to the other. Raises `OSError`."""
    at = 0
    while at < size:
        view = memoryview(os.pread(source, min(_COPIED_BYTES, size - at), at))
        if not view:
            raise OSError(f"ended after {at} of {size} bytes")
        at += len(view)
        while view:
            view = view[os.write(target, view) :]
