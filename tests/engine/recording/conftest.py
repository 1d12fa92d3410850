from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.recording import RecordingWriter


@dataclass
class Run:
    """What a real engine said: its records, and its snapshot after every one of them (the first: before any)."""

    header: t.Header
    records: list[t.StepRecord]
    snapshots: list[t.Snapshot]

    def record_to(self, path: Path, num_records: int | None = None) -> Path:
        """Record (the first `num_records` of) this run."""
        num_told = 0
        with RecordingWriter(path, self.header, lambda: self.snapshots[num_told]) as writer:
            for record in self.records[:num_records]:
                num_told += 1
                writer.write(record)
        return path


def run_engine(num_records: int, **scheduler: Any) -> Run:
    config = EngineConfig(
        device="sim:llama-3.1-8b@l4", workload=WorkloadSpec(source="mixed", rate=3.0), scheduler=scheduler
    )
    engine = build_engine(config)
    run = Run(engine.header, [], [engine.snapshot()])
    for i in range(num_records):
        if i % 97 == 50:
            engine.set_knobs({"max_num_seqs": 12 + i % 7}, by="test")
        if i % 61 == 30:
            engine.abort(int(row_columns(run.records[-1])["request"][0]))
        record = engine.step()
        assert record is not None
        run.records.append(record)
        run.snapshots.append(engine.snapshot())
    return run


@pytest.fixture(scope="session")
def run() -> Run:
    """Preemptions, aborts, knob changes and drafts in a pool that is too small."""
    return run_engine(700, max_num_seqs=16, num_blocks=400, num_speculative_tokens=2, max_model_len=4096)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches and segments, so that short recordings have many."""
    monkeypatch.setattr("schedtop.engine.recording.writer.BATCH_RECORDS", 8)
    monkeypatch.setattr("schedtop.engine.recording.writer.SEGMENT_RECORDS", 24)
    monkeypatch.setattr("schedtop.engine.recording.writer.KEYFRAME_SHARE", 1e9)
