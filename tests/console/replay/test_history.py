"""Jumping to a step, playing there, and having been there live are one and the same."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from schedtop.console.past.client import client_latencies
from schedtop.console.past.history import History
from schedtop.console.past.recorded.history import RecordedHistory
from schedtop.engine.contract.latencies.samples import KINDS
from schedtop.engine.contract.telemetry import StepRecord, TextDelta
from schedtop.engine.recording import Recording, RecordingWriter


def told_by(history: History) -> dict[str, Any]:
    """Everything a panel may ask of a history about its present moment."""
    moment = history.now()
    state = moment.state
    return {
        "place": (state.seq, state.step, state.clock_s, state.paused, dict(state.knobs), state.knobs_version),
        "record": moment.record,
        "totals": state.totals,
        "queue": state.queue(history.policy),
        "running": state.running(),
        "outputs": {number: state.outputs(number) for number in state.requests},
        "requests": {
            number: (item.arrival.id, item.waiting, item.cached_tokens, item.preemptions)
            for number, item in state.requests.items()
        },
        "ttft": {number: pytest.approx(item.ttft_s) for number, item in state.requests.items() if item.ttft_s},
        "rows": state.rows.tolist(),
        "classes": state.classes.tolist(),
        "tables": dict(state.tables),
        "rates": history.rates(moment),
        "latency": [
            [
                (part.values.tolist(), part.counts.tolist())
                for part in history.latency_columns(kind, moment, 60.0, 50)
            ]
            for kind in KINDS
        ],
        "client": {kind: felt.document() for kind, felt in client_latencies(history, moment, 60.0).items()},
        "events": [(event.kind, event.seq, event.describe()) for event in reversed(history.events)],
        "by kind": [[(event.seq, event.describe()) for event in history.of_kind(kind)] for kind in "KVXP"],
        "steps": [record.seq for record in history.steps(moment.seq, 300)],
        # Keyframes name no prefix keys, and no panel shows any.
        "finished": [(n, arrival.id, arrival.arrival_s, end) for n, (arrival, end) in history.finished.items()],
        "names": [history.name(number) for number in range(60)],
        "between": [record.seq for record in history.between(100, 140)],
        "since": [record.seq for record in history.between_times(3.0, moment.seq, 40)],
    }


@pytest.fixture(scope="module")
def truth(reported: Any) -> dict[int, dict[str, Any]]:
    """What a live history told at some steps, the first, the last and those around a pause among them."""
    chosen = {0, 1, 63, 64, 299, 300, 301, 302, len(reported.records) - 1}
    chosen |= set(random.Random(5).sample(range(len(reported.records)), 25))
    history = History()
    for message in reported.messages(-1)[:2]:
        history.apply(message)
    found = {}
    for index, record in enumerate(reported.records):
        history.apply(record)
        if index in chosen:
            found[index] = told_by(history)
    return found


def test_jumping_anywhere_from_anywhere_is_having_been_there(
    recording: Recording, truth: dict[int, dict[str, Any]]
) -> None:
    history = RecordedHistory(recording)
    order = [*truth, *truth]
    random.Random(7).shuffle(order)
    for index in order:
        history.seek(index)
        found = told_by(history)
        for name, want in truth[index].items():
            assert found[name] == want, f"{name} of record {index}"


def test_playing_there_step_by_step_is_the_same(recording: Recording, truth: dict[int, dict[str, Any]]) -> None:
    history = RecordedHistory(recording)
    for index in range(recording.num_records):
        history.seek(index)
        if index in truth:
            assert told_by(history) == truth[index], f"record {index}"


def test_behind_a_gap_the_state_is_what_it_was(
    reported: Any, truth: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    """Nothing is carried across what damage cost, by whichever way one goes there."""
    path = tmp_path / "flipped.schedtop"
    data = bytearray(reported.path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with Recording(path) as recording:
        (gap,) = recording.gaps
        after = [index for index in truth if index >= gap.index + gap.num_missing]
        jumping, playing = RecordedHistory(recording), RecordedHistory(recording)
        for index in range(recording.num_records):
            playing.seek(index)
            if index + gap.num_missing in after:
                jumping.seek(-1)
                jumping.seek(index)
                for history in (playing, jumping):
                    found = told_by(history)
                    for name in ("place", "record", "totals", "queue", "running", "rows", "classes", "tables"):
                        assert found[name] == truth[index + gap.num_missing][name], (name, index)
        assert len(after) > 10


def test_a_past_moment_is_exact_and_leaves_the_position(
    recording: Recording, truth: dict[int, dict[str, Any]], reported: Any
) -> None:
    history = RecordedHistory(recording)
    history.seek(recording.num_records - 1)
    for index in islice(truth, 8):
        moment = history.at(reported.records[index].seq)
        assert moment is not None and moment.record == reported.records[index]
        assert moment.state.rows.tolist() == truth[index]["rows"]
        assert moment.state.queue(history.policy) == truth[index]["queue"]
    assert history.live.seq == reported.records[-1].seq
    assert history.at(10**9) is None and history.index_of(-5) is None


def test_records_of_an_engine_that_counts_in_leaps_are_found(reported: Any, tmp_path: Path) -> None:
    """Numbers grow, but not by one: each finds its record, and what lies between finds none."""
    path = tmp_path / "leaps.schedtop"
    numbers = [3, 4, 10, 11, 400, 401, 402, 1000]
    with RecordingWriter(path, reported.header, lambda: reported.snapshot) as writer:
        for record, number in zip(reported.records, numbers, strict=False):
            writer.write(msgspec.structs.replace(record, seq=number))
    with Recording(path) as recording:
        history = RecordedHistory(recording)
        history.seek(len(numbers) - 1)
        assert [history.index_of(number) for number in numbers] == list(range(len(numbers)))
        assert [history.index_of(number) for number in (2, 5, 399, 999, 1001)] == [None] * 5
        assert [record.seq for record in history.between(5, 401)] == [10, 11, 400, 401]


def test_a_seek_is_cut_to_the_file(recording: Recording) -> None:
    history = RecordedHistory(recording)
    history.seek(10**6)
    assert history.position == recording.num_records - 1
    history.seek(-7)
    assert history.position == -1 and history.latest is None and not list(history.records)


class Texted:
    """A recording with texts: one character before every record, for request 3."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recording, name)

    def texts(self, start: int = 0) -> Any:
        return ((index, TextDelta(3, chr(97 + index % 26))) for index in range(start, 200))


def test_texts_are_as_long_as_they_were(recording: Recording) -> None:
    history = RecordedHistory(Texted(recording))
    for index in (10, 40, 5, 41):
        history.seek(index)
        assert len(history.texts[3]) == index + 2
    assert history.texts.get(4) is None


def test_records_read_like_a_list(recording: Recording, reported: Any) -> None:
    history = RecordedHistory(recording)
    history.seek(200)
    records = history.records
    assert len(records) == 201 and records[-1] == reported.records[200] and records[5] == reported.records[5]
    assert list(records) == reported.records[:201]
    with pytest.raises(IndexError):
        records[201]
    assert all(isinstance(record, StepRecord) for record in list(records)[:3])
