"""What was recorded is read back exactly, in one piece and from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.reading import itl_column
from schedtop.engine.recording import Mark, Recording, RecordingError, RecordingWriter, check_new
from schedtop.engine.recording.batch import decode_batch, encode_batch
from schedtop.engine.recording.seconds import sample, second_of

encode = msgspec.msgpack.encode

# Any record at all: the codec may foresee what it likes, but must lose nothing.

int32 = st.integers(-(2**31), 2**31 - 1)
small = st.integers(-2, 6)
number = st.integers(0, 5)
floats = st.one_of(st.sampled_from([0.0, 1.5, 1.5000000000000002, -0.0]), st.floats())
ids = st.lists(st.one_of(small, int32), max_size=4).map(lambda values: np.array(values, np.int32).tobytes())
arrival = st.builds(t.Arrival, number, st.text(max_size=3), floats, small, small, prefix_keys=st.binary(max_size=9))
admission = st.builds(t.Admission, number, number, floats)
preemption = st.builds(t.Preemption, number, number, number, number, floats, floats, number)
finish = st.builds(t.Finish, number, st.sampled_from(["stop", "abort"]), number, st.none() | floats)


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(ids)
    blocks = sorted(draw(st.sets(st.integers(0, 9), max_size=5)))
    return np.array([block * 4 + draw(st.integers(0, 3)) for block in blocks], np.int32).tobytes()


@st.composite
def records(draw: st.DrawFn) -> t.StepRecord:
    num_rows = draw(st.integers(0, 4))
    cells = draw(st.lists(st.one_of(small, int32), min_size=9 * num_rows, max_size=9 * num_rows))
    rows = np.array(cells, np.int32).reshape(9, num_rows)
    rows[0] = draw(st.lists(number, min_size=num_rows, max_size=num_rows))
    gaps = draw(st.lists(st.floats(width=32), min_size=num_rows, max_size=num_rows))
    long = st.integers(-(2**63), 2**63 - 1)
    fields: dict[str, Any] = {
        field.name: draw(st.one_of(small, long)) for field in msgspec.structs.fields(t.StepRecord)
    }
    fields |= {name: draw(st.booleans()) for name in ("executed", "paused")}
    fields |= {name: draw(floats) for name in ("start_s", "end_s", "execute_s")}
    fields |= {name: draw(st.none() | floats) for name in ("schedule_s", "update_s", "oldest_wait_s", "planned_s")}
    tables = draw(st.lists(st.tuples(number, ids), max_size=3))
    fields |= {
        "limiter": draw(st.sampled_from(["none", "blocks"])),
        "rows": rows.tobytes(),
        "itl_s": np.array(gaps, np.float32).tobytes(),
        "ttft_s": draw(st.lists(st.tuples(number, floats), max_size=2)),
        "head": draw(st.none() | st.builds(t.Head, number, st.just("blocks"))),
        "blocks": draw(st.builds(t.Blocks, small, small, small, small, long, small)),
        "changed_blocks": draw(changes()),
        "grown": np.array([(owner, len(block) // 4) for owner, block in tables], np.int32).tobytes(),
        "grown_blocks": b"".join(block for _, block in tables),
        "arrivals": draw(st.lists(arrival, max_size=2)),
        "admissions": draw(st.lists(admission, max_size=2)),
        "refusals": draw(st.lists(st.builds(t.Refusal, number, st.text(max_size=3), st.just("r")), max_size=1)),
        "finishes": draw(st.lists(finish, max_size=2)),
        "preemptions": draw(st.lists(preemption, max_size=2)),
        "knobs": draw(st.lists(st.builds(t.KnobChange, st.just("rate"), st.none(), floats), max_size=1)),
        "deferrals": draw(st.lists(st.builds(t.Deferral, number, st.sampled_from(["", "grammar"])), max_size=2)),
        "grown_groups": bytes(draw(st.lists(st.integers(0, 6), min_size=len(tables), max_size=len(tables)))),
        "group_blocks": tuple(draw(st.lists(small, max_size=3))),
        "host_blocks": tuple(draw(st.lists(small, max_size=4))),
        "paused_by": draw(st.sampled_from(["", "ada"])),
        "proposed": np.array(draw(st.lists(st.tuples(number, small), max_size=2)), np.int32).tobytes(),
        "deferred": draw(st.lists(st.tuples(st.just("grammar"), small), max_size=1)),
        "host": draw(
            st.lists(st.builds(t.Host, floats, floats, st.none() | floats, st.none() | floats), max_size=1)
        ),
        "totals": t.Totals(
            **{
                name: draw(floats if name == "busy_s" else st.one_of(small, long))
                for name in t.Totals.__struct_fields__
            }
        ),
    }
    return t.StepRecord(**fields)


@given(st.lists(records(), min_size=1, max_size=6), st.integers(1, 20))
def test_any_records_come_back_bit_for_bit(originals: list[t.StepRecord], block_size: int) -> None:
    before: dict[int, bytes] = {2: np.array([1, 2, 3], np.int32).tobytes()}
    after_writing, after_reading = dict(before), dict(before)
    data = encode_batch(originals, block_size, after_writing)
    decoded = decode_batch(data, block_size, after_reading)
    assert [encode(record) for record in decoded] == [encode(record) for record in originals]
    assert after_reading == after_writing


def slim(snapshot: t.Snapshot) -> t.Snapshot:
    requests = [
        msgspec.structs.replace(request, arrival=msgspec.structs.replace(request.arrival, prefix_keys=b""))
        for request in snapshot.requests
    ]
    return msgspec.structs.replace(snapshot, requests=requests)


def test_a_run_is_read_back_exactly(run: Any, tmp_path: Path) -> None:
    with Recording(run.record_to(tmp_path / "a.schedtop")) as recording:
        assert recording.header == run.header
        assert recording.truncated is None
        assert (recording.num_records, recording.num_steps) == (700, run.records[-1].step)
        assert list(recording.records()) == run.records
        assert (recording.start_s, recording.end_s) == (run.records[0].start_s, run.records[-1].end_s)


@pytest.mark.usefixtures("short_chunks")
def test_any_record_and_its_keyframe_can_be_reached_alone(run: Any, tmp_path: Path) -> None:
    path = run.record_to(tmp_path / "a.schedtop", 200)
    for index in (0, 7, 8, 23, 24, 25, 99, 150, 199):
        with Recording(path) as recording:
            assert recording.record(index) == run.records[index]
            snapshot, first = recording.keyframe_before(index)
            assert index - 24 < first <= index
            assert snapshot == slim(run.snapshots[first])
            assert list(recording.records(index, index + 20)) == run.records[index : index + 20][: 200 - index]
    with Recording(path) as recording:
        for index in (199, 0, 120, 3, 77, 76, 75):
            assert recording.record(index) == run.records[index]
        for beyond in (-1, 200):
            with pytest.raises(IndexError):
                recording.record(beyond)
        assert list(recording.records(200)) == []


@pytest.mark.usefixtures("short_chunks")
def test_marks_are_found_in_both_directions(run: Any, tmp_path: Path) -> None:
    expected = {
        Mark.PREEMPTION: [i for i, record in enumerate(run.records) if record.preemptions],
        Mark.KNOB: [i for i, record in enumerate(run.records) if record.knobs],
        Mark.ABORT: [
            i for i, record in enumerate(run.records) if any(f.reason == "abort" for f in record.finishes)
        ],
        Mark.REFUSAL: [],
    }
    with Recording(run.record_to(tmp_path / "a.schedtop")) as recording:
        for mark, hits in expected.items():
            found, at = [], -1
            while (nxt := recording.find(mark, at)) is not None:
                found.append(at := nxt)
            assert found == hits
            back, at = [], len(recording)
            while (nxt := recording.find(mark, at, forward=False)) is not None:
                back.append(at := nxt)
            assert back == hits[::-1]
            assert sum(getattr(marks, mark) for *_, marks in recording.timeline()) >= len(hits)
        gaps = [float(np.nanmax(itl_column(r), initial=0)) for r in run.records]
        limit_s = float(np.quantile(gaps, 0.98))
        slow = next(i for i, gap in enumerate(gaps) if gap > limit_s)
        assert recording.find_slow("itl", limit_s, -1) == slow
        assert recording.find_slow("itl", max(gaps), -1) is None
        longest = max(wait_s for record in run.records for _, wait_s in record.ttft_s)
        late = recording.find_slow("ttft", longest - 1e-9, -1)
        assert late is not None and any(wait_s == longest for _, wait_s in run.records[late].ttft_s)


@pytest.mark.usefixtures("short_chunks")
def test_steps_and_times_lead_to_their_records(run: Any, tmp_path: Path) -> None:
    with Recording(run.record_to(tmp_path / "a.schedtop")) as recording:
        for record in (run.records[0], run.records[333], run.records[-1]):
            index = recording.index_of_step(record.step)
            assert index is not None and run.records[index].step == record.step
            index = recording.index_at(record.end_s)
            assert index is not None and run.records[index].end_s == record.end_s
        assert recording.index_at(0.0) == 0
        assert recording.index_at(1e9) is None
        assert recording.index_of_step(10**6) is None


@pytest.mark.usefixtures("short_chunks")
def test_samples_of_every_second_are_those_of_its_steps(run: Any, tmp_path: Path) -> None:
    with Recording(run.record_to(tmp_path / "a.schedtop")) as recording:
        last = second_of(run.records[-1])
        seconds = recording.seconds(0, last)
        assert list(seconds) == sorted({second_of(record) for record in run.records})
        for number, got in seconds.items():
            want = sample(number, [record for record in run.records if second_of(record) == number])
            for kind in ("ttft", "itl"):
                assert getattr(got, kind).values.tolist() == getattr(want, kind).values.tolist()
                assert getattr(got, kind).counts.tolist() == getattr(want, kind).counts.tolist()
        assert list(recording.seconds(5, 9)) == [second for second in seconds if 5 <= second <= 9]
        assert list(recording.seconds(last, last + 5)) == [last]


def test_text_is_kept_only_when_asked(run: Any, tmp_path: Path) -> None:
    arrival = t.Arrival(0, "r", 0.0, 4, 2, preview="a secret")
    record = msgspec.structs.replace(run.records[0], arrivals=(arrival,))
    state = t.RequestState(arrival, "waiting", 0, 0, 0, 0, None, None, None, b"")
    snapshot = msgspec.structs.replace(run.snapshots[0], requests=[state])
    for keep in (False, True):
        path = tmp_path / f"{keep}.schedtop"
        with RecordingWriter(path, run.header, lambda: snapshot, keep_text=keep) as writer:
            writer.text(t.TextDelta(0, "first secret"))
            writer.write(record)
            writer.text(t.TextDelta(0, "second secret"))
        with Recording(path) as recording:
            previews = {recording.record(0).arrivals[0].preview}
            previews.add(recording.keyframe_before(0)[0].requests[0].arrival.preview)
            texts = [(index, delta.text) for index, delta in recording.texts()]
        assert previews == ({"a secret"} if keep else {""})
        assert texts == ([(0, "first secret"), (1, "second secret")] if keep else [])


def test_an_existing_file_is_refused_and_stays(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    with pytest.raises(RecordingError, match=r"precious exists already"):
        check_new(str(path))
    with pytest.raises(RecordingError, match=r"precious exists already"):
        RecordingWriter(path, run.header, lambda: run.snapshots[0])
    assert path.read_text() == "precious"
    with pytest.raises(RecordingError, match="No such file or directory"):
        check_new(str(tmp_path / "nowhere" / "a"))
    check_new(str(tmp_path / "free"))
    assert not (tmp_path / "free").exists()


def test_nothing_but_a_start_is_a_recording_without_steps(run: Any, tmp_path: Path) -> None:
    with Recording(run.record_to(tmp_path / "a.schedtop", 0)) as recording:
        assert (recording.num_records, recording.num_steps, recording.truncated) == (0, 0, None)
        assert list(recording.records()) == []
        assert recording.find(Mark.KNOB, 0) is None
        assert recording.keyframe_before(0)[1] == 0
        assert recording.seconds(0, 10) == {}
