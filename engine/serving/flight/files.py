"""The last minutes of an engine on disk, where they outlive a crash.

A flight is a folder of the engine's own: `header`, locked while the engine lives, and segments of frames as the channel
sends them. A clean exit removes it. A flight whose lock is not held belongs to an engine that crashed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from schedtop.engine.channel.protocol import encode, frame
from schedtop.engine.contract.files.output_files import PRIVATE_FILE, PRIVATE_FOLDER, make_folder
from schedtop.engine.contract.telemetry import Header

FLUSH_S = 0.5
"""A killed engine loses at most what it did since the last flush."""
MOST_UNWRITTEN_BYTES = 8 << 20
"""A disk that accepts nothing for this long ends the flight."""
KEPT_FLIGHTS = 3
KEPT_S = 7 * 86400.0
HEADER, SEGMENTS = "header", "*.frames"


class FlightFiles:
    """Writes a flight below `root` on its own thread. Raises `OSError` if it cannot be started.

    A disk that fails later ends the flight; `error` then says why.
    """

    def __init__(self, root: Path, header: Header) -> None:
        make_folder(root)
        sweep(root)
        self.error = ""
        self.folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.folder.mkdir(mode=PRIVATE_FOLDER)
        self._lock = os.open(self.folder / HEADER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, b"".join(frame(encode(header))))
        self._orders: deque[bytes | Callable[[], None]] = deque()
        self._num_given = self._num_written = 0
        self._made: deque[Path] = deque()
        self._file = -1
        self._number = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flight-files", daemon=True)
        self._thread.start()

    def begin(self, snapshot: bytes) -> None:
        """Start a new segment with that frame."""
        self._orders.append(self._open_next)
        self.add(frame(snapshot))

    def add(self, frames: Sequence[bytes]) -> None:
        """Append frames to the newest segment."""
        self._orders.extend(frames)
        self._num_given += sum(map(len, frames))
        if self._num_given - self._num_written > MOST_UNWRITTEN_BYTES:
            self.error = "the disk is too slow"

    def forget(self) -> None:
        """Remove the oldest segment."""
        self._orders.append(lambda: self._made.popleft().unlink(missing_ok=True))

    def close(self, keep: bool) -> None:
        """End the thread; the flight stays if it is to be kept."""
        self._closing.set()
        self._thread.join()
        os.close(self._lock)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        while not self.error and not self._closing.is_set():
            self._closing.wait(FLUSH_S)
            try:
                self._flush()
            except OSError as error:
                self.error = error.strerror or str(error)
        self._orders.clear()
        if self._file >= 0:
            os.close(self._file)

    def _flush(self) -> None:
        frames: list[bytes] = []
        for _ in range(len(self._orders)):
            order = self._orders.popleft()
            if isinstance(order, bytes):
                frames.append(order)
                continue
            self._write(b"".join(frames))
            frames = []
            order()
        self._write(b"".join(frames))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._num_written += len(data)

    def _open_next(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._number += 1
        path = self.folder / f"{self._number:08d}.frames"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        self._made.append(path)


def crashed(root: Path) -> list[Path]:
    """Flights of engines that did not exit cleanly, newest first."""
    return [folder for folder in _flights(root) if any(folder.glob(SEGMENTS)) and not is_flying(folder)]


def is_flying(folder: Path) -> bool:
    """True while the engine of a flight is alive."""
    try:
        lock = os.open(folder / HEADER, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def sweep(root: Path) -> None:
    """Remove flights of dead engines: all but the newest, and old ones."""
    left = KEPT_FLIGHTS
    for folder in _flights(root):
        if is_flying(folder):
            continue
        left -= 1
        with suppress(OSError):
            if left < 0 or time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder)


def discard(root: Path, process: int) -> None:
    """Remove the flight of an engine that was stopped on purpose."""
    for folder in root.glob(f"*-{process}"):
        if not is_flying(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _flights(root: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted((path for path in root.iterdir() if (path / HEADER).exists()), reverse=True)
