"""Writes a recording while the engine runs: the engine only queues records, a thread packs and writes them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import zstandard
from schedtop.engine.contract.files.output_files import PRIVATE_FILE
from schedtop.engine.contract.telemetry import FinishReason, Header, Snapshot, StepRecord, TextDelta
from schedtop.engine.recording.batch import MAX_ROWS, encode_batch
from schedtop.engine.recording.blocks import MAX_IDS, Tables, tables_of
from schedtop.engine.recording.frames import (
    MARK,
    MAX_RAW_BYTES,
    FrameKind,
    FrameSpan,
    Marks,
    RecordingError,
    make_frame,
)
from schedtop.engine.recording.keyframes import encode_keyframe
from schedtop.engine.recording.lost_file import NEW_FILE, Loss, copy_bytes, loss_of, open_beside
from schedtop.engine.recording.seconds import encode_seconds, sample, second_of

BATCH_RECORDS = 256
SEGMENT_RECORDS = 1024
MAX_SEGMENT_RECORDS = 4096
KEYFRAME_SHARE = 0.15
"""A large snapshot is written less often, so that keyframes stay below about this share of the file."""
FLUSH_S = 0.5
"""A killed process loses at most what it recorded since the last flush."""
MAX_QUEUED = 4096
STALLED_S = 5.0

_LEVEL = 6


def check_new(path: str) -> None:
    """Raises `RecordingError` unless a recording can be started at `path`; leaves nothing behind."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(path)
    except OSError as error:
        raise RecordingError(_refusal(path, error)) from None


