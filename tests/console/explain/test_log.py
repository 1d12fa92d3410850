"""Taking in: bounded, gap-proof, restartable; findings over time, as text and as JSON."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scenes import Run, ask, serve, stream
from schedtop.console.explain.facts import COLUMNS, MAX_STEPS, Facts
from schedtop.console.explain.log import LOOK_EVERY_S, Log, read
from schedtop.console.explain.page import document, page
from schedtop.console.explain.window import Table
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.contract.reading import row_columns, row_matrix
from schedtop.engine.step.engine import Engine


@cache
def capped_for_a_while() -> Run:
    def each(engine: Engine) -> None:
        if engine.clock_s > 16 and not engine.knobs_version:
            engine.set_knobs({"max_num_seqs": 128}, by="key")

    return serve(WorkloadSpec(source="mixed", rate=4.0, seed=3, max_prompt_tokens=600), 30, each, max_num_seqs=4)


def test_findings_end_and_are_remembered() -> None:
    log = capped_for_a_while().log()
    entry = log.entries["ttft-sequence-cap"]
    assert not entry.active
    assert entry.episodes[-1].to_s < 18
    assert entry.shown is entry.best
    text = page(log, {})
    assert "ttft-sequence-cap; held" in text
    assert "try max_num_seqs up (now 4)" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_what_was_before_a_change_gives_no_advice_after_it() -> None:
    run = capped_for_a_while()
    change = next(index for index, record in enumerate(run.records) if record.knobs)
    at_change = Run(run.header, run.snapshot, run.records[:change])
    just_after = Run(run.header, run.snapshot, run.records[: change + 100])
    assert "ttft-sequence-cap" in at_change.findings()
    assert "ttft-sequence-cap" not in just_after.findings()


def test_the_page_and_the_document_say_the_same() -> None:
    log = capped_for_a_while().log()
    found = json.loads(json.dumps(document(log, {}), allow_nan=False))
    assert found["findings"][0]["id"] in page(log, {})
    assert len(found["findings"]) == len(log.ranked()) > 0
    for item in found["findings"]:
        assert item["chain"]
        assert item["steps"]
        assert item["advice"]
        assert item["n"] > 0
        assert item["window_s"] <= 30.1
        assert item["episodes"]


@pytest.mark.parametrize("cut", [0, 1])
def test_the_last_look_is_the_last_wherever_a_session_ends(cut: int) -> None:
    """A second of steps: its last record makes a look due, the one before does not."""
    run = serve([ask(i, 100, 3000) for i in range(12)], 2, max_num_seqs=4)
    due = next(index for index, record in enumerate(run.records) if record.end_s >= LOOK_EVERY_S)
    log = read([run.header, run.snapshot, *run.records[: due + 1 - cut]], Log())
    assert log.num_looks == 1
    assert "queue-low-use" in log.entries


def test_nothing_is_a_sentence() -> None:
    assert page(serve(stream(20, 0.5, 100, 10)).log(), {}).startswith("Nothing found over ")


def test_the_same_records_twice_change_nothing() -> None:
    run = serve(WorkloadSpec(source="mixed", rate=8.0), 5, max_num_seqs=8)
    once, twice = Facts(), Facts()
    for record in run.records:
        once.take_record(record)
        twice.take_record(record)
        twice.take_record(record)
    assert once.matrix().tobytes() == twice.matrix().tobytes()
    assert len(once.firsts) == len(twice.firsts) > 0


def test_memory_is_bounded() -> None:
    run = serve(stream(30, 0.05, 50, 20), 5)
    facts = Facts()
    shift = 0
    for _ in range(60):
        for record in run.records:
            facts.seq = -1  # the same records again, as if they were new
            facts.take_record(record)
            shift += 1
    assert shift > 2 * MAX_STEPS
    assert len(facts.itl) <= 2 * MAX_STEPS
    assert len(facts.flat) == len(facts.itl) * len(COLUMNS)
    assert len(facts.matrix()) == MAX_STEPS
    assert len(facts.firsts) <= 4096
    assert len(facts.seconds) <= 600


RUN = serve([ask(i, 200, 60, i * 0.02) for i in range(60)], 5, max_num_seqs=6, num_blocks=90)


@given(st.data())
def test_any_gaps_are_survived(data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.integers(0, len(RUN.records) - 1), unique=True, min_size=1).map(sorted))
    log = Log()
    log.take(RUN.header)
    for index in kept:
        log.take(RUN.records[index])
    log.look()
    json.dumps(document(log, {}), allow_nan=False)
    page(log, {})


def test_another_session_starts_afresh() -> None:
    log = capped_for_a_while().log()
    other = serve(stream(20, 0.5, 100, 10))
    for message in other.messages:
        log.take(message)
    log.look()
    assert log.entries == {}
    assert log.diagnosis.facts.num_steps == len([r for r in other.records if r.executed])


def test_names_of_requests_are_made_harmless() -> None:
    requests = [ask(0, 4000, 1500), ask(1, 4000, 10, 0.1), *stream(10, 0.05, 100, 10, start_s=0.2)]
    requests[1].id = "evil\x1b[2J\u202e"
    run = serve(requests, 4, num_blocks=400)
    text = page(run.log(), {})
    assert "head-blocks-smaller" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "evil?[2J?" in text


def test_rows_are_read_alike_one_by_one_and_many_at_once() -> None:
    run = serve([ask(i, 200, 60, i * 0.02) for i in range(60)], 5, max_num_seqs=6, num_blocks=90)
    bare = [replace(record, rows=b"", itl_s=b"") for record in run.records[:2]]
    rows = row_matrix(run.records[100]).copy()
    rows[1, 0] = 0
    records = [bare[0], *run.records[:200], replace(run.records[100], rows=rows.tobytes()), bare[1]]
    several, each = Facts(), Facts()
    for seq, record in enumerate(records):
        for facts in (several, each):
            facts.take_record(replace(record, seq=seq))
        each.matrix()
    table = Table(several.matrix())
    assert table.matrix.tobytes() == each.matrix().tobytes()
    columns = [row_columns(record) for record in records]
    assert table["starved"].tolist() == [(found["tokens"] == 0).sum() for found in columns]
    assert table["attended"].tolist() == [
        (found["tokens"].astype(np.int64) * found["computed"]).sum() for found in columns
    ]
    assert table["starved"].any()
