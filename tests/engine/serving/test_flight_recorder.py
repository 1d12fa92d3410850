"""What a console that attaches late is given: the last minutes, as they were."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from schedtop.console.past.history import History
from schedtop.engine.build import build_engine
from schedtop.engine.channel import encode
from schedtop.engine.channel.protocol import FrameBuffer, decode_outgoing
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Outgoing, Snapshot, StepRecord
from schedtop.engine.serving.flight import recorder as flight_recorder
from schedtop.engine.serving.flight.files import FlightFiles, crashed, is_flying
from schedtop.engine.serving.flight.recorder import FlightRecorder
from schedtop.engine.step.engine import Engine


def engine() -> Engine:
    workload = WorkloadSpec(source="mixed", rate=4.0)
    scheduler = {"num_blocks": 500, "max_num_seqs": 12}
    return build_engine(EngineConfig(device="sim:llama-3.1-8b@l4", workload=workload, scheduler=scheduler))


def messages(recorder: FlightRecorder) -> Iterator[Outgoing]:
    frames = FrameBuffer(1 << 26)
    frames.feed(b"".join(recorder.recent()))
    while (body := frames.next()) is not None:
        yield decode_outgoing(body)


def run(recorder: FlightRecorder, served: Engine, steps: int) -> list[StepRecord]:
    records = []
    while len(records) < steps:
        record = served.step()
        if record is not None:
            recorder.write(record, encode(record))
            records.append(record)
    return records


@pytest.mark.parametrize("keep_s", [600.0, 20.0])
def test_a_console_that_comes_late_knows_the_last_minutes(keep_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "KEEP_S", keep_s)
    monkeypatch.setattr(flight_recorder, "SEGMENT_S", 5.0)
    served = engine()
    recorder = FlightRecorder(served.snapshot)
    records = run(recorder, served, 700)
    history = History()
    history.apply(served.header)
    for message in messages(recorder):
        history.apply(message)
    kept = list(history.records)
    assert kept == records[-len(kept) :] and not history.gaps
    assert recorder.newest_s == records[-1].end_s
    assert kept[-1].end_s - kept[0].end_s >= min(keep_s, records[-1].end_s) * 0.9 - 1
    assert kept[-1].end_s - kept[0].end_s <= keep_s + 3 * 5.0
    known, true = history.live.snapshot(), served.snapshot()
    assert (known.running, known.block_classes, known.totals) == (true.running, true.block_classes, true.totals)
    assert {item.arrival.number for item in known.requests} == {item.arrival.number for item in true.requests}
    assert history.at(kept[len(kept) // 2].seq) is not None


def test_it_keeps_the_newest_records_in_the_bytes_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their lengths, and through many rounds of the same memory."""
    monkeypatch.setattr(flight_recorder, "KEEP_BYTES", 100_000)
    monkeypatch.setattr(flight_recorder, "SEGMENT_BYTES", 25_000)
    served = engine()
    recorder = FlightRecorder(served.snapshot)
    written: list[StepRecord] = []
    for _ in range(400):
        written += run(recorder, served, 1)
        first, *kept = messages(recorder)
        assert isinstance(first, Snapshot) and kept == written[len(written) - len(kept) :]
        assert sum(len(encode(record)) for record in kept) <= 100_000
    assert sum(len(encode(record)) + 4 for record in kept) > 70_000


def test_a_record_longer_than_all_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "KEEP_BYTES", 2000)
    monkeypatch.setattr(flight_recorder, "SEGMENT_BYTES", 1000)
    served = engine()
    recorder = FlightRecorder(served.snapshot)
    (record,) = run(recorder, served, 1)
    for size in (1990, 1999, 2000, 5000):
        recorder.write(record, bytes(size))
        assert [type(message) for message in messages(recorder)] == [Snapshot]
        assert run(recorder, served, 1) == list(messages(recorder))[1:]


def test_its_memory_is_taken_at_the_start() -> None:
    served = engine()
    tracemalloc.start()
    try:
        recorder = FlightRecorder(served.snapshot)
        own = tracemalloc.Filter(True, flight_recorder.__file__)
        sizes = []
        for steps in (1, 600):
            run(recorder, served, steps)
            traces = tracemalloc.take_snapshot().filter_traces([own]).traces
            sizes.append(sum(trace.size for trace in traces))
    finally:
        tracemalloc.stop()
    assert sizes[0] >= flight_recorder.KEEP_BYTES and sizes[1] < 1.02 * sizes[0]


def test_a_long_queue_leaves_room_for_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of a thousand that wait is larger than a segment; it must not be made after each step."""
    monkeypatch.setattr(flight_recorder, "SEGMENT_BYTES", 2_000)
    monkeypatch.setattr(flight_recorder, "KEEP_BYTES", 2_000_000)
    served = engine()
    num_made = 0

    def snapshot() -> Snapshot:
        nonlocal num_made
        num_made += 1
        return served.snapshot()

    recorder = FlightRecorder(snapshot)
    records = run(recorder, served, 300)
    assert len(encode(served.snapshot())) > flight_recorder.SEGMENT_BYTES
    kept = [message for message in messages(recorder) if isinstance(message, StepRecord)]
    assert num_made < len(records) / 3 and len(kept) > len(records) / 2


def test_a_link_that_comes_back_fills_what_was_missed_and_repeats_nothing() -> None:
    served, history = engine(), History()
    recorder = FlightRecorder(served.snapshot)
    history.apply(served.header)
    history.apply(served.snapshot())
    records = run(recorder, served, 200)
    for record in records[:120]:
        history.apply(record)
    for message in (served.header, *messages(recorder)):  # after the link broke for eighty steps
        history.apply(message)
    assert list(history.records) == records and not history.gaps


def test_what_lies_on_disk_has_no_prompt(tmp_path: Path) -> None:
    served = engine()
    files = FlightFiles(tmp_path / "flights", served.header)
    recorder = FlightRecorder(served.snapshot, files)
    for record in iter(served.step, None):
        arrivals = tuple(replace(arrival, preview="my secret") for arrival in record.arrivals)
        changed = replace(record, arrivals=arrivals)
        recorder.write(changed, encode(changed))
        if record.step == 50:
            break
    assert is_flying(files.folder) and not crashed(tmp_path / "flights")
    files.close(keep=True)
    assert crashed(tmp_path / "flights") == [files.folder]
    written = b"".join(path.read_bytes() for path in sorted(files.folder.glob("*.frames")))
    assert b"my secret" not in written and written.endswith(encode(record)[-20:])
    assert b"my secret" in b"".join(recorder.recent())


def test_a_folder_that_cannot_be_written_is_told_and_serving_goes_on(tmp_path: Path) -> None:
    served, reported = engine(), []
    files = FlightFiles(tmp_path / "flights", served.header)
    shutil.rmtree(files.folder)  # the next segment finds no place
    recorder = FlightRecorder(served.snapshot, files, reported.append)
    run(recorder, served, 5)
    files.close(keep=True)
    run(recorder, served, 5)
    assert reported == ["flight recorder: No such file or directory; the last minutes are kept in memory only"]
    assert len(list(messages(recorder))) == 11