def _refusal(path: str, error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return f"{path} exists already: choose another name, or remove it first"
    return f"cannot write {path}: {error.strerror or error}"


class RecordingMovedError(OSError):
    """The recording is not where it should be, because its file was removed; a notice has said so."""


class RecordingWriter:
    """A sink that keeps every record. `snapshot` is called in the engine's thread, between steps.

    Raises `RecordingError` when the file cannot be started or exists. `write` raises `OSError` once the file can take
    no more; what was written before stays readable. Without `keep_text`, previews and texts are left out.

    A file that is removed, replaced or cut while it is written continues in a new one beside it; `notice` is told
    so, in the engine's thread.
    """

    def __init__(
        self,
        path: str | Path,
        header: Header,
        snapshot: Callable[[], Snapshot],
        *,
        keep_text: bool = False,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path = str(path)
        self._snapshot = snapshot
        self._keep_text = keep_text
        self._notice = notice
        self._num_reported = self._restarts = 0
        self._queue: deque[StepRecord | Snapshot | TextDelta] = deque()
        self._since_keyframe = 0
        self._wake = threading.Event()
        self._room = threading.Event()
        self._closing = False
        self._file = _File(self.path, header, keep_text)
        self._queue.append(snapshot())
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def write(self, record: StepRecord, encoded: bytes = b"") -> None:
        """Queue one record; waits only if the disk is far behind. Raises `OSError` once recording has ended."""
        if self._file.error is not None or len(self._queue) >= MAX_QUEUED:
            self._check_room()
        if self._num_reported < len(self._file.losses):
            self._tell_losses()
        self._queue.append(record)
        self._since_keyframe += 1
        if self._since_keyframe >= self._file.segment_records or self._restarts != self._file.restarts:
            self._since_keyframe = 0
            self._restarts = self._file.restarts
            self._queue.append(self._snapshot())
        if self._since_keyframe % BATCH_RECORDS == 0:
            self._wake.set()

    def text(self, delta: TextDelta) -> None:
        """Queue a piece of output text; dropped unless texts are kept."""
        if self._keep_text and self._file.error is None:
            self._queue.append(delta)

    def close(self) -> None:
        """Write what is queued and the end mark.

        Raises `OSError` if the recording is not whole, `RecordingMovedError` if it is not where it should be.
        """
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(2 * STALLED_S)
        if self._thread.is_alive():
            raise OSError(f"cannot write {self.path}: the disk took nothing for {2 * STALLED_S:g} s")
        self._tell_losses()
        if self._file.error is not None:
            raise OSError(self._file.error)
        if self._file.losses:
            raise RecordingMovedError(self._file.losses[-1])

    def _tell_losses(self) -> None:
        for line in self._file.losses[self._num_reported :]:
            self._num_reported += 1
            self._notice(line)

    def _check_room(self) -> None:
        deadline_s = time.monotonic() + STALLED_S
        while self._file.error is None and len(self._queue) >= MAX_QUEUED:
            if time.monotonic() >= deadline_s:
                self._file.error = f"{self.path}: the disk took nothing for {STALLED_S:g} s"
            self._room.clear()
            self._wake.set()
            self._room.wait(0.1)
        if self._file.error is not None:
            raise OSError(self._file.error)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            self._drain()
        self._drain()
        self._file.close()

    def _drain(self) -> None:
        queue = self._queue
        for _ in range(len(queue)):
            self._file.add(queue.popleft())
            if len(queue) < MAX_QUEUED // 2:
                self._room.set()
        self._file.flush()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _File:
    """The file as its thread writes it. An error ends it: the torn frame is cut off and `error` says why."""

    def __init__(self, path: str, header: Header, keep_text: bool) -> None:
        self.error: str | None = None
        self.losses: list[str] = []
        self.wants_keyframe = False
        self.restarts = 0
        self.segment_records = SEGMENT_RECORDS
        self._path = self._asked_path = path
        self._header = header
        self._keep_text = keep_text
        self._block_size = header.block_size
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)
        self._batch: list[StepRecord] = []
        self._tables: Tables = {}
        self._weight = 0
        self._open_second: list[StepRecord] = []
        self._texts: list[tuple[int, int, str]] = []
        self._num_records = 0
        self._last: StepRecord | None = None
        self._keyframe_bytes = self._segment_bytes = 0
        self._size = 0
        try:
            self._fd = os.open(path, NEW_FILE, PRIVATE_FILE)
        except OSError as error:
            raise RecordingError(_refusal(path, error)) from None
        try:
            self._write_start()
        except OSError as error:
            os.close(self._fd)
            os.unlink(path)
            raise RecordingError(_refusal(path, error)) from None

    def _write_start(self) -> None:
        self._append(MARK)
        self._frame(FrameKind.HEADER, msgspec.msgpack.encode(self._header), FrameSpan())

    def _stay_whole(self) -> None:
        """Go on beside the file where another took it away; what it held goes along where we still have it."""
        loss = loss_of(self._fd, self._path, self._size)
        if loss is None:
            return
        lost, before = self._path, self._fd
        self._fd, self._path = open_beside(self._asked_path)
        try:
            if loss is Loss.CHANGED:
                self._start_over()
            else:
                copy_bytes(before, self._fd, self._size)
        finally:
            os.close(before)
        kept = "what it held is lost, " if loss is Loss.CHANGED else ""
        self.losses.append(f"{lost} {loss} while it was written: {kept}the recording goes on in {self._path}")

    def _start_over(self) -> None:
        """Without what came before, nothing can be read until there is a keyframe."""
        self._batch, self._texts, self._open_second, self._weight = [], [], [], 0
        self._num_records, self._last, self._size = 0, None, 0
        self.wants_keyframe = True
        self.restarts += 1
        self._write_start()

    def add(self, item: StepRecord | Snapshot | TextDelta) -> None:
        """Take one queued item; full batches and keyframes are written at once."""
        self._guard(lambda: self._take(item))

    def _take(self, item: StepRecord | Snapshot | TextDelta) -> None:
        if self.wants_keyframe and not isinstance(item, Snapshot):
            return
        if isinstance(item, StepRecord):
            self._add_record(item)
        elif isinstance(item, TextDelta):
            self._texts.append((self._num_records + len(self._batch), item.number, item.text))
        else:
            self.flush()
            self.wants_keyframe = False
            self._guard(lambda: self._write_keyframe(item))

    def flush(self) -> None:
        """Write what was added."""
        if self._batch or self._texts:
            self._guard(self._stay_whole)
        if self._batch or self._texts:
            self._guard(self._write_batch)

    def close(self) -> None:
        """Mark the end and close."""
        self.flush()
        self._guard(self._stay_whole)
        self._guard(self._write_end)
        if self.error is None:
            os.close(self._fd)
            if self.wants_keyframe:  # a file that was started when nothing was left to record
                os.unlink(self._path)
                self.losses[-1] += ", where nothing came any more"

    def _add_record(self, record: StepRecord) -> None:
        weight = len(record.rows) // 36 + len(record.changed_blocks) // 4
        weight += len(record.grown_blocks) // 4
        if self._weight + weight > min(MAX_ROWS, MAX_IDS) // 4:
            self.flush()
        self._batch.append(record if self._keep_text else _without_text(record))
        self._weight += weight
        if len(self._batch) >= BATCH_RECORDS:
            self.flush()

    def _guard(self, write: Callable[[], None]) -> None:
        """Do one write; any failure ends the recording, never the engine."""
        if self.error is not None:
            return
        try:
            write()
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.error = f"cannot write {self._path}: {reason}"
            self._batch, self._texts, self._open_second = [], [], []
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            os.close(self._fd)

    def _write_batch(self) -> None:
        batch, self._batch, self._weight = self._batch, [], 0
        first = self._num_records
        if batch:
            span = FrameSpan(len(batch), first, batch[0].step, batch[0].start_s, batch[-1].end_s)
            self._frame(
                FrameKind.STEPS, encode_batch(batch, self._block_size, self._tables), span, _marks_of(batch)
            )
            self._num_records += len(batch)
            self._last = batch[-1]
            self._write_seconds(batch)
        if self._texts:
            texts, self._texts = self._texts, []
            self._frame(FrameKind.TEXTS, msgspec.msgpack.encode(texts), self._here())

    def _write_seconds(self, batch: list[StepRecord]) -> None:
        """Write the samples of every second that these records completed; keep the last one open."""
        closed = []
        for record in batch:
            if self._open_second and second_of(record) != second_of(self._open_second[0]):
                closed.append(sample(second_of(self._open_second[0]), self._open_second))
                self._open_second = []
            self._open_second.append(record)
        if closed:
            span = FrameSpan(0, self._num_records, 0, closed[0].second, closed[-1].second)
            self._frame(FrameKind.SECONDS, encode_seconds(closed), span)

    def _write_keyframe(self, snapshot: Snapshot) -> None:
        if self._keyframe_bytes:
            wanted = self._keyframe_bytes / KEYFRAME_SHARE / max(1, self._segment_bytes) * self.segment_records
            self.segment_records = int(min(max(wanted, SEGMENT_RECORDS), MAX_SEGMENT_RECORDS))
        raw = encode_keyframe(snapshot, self._keep_text)
        if len(raw) > MAX_RAW_BYTES and self._keyframe_bytes:
            return  # a segment without a keyframe of its own continues from the one before
        before = self._size
        self._frame(FrameKind.KEYFRAME, raw, self._here())
        self._keyframe_bytes, self._segment_bytes = self._size - before, 0
        self._tables = tables_of(snapshot)

    def _write_end(self) -> None:
        step = self._last.step if self._last else 0
        self._frame(FrameKind.END, msgspec.msgpack.encode([self._num_records, step]), self._here())

    def _here(self) -> FrameSpan:
        last = self._last
        return FrameSpan(0, self._num_records, last.step if last else 0, last.end_s if last else 0.0)

    def _frame(self, kind: FrameKind, raw: bytes, span: FrameSpan, marks: Marks | None = None) -> None:
        self._append(make_frame(kind, raw, self._zstd, span, marks))

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._size += len(data)
        self._segment_bytes += len(data)


def _without_text(record: StepRecord) -> StepRecord:
    if not any(arrival.preview for arrival in record.arrivals):
        return record
    arrivals = (msgspec.structs.replace(arrival, preview="") for arrival in record.arrivals)
    return msgspec.structs.replace(record, arrivals=tuple(arrivals))


def _marks_of(batch: list[StepRecord]) -> Marks:
    itl_s = np.frombuffer(b"".join([record.itl_s for record in batch]), dtype=np.float32)
    ttft_s = [wait_s for record in batch for _, wait_s in record.ttft_s]
    finishes = [finish for record in batch for finish in record.finishes]
    preemptions = [preemption for record in batch for preemption in record.preemptions]
    return Marks(
        preemptions=len(preemptions),
        loops=sum(preemption.loop for preemption in preemptions),
        knobs=sum(len(record.knobs) for record in batch),
        refusals=sum(len(record.refusals) for record in batch),
        aborts=sum(finish.reason in (FinishReason.ABORT, FinishReason.KV_CAPACITY) for finish in finishes),
        max_ttft_s=max(ttft_s, default=0.0),
        max_itl_s=float(np.fmax.reduce(itl_s, initial=0.0)),
    )
