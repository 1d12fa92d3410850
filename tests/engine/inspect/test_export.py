"""Exports hold what the recording holds; traces keep the rules of the trace-event format."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.figures import COLUMNS, document_of, row_of
from schedtop.engine.contract.reading import row_columns, row_matrix
from schedtop.engine.contract.telemetry import ROW_FIELDS, RowFlag, StepRecord
from schedtop.engine.inspect import export as exports
from schedtop.engine.inspect.export import FORMATS, default_path, export
from schedtop.engine.inspect.trace_events import REQUESTS_PID, SCHEDULER_PID, trace_events
from schedtop.engine.recording import Recording

REQUIRED: dict[str, set[str]] = {
    "B": {"name", "ph", "ts", "pid", "tid"},
    "E": {"ph", "ts", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "M": {"name", "ph", "pid", "args"},
}
"""Keys of each phase, after "Trace Event Format" (Google, 2016)."""


def written(recording: Recording, name: str) -> bytes:
    out = io.BytesIO()
    export(recording, name, out)
    return out.getvalue()


@pytest.fixture(scope="module")
def trace(pressed: Path) -> dict[str, Any]:
    with Recording(pressed) as recording:
        document: dict[str, Any] = json.loads(written(recording, "perfetto"))
    return document


def test_events_have_the_keys_of_their_phase(trace: dict[str, Any]) -> None:
    for event in trace["traceEvents"]:
        assert REQUIRED[event["ph"]] <= set(event), event
        assert event["ph"] != "i" or event["s"] in ("g", "p", "t")
        assert event["ph"] != "C" or all(isinstance(value, int | float) for value in event["args"].values())
        assert event["ph"] != "M" or event["name"] in ("process_name", "thread_name")


def test_times_never_go_back(trace: dict[str, Any]) -> None:
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times) and times[0] >= 0


def test_slices_nest_and_close_on_every_track(trace: dict[str, Any]) -> None:
    check_slices(trace["traceEvents"])


def check_slices(events: list[dict[str, Any]]) -> None:
    stacks: dict[tuple[int, int], list[str]] = defaultdict(list)
    for event in events:
        stack = stacks[event["pid"], event["tid"]] if event["ph"] in "BE" else []
        if event["ph"] == "B":
            stack.append(event["name"])
            assert len(stack) == 1, "a track shows one thing at a time"
        elif event["ph"] == "E":
            assert stack.pop() == event["name"]
    assert not any(stacks.values())


def test_every_request_has_a_named_track_with_its_life(trace: dict[str, Any], recording: Recording) -> None:
    records = list(recording.records())
    ids = {arrival.number + 1: arrival.id for record in records for arrival in record.arrivals}
    assert tracks(trace["traceEvents"]) == ids
    begun = Counter(
        event["name"] for event in trace["traceEvents"] if event["ph"] == "B" and event["pid"] == REQUESTS_PID
    )
    chunks = sum(
        int(((rows["tokens"] > 0) & ((rows["flags"] & RowFlag.DECODE) == 0)).sum())
        for rows in (row_columns(record) for record in records if record.rows)
    )
    assert begun["prefill"] + begun["recompute"] == chunks and begun["recompute"]
    assert begun["preempted"] == sum(len(record.preemptions) for record in records)
    assert begun["queued"] == len(ids)


def tracks(events: list[dict[str, Any]]) -> dict[int, str]:
    """Names of the requests' tracks."""
    return {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["pid"] == REQUESTS_PID and event["name"] == "thread_name"
    }


def test_a_recording_that_begins_late_shows_who_was_there(record: Callable[..., Path]) -> None:
    with Recording(record(60, turned=False, rate=8.0, late=80)) as late:
        snapshot, events = late.keyframe_before(0)[0], json.loads(written(late, "perfetto"))["traceEvents"]
        there = [state.arrival for state in snapshot.requests]
        came = [arrival for step in late.records() for arrival in step.arrivals]
    check_slices(events)
    assert tracks(events) == {arrival.number + 1: arrival.id for arrival in (*there, *came)}
    at_us = round(snapshot.clock_s * 1e6, 3)
    begun = {
        e["tid"] - 1 for e in events if e["ph"] == "B" and e["name"] in ("queued", "preempted") and e["ts"] == at_us
    }
    assert begun == set(snapshot.waiting) and snapshot.running


def test_a_request_that_runs_without_tokens_is_starved() -> None:
    workload = WorkloadSpec(source="mixed", rate=8.0)
    engine = build_engine(EngineConfig(device="sim:llama-3.1-8b@l4", workload=workload))
    snapshot, records = engine.snapshot(), []
    for budget in (None, 2):
        assert engine.set_knobs({"max_num_scheduled_tokens": budget}, None, "test", False).ok
        records += [step for _ in range(150) if (step := engine.step()) is not None]
    idle = {
        number
        for rows in (row_columns(step) for step in records if step.rows)
        for number in rows["request"][rows["tokens"] == 0].tolist()
    }
    events = list(trace_events(snapshot, records, "a model"))
    check_slices(events)
    assert idle and {e["tid"] - 1 for e in events if e["ph"] == "B" and e["name"] == "starved"} == idle


