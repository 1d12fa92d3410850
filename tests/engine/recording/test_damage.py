"""Whatever happens to a file: what is before the damage is read, the rest is one line, and nothing hangs."""

from __future__ import annotations

import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from schedtop.engine.contract import telemetry as t
from schedtop.engine.recording import Mark, Recording, RecordingError, RecordingWriter
from schedtop.engine.recording.batch import StoredBatch, decode_batch, encode_batch
from schedtop.engine.recording.frames import FORMAT, MARK, FrameKind, FrameSpan, make_frame

from tests.thorough import pick

MUTATIONS = int(os.environ.get("SCHEDTOP_MUTATIONS") or pick(400, thorough=1500))
"""Set it to 100000 for a long run."""

COMPRESSOR = zstandard.ZstdCompressor()


def small_run(run: Any) -> Any:
    """The run with snapshots of a few blocks, so that a recording of it is a few kilobytes."""
    snapshots = [msgspec.structs.replace(s, requests=s.requests[:2], block_classes=b"") for s in run.snapshots[:40]]
    return type(run)(run.header, run.records[:39], snapshots)


@pytest.fixture
def small(run: Any, tmp_path: Path, short_chunks: None) -> bytes:
    return bytes(small_run(run).record_to(tmp_path / "small.schedtop", 20).read_bytes())


def read_all(path: Path, expected: list[t.StepRecord], check: bool | None = None) -> tuple[int, str | None]:
    """Everything a reader can ask of a damaged file; returns how much came back, all of which must be true."""
    with Recording(path, check=check) as recording:
        got = list(recording.records())
        assert got == there(recording, expected)[: len(got)]
        assert recording.num_records == len(got)
        recording.seconds(0, 1000)
        recording.find(Mark.KNOB, 0)
        recording.keyframe_before(max(0, len(got) - 1))
        list(recording.texts())
        return len(got), recording.truncated


def there(recording: Recording, expected: list[t.StepRecord]) -> list[t.StepRecord]:
    """`expected` without what the recording says is missing."""
    left = list(expected)
    for gap in recording.gaps:
        del left[gap.index : gap.index + gap.num_missing]
    return left


