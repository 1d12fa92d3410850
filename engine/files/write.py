"""Files that are written: named where that fails, and whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An `OSError` from inside names `path`: those of writing to an open file do not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that has its name only when all is written. Raises `OSError` naming a file."""
    unfinished = path.with_name(path.name + ".part")
    try:
        with named(path), unfinished.open("wb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