def test_counters_and_steps_are_the_records(trace: dict[str, Any], recording: Recording) -> None:
    records = [record for record in recording.records() if record.executed]
    steps = [event for event in trace["traceEvents"] if event["ph"] == "B" and event["pid"] == SCHEDULER_PID]
    assert [event["args"]["step"] for event in steps] == [record.step for record in records]
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"blocks", "running", "waiting", "budget"}
    for event, record in zip((e for e in counters if e["name"] == "budget"), records, strict=True):
        assert sum(event["args"].values()) == record.token_budget
    for event in (e for e in counters if e["name"] == "blocks"):
        assert sum(event["args"].values()) == recording.header.num_blocks


def test_csv_has_a_row_of_figures_per_record(recording: Recording) -> None:
    rows = list(csv.DictReader(io.StringIO(written(recording, "csv").decode())))
    assert len(rows) == recording.num_records and list(rows[0]) == list(COLUMNS)
    for row, record in zip(rows, recording.records(), strict=True):
        assert int(row["scheduled_tokens"]) == record.scheduled_tokens
        assert float(row["end_s"]) == record.end_s
        assert int(row["num_preemptions"]) == len(record.preemptions)
        assert row["schedule_s"] == ""


def test_jsonl_has_all_of_every_record(recording: Recording) -> None:
    lines = [json.loads(line) for line in written(recording, "jsonl").splitlines()]
    for line, record in zip(lines, recording.records(), strict=True):
        assert set(line) == set(record.__struct_fields__) - {"grown_blocks", "grown_groups"}
        grown = [block for ids in line["grown"].values() for block in ids]
        assert np.array(grown, dtype=np.int32).tobytes() == record.grown_blocks
        assert [[row[name] for name in ROW_FIELDS] for row in line["rows"]] == row_matrix(record).T.tolist()
        assert len(line["itl_s"]) == len(line["rows"])
        assert line["blocks"]["held"] == record.blocks.held


def stepped(workload: WorkloadSpec, num: int, **settings: Any) -> list[StepRecord]:
    engine = build_engine(EngineConfig(workload=workload, **settings))
    return [record for _ in range(num) if (record := engine.step()) is not None]


def test_the_blocks_of_several_kv_groups_are_told_apart() -> None:
    records = stepped(WorkloadSpec(source="mixed", rate=8.0), 60, device="sim:gpt-oss-20b@h100")
    for record in records:
        line = document_of(record)
        grown = [ids for groups in line["grown"].values() for ids in groups.items()]
        assert bytes(int(group) for group, _ in grown) == record.grown_groups
        assert (
            np.array([block for _, ids in grown for block in ids], dtype=np.int32).tobytes() == record.grown_blocks
        )
        cells = dict(zip(COLUMNS, row_of(record), strict=True))
        assert cells["group_blocks"] == " ".join(map(str, record.group_blocks)) != ""
    assert any(len(groups) > 1 for record in records for groups in document_of(record)["grown"].values())


def test_figures_tell_of_the_host_memory_and_of_swaps() -> None:
    scheduler = {"num_blocks": 400, "kv_host_memory_bytes": 2**30, "preemption_mode": "swap"}
    records = stepped(WorkloadSpec(source="pressure", rate=8.0), 1500, scheduler=scheduler)
    rows = [dict(zip(COLUMNS, row_of(record), strict=True)) for record in records]
    names = ("host_used_blocks", "host_blocks", "host_loads", "host_sends")
    assert [tuple(row[name] for name in names) for row in rows] == [record.host_blocks for record in records]
    assert max(row["host_used_blocks"] for row in rows) > 0 and any(row["num_swapped"] for row in rows)
    assert rows[-1]["total_external_tokens"] == records[-1].totals.external_tokens
    (bare,) = stepped(WorkloadSpec(source="mixed"), 1)
    cells = dict(zip(COLUMNS, row_of(bare), strict=True))
    assert (cells["host_blocks"], cells["group_blocks"], cells["encoder_tokens"]) == (None, None, 0)


def test_parquet_is_the_same_table_with_types(recording: Recording, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "run.parquet"
    export(recording, "parquet", target)
    table = parquet.read_table(target)
    assert table.column_names == list(COLUMNS) and table.num_rows == recording.num_records
    assert table["step"].to_pylist() == [record.step for record in recording.records()]
    assert table["paused"].type == "bool" and table["oldest_wait_s"].type == "double"


def test_parquet_without_its_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pyarrow"):
        exports.check_format("parquet")


@pytest.mark.parametrize("name", ["perfetto", "csv", "jsonl"])
def test_the_same_recording_gives_the_same_bytes(recording: Recording, name: str) -> None:
    assert written(recording, name) == written(recording, name)


def test_a_file_is_complete_or_not_there(recording: Recording, tmp_path: Path) -> None:
    def stop(index: int) -> None:
        if index:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(recording, "csv", tmp_path / "run.csv", stop)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FORMATS)
def test_the_default_name_is_beside_the_recording(name: str) -> None:
    assert default_path("a/b.schedtop", name).parent == Path("a")