def test_a_flipped_byte_costs_what_lies_before_the_next_keyframe(
    run: Any, tmp_path: Path, short_chunks: None
) -> None:
    path = run.record_to(tmp_path / "run.schedtop")
    with Recording(path) as whole:
        middle = whole.timeline()[len(whole.timeline()) // 2][0]
        flipped_step = whole.record(middle).step
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    num, truncated = read_all(path, run.records)
    assert len(run.records) - 60 <= num < len(run.records)
    with Recording(path) as recording:
        (gap,) = recording.gaps
        first, last = run.records[gap.index].step, run.records[gap.index + gap.num_missing - 1].step
        assert truncated == f"damaged from byte {gap.at_byte} to {gap.to_byte}: steps {first} to {last} are missing"
        assert (recording.num_steps, recording.end_s) == (run.records[-1].step, run.records[-1].end_s)
        assert recording.index_of_step(last) == gap.index, "a step that is missing leads to the next one there is"
        assert abs(first - flipped_step) < 200
        for index in range(0, num, 7):
            snapshot, start = recording.keyframe_before(index)
            assert start <= index and not start < gap.index <= index, "no state is carried across the gap"
            assert snapshot.seq < recording.record(start).seq
    with Recording(path, read_on=False) as recording:
        assert list(recording.records()) == run.records[: gap.index] and not recording.gaps
        assert recording.truncated and "the file is damaged there" in recording.truncated


def test_two_gaps_and_a_cut_end_are_all_told(run: Any, tmp_path: Path, short_chunks: None) -> None:
    path = run.record_to(tmp_path / "run.schedtop")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    data[2 * len(data) // 3] ^= 1
    path.write_bytes(data[:-3])
    _, truncated = read_all(path, run.records)
    assert truncated and truncated.count("are missing; ") == 2 and truncated.endswith(str(run.records[-1].step))


def test_what_only_looks_like_frames_ends_the_search(small: bytes, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "crafted.schedtop"
    path.write_bytes(small[:-300] + b"\xf5ST\xaf" * (1 << 20))
    _, truncated = read_all(path, run.records)
    assert truncated and "cannot be read" in truncated


def test_cut_at_any_byte_the_prefix_is_recovered(small: bytes, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "cut.schedtop"
    recovered = [0]
    for size in range(0, len(small), pick(5, thorough=1)):
        path.write_bytes(small[:size])
        try:
            with Recording(path) as recording:
                num, truncated = recording.num_records, recording.truncated
        except RecordingError as error:
            assert recovered == [0], "once something is readable, more bytes never make it less"
            assert str(path) in str(error) and "\n" not in str(error)
            continue
        assert truncated is not None and "\n" not in truncated
        assert num >= recovered[-1]
        if num > recovered[-1]:
            assert read_all(path, run.records) == (num, truncated)
        recovered.append(num)
    assert sorted(set(recovered)) == [0, 8, 16, 20], "batches come back as soon as they are whole"
    path.write_bytes(small)
    assert read_all(path, run.records) == (20, None)


def test_what_was_cut_is_told(small: bytes, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "cut.schedtop"
    path.write_bytes(small[:-3])
    _, truncated = read_all(path, run.records)
    last = run.records[19].step
    assert truncated and truncated.endswith(f"cut off in the middle; the last good step is {last}")
    path.write_bytes(small + b"garbage")
    assert read_all(path, run.records) == (20, f"7 bytes follow its end; the last good step is {last}")


def mutate(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(damaged))
        match rng.randrange(5):
            case 0:
                damaged[at] ^= 1 << rng.randrange(8)
            case 1:
                damaged[at] = rng.randrange(256)
            case 2:
                del damaged[at : at + rng.randrange(1, 40)]
            case 3:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                damaged[at : at + 8] = rng.choice([b"\0" * 8, b"\xff" * 8])
        if not damaged:
            damaged = bytearray(b"\0")
    return bytes(damaged)


@pytest.mark.parametrize("check", [True, False])
def test_no_mutation_gives_wrong_steps_or_another_exception(
    small: bytes, run: Any, tmp_path: Path, check: bool
) -> None:
    path = tmp_path / "mutated.schedtop"
    rng = random.Random(1)
    prefixes = 0
    for _ in range(MUTATIONS):
        path.write_bytes(mutate(small, rng))
        try:
            num, _ = read_all(path, run.records, check)
            prefixes += num > 0
        except RecordingError as error:
            assert "\n" not in str(error)
    if check:
        assert prefixes > MUTATIONS // 5, "damage far behind does not cost the steps before it"


def test_no_mutated_batch_gives_another_exception(run: Any) -> None:
    """Behind a valid checksum, as only a crafted file has it."""
    whole = encode_batch(run.records[:8], run.header.block_size, {})
    rng = random.Random(2)
    for _ in range(MUTATIONS):
        with suppress(ValueError, TypeError, IndexError, KeyError, OverflowError):
            decode_batch(mutate(whole, rng), run.header.block_size, {})


def crafted(tmp_path: Path, run: Any, *frames: bytes) -> Path:
    path = tmp_path / "crafted.schedtop"
    header = make_frame(FrameKind.HEADER, msgspec.msgpack.encode(run.header), COMPRESSOR, FrameSpan())
    keyframe = make_frame(FrameKind.KEYFRAME, msgspec.msgpack.encode(run.snapshots[0]), COMPRESSOR, FrameSpan())
    path.write_bytes(MARK + header + keyframe + b"".join(frames))
    return path


def bomb() -> bytes:
    """A payload of a few kilobytes that claims and holds gigabytes."""
    raw = bytes(1 << 20)
    compressor = zstandard.ZstdCompressor().compressobj(size=4 << 30)
    return b"".join(compressor.compress(raw) for _ in range(4 << 10)) + compressor.flush()


def batch_of(**changes: Any) -> Callable[[Any], bytes]:
    def build(run: Any) -> bytes:
        raw = encode_batch(run.records[:8], run.header.block_size, {})
        batch = msgspec.msgpack.decode(raw, type=StoredBatch)
        return msgspec.msgpack.encode(msgspec.structs.replace(batch, **changes))

    return build


@pytest.mark.parametrize(
    "raw",
    [
        lambda run: bytes(60 << 20),
        lambda run: b"\x91" * (1 << 20),
        batch_of(num_records=1 << 31),
        batch_of(num_records=4096),
        batch_of(row_counts=("c", 1 << 20, b"")),
        batch_of(row_counts=("c", (1 << 31) - 1, b"")),
        batch_of(rows=[("c", 1 << 63, b"")] * 8),
        batch_of(gaps=("z", 0, b"")),
    ],
)
def test_a_crafted_batch_takes_little_memory(run: Any, tmp_path: Path, raw: Callable[[Any], bytes]) -> None:
    path = crafted(tmp_path, run, make_frame(FrameKind.STEPS, raw(run), COMPRESSOR, FrameSpan(8, 0, 1)))
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="damaged"), Recording(path) as recording:
            list(recording.records())
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


def test_a_decompression_bomb_is_damage(run: Any, tmp_path: Path) -> None:
    frame = bytearray(make_frame(FrameKind.STEPS, b"x", COMPRESSOR, FrameSpan(8, 0, 1)))
    payload = bomb()
    struct.pack_into("<III", frame, 8, len(payload), 1000, zlib.crc32(payload))
    struct.pack_into("<I", frame, 84, zlib.crc32(bytes(frame[:84])))
    path = crafted(tmp_path, run, bytes(frame[:88]) + payload)
    tracemalloc.start()
    try:
        with Recording(path) as recording:
            assert recording.num_records == 0
            assert recording.truncated and "damaged" in recording.truncated
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not a schedtop recording"),
        (b"PK\x03\x04 something else", "is not a schedtop recording"),
        (MARK[:5], "is cut off within its first 16 bytes"),
        (MARK.replace(b"\r\n", b"\n"), "line ends were changed"),
        (MARK[:13] + b"\x07\0\0", f"has recording format 7, this schedtop reads {FORMAT}"),
        (MARK, "is damaged in its first bytes"),
        (MARK + bytes(500), "is damaged in its first bytes"),
    ],
)
def test_other_files_are_named(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=reason):
        Recording(path)


def test_another_protocol_is_named(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    raw = msgspec.msgpack.encode([2, 99, "who knows"])
    path.write_bytes(MARK + make_frame(FrameKind.HEADER, raw, COMPRESSOR, FrameSpan()))
    with pytest.raises(RecordingError, match=f"was recorded with protocol 99, this schedtop reads {t.PROTOCOL}"):
        Recording(path)
    with pytest.raises(RecordingError, match="No such file"):
        Recording(tmp_path / "absent")
    with pytest.raises(RecordingError, match="cannot read"):
        Recording(tmp_path)


WRITER = """
import sys, pickle
from schedtop.engine.recording import RecordingWriter
header, snapshot, records = pickle.load(sys.stdin.buffer)
writer = RecordingWriter(sys.argv[1], header, lambda: snapshot)
for record in records:
    writer.write(record)
print("written", flush=True)
sys.stdin = open(sys.argv[2])
sys.stdin.read()
"""


def num_readable(path: Path) -> int:
    """The writer flushes from a thread of its own: before its first keyframe the file says one clear line."""
    try:
        with Recording(path) as recording:
            return recording.num_records
    except RecordingError as error:
        assert "nothing can be read" in str(error)
        return 0


def test_a_killed_writer_loses_nothing_it_flushed(run: Any, tmp_path: Path) -> None:
    """The writer is idle when it is killed: all it took longer ago than its flush interval must be there."""
    os.mkfifo(tmp_path / "never")
    path = tmp_path / "killed.schedtop"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(tmp_path / "never")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    pickle.dump((run.header, run.snapshots[0], run.records[:300]), process.stdin)
    process.stdin.close()
    assert process.stdout.readline() == b"written\n"
    deadline_s = time.monotonic() + 30
    while num_readable(path) < 300 and time.monotonic() < deadline_s:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    num, truncated = read_all(path, run.records)
    assert num == 300
    assert truncated == f"the recording was never closed; the last good step is {run.records[299].step}"


def test_a_full_disk_ends_the_recording_and_leaves_a_prefix(
    run: Any, tmp_path: Path, short_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system takes a few kilobytes and then nothing, in the middle of a frame."""
    left = 60_000
    real = os.write

    def write(fd: int, data: Any) -> int:
        nonlocal left
        part = bytes(data)[: min(len(data), left, 1000)]
        if not part:
            raise OSError(28, "No space left on device")
        left -= len(part)
        return real(fd, part)

    monkeypatch.setattr("schedtop.engine.recording.writer.os.write", write)
    path = tmp_path / "full.schedtop"
    writer = RecordingWriter(path, run.header, lambda: run.snapshots[0])
    with pytest.raises(OSError, match=r"full\.schedtop: No space left on device"):
        for record in run.records * 50:
            writer.write(record)
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    monkeypatch.undo()
    num, truncated = read_all(path, run.records)
    assert num > 0 and truncated and "never closed" in truncated
