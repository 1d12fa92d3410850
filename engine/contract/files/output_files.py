"""Output files: named in errors, and either whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of files and folders that hold prompts or outputs, whatever the umask."""


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, for their owner only. Raises `OSError`."""
    if folder.parent != folder and not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def open_new(path: Path) -> BinaryIO:
    """A new file for its owner only. Raises `FileExistsError`, `OSError`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE), "wb")


def private(path: str, flags: int) -> int:
    """An opener for `open`: a file that it makes is its owner's only."""
    return os.open(path, flags, PRIVATE_FILE)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Makes an `OSError` from inside name `path`: errors of writing to an open file do not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """An owner-only file that gets its name once all of it is written. Raises `OSError` naming a file."""
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.unlink(missing_ok=True)
        with named(path), open_new(unfinished) as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
