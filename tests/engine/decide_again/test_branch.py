"""A recorded run that goes on from one of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import StepRecord, row_columns
from schedtop.engine.decide_again.branch import Fork
from schedtop.engine.recording import Recording, RecordingWriter

from tests.engine.harness import EvenCost, run_out

GOLDEN = Path(__file__).parents[2] / "golden"


def recorded(case: str, path: Path) -> list[StepRecord]:
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=str(GOLDEN / f"{case}.json"))))
    with RecordingWriter(path, engine.header, engine.snapshot) as writer:
        for record in run_out(engine):
            writer.write(record)
    with Recording(path) as recording:
        return list(recording.records())


def planned(record: StepRecord) -> list[tuple[int, int]]:
    columns = row_columns(record)
    return [pair for pair in zip(columns["request"].tolist(), columns["tokens"].tolist(), strict=True) if pair[1]]


@pytest.mark.parametrize("case", ["defer-31-0", "defer-31-1", "defer-32-0"])
def test_requests_that_were_deferred_become_ready_later(case: str, tmp_path: Path) -> None:
    path = tmp_path / "case.schedtop"
    records = recorded(case, path)
    index = next(index for index, record in enumerate(records) if dict(record.deferred).get("grammar"))
    with Recording(path) as recording:
        later = run_out(Fork(recording, index, EvenCost(), seed=0).engine())
    ended = [
        {finish.number for record in told for finish in record.finishes} for told in (records[index + 1 :], later)
    ]
    assert ended[0] == ended[1]
    ready = [
        {one.number for record in told for one in record.deferrals if not one.reason}
        for told in (records[index + 1 :], later)
    ]
    assert ready[0] == ready[1] != set()
