"""Flights of crashed engines on disk: offered at the next start, opened as recordings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path
from schedtop.console.cli.errors import CommandError
from schedtop.engine.channel.protocol import FrameBuffer, decode_outgoing
from schedtop.engine.contract.telemetry import Header, Outgoing, Snapshot, StepRecord
from schedtop.engine.serving.flight.files import HEADER, SEGMENTS, crashed, is_flying

RECORDING = "flight.schedtop"
_OFFERED = "offered"
_MOST_FRAME_BYTES = 1 << 26


def flights_root() -> Path:
    """Where engines keep their last minutes."""
    return user_state_path("schedtop") / "flights"


def offer() -> str:
    """One line about an engine that crashed since the last start, and the command that opens its last minutes; empty if
    none."""
    for folder in crashed(flights_root()):
        with suppress(FileExistsError, OSError):
            (folder / _OFFERED).touch(mode=0o600, exist_ok=False)
            began = time.strptime("-".join(folder.name.split("-")[:2]), "%Y%m%d-%H%M%S")
            at = time.strftime("%H:%M:%S on %d %b", began)
            return f"the engine started at {at} did not end in order: schedtop replay {folder}"
    return ""


def is_flight(path: Path) -> bool:
    """True for a folder of such last minutes."""
    return (path / HEADER).is_file()


def as_recording(folder: Path) -> Path:
    """The recording of a crashed engine's last minutes, made at first use. Raises `CommandError`, `ChannelError`."""
    from schedtop.console.past.state import LiveState  # late: the console starts without
    from schedtop.engine.recording import RecordingWriter

    path = folder / RECORDING
    if path.exists():
        return path
    if is_flying(folder):
        raise CommandError(f"{folder}: this engine still runs: attach to it, and record it with W")
    messages = _messages(folder)
    header = next(messages, None)
    if not isinstance(header, Header):
        raise CommandError(f"{folder} holds no steps")
    state, writer = LiveState(), None
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    for message in messages:
        if isinstance(message, Snapshot) and writer is None:
            state.start_afresh(message)
            writer = RecordingWriter(unfinished, header, state.snapshot)
        elif isinstance(message, StepRecord) and writer is not None:
            state.apply(message)
            writer.write(message)
    if writer is None:
        raise CommandError(f"{folder} holds no steps")
    writer.close()
    return unfinished.rename(path)


def _messages(folder: Path) -> Iterator[Outgoing]:
    """The header, snapshots and records, as far as they were written whole."""
    for path in (folder / HEADER, *sorted(folder.glob(SEGMENTS))):
        frames = FrameBuffer(_MOST_FRAME_BYTES)
        frames.feed(path.read_bytes())
        while (body := frames.next()) is not None:
            yield decode_outgoing(body)
