"""A recorded run that goes on from one of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import StepRecord
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


def ends(records: list[StepRecord]) -> set[int]:
    return {finish.number for record in records for finish in record.finishes}


def readied(records: list[StepRecord]) -> set[int]:
    return {deferral.number for record in records for deferral in record.deferrals if not deferral.reason}


@pytest.mark.parametrize("case", ["defer-31-0", "defer-31-1", "defer-32-0"])
def test_requests_that_were_deferred_become_ready_later(case: str, tmp_path: Path) -> None:
    path = tmp_path / "case.schedtop"
    records = recorded(case, path)
    index = next(index for index, record in enumerate(records) if dict(record.deferred).get("grammar"))
    with Recording(path) as recording:
        later = run_out(Fork(recording, index, EvenCost(), seed=0).engine())
    assert ends(later) == ends(records[index + 1 :])
    assert readied(later) == readied(records[index + 1 :]) != set()
