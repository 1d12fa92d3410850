from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.recording import Recording, RecordingWriter

# importlib mode puts no test folder on the path; what tests here share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))

NUM_RECORDS = 900


@dataclass
class Told:
    """What an engine said while it was recorded."""

    path: Path
    header: t.Header
    snapshot: t.Snapshot
    records: list[t.StepRecord]

    def messages(self, index: int) -> list[t.Outgoing]:
        """All up to record `index`."""
        return [self.header, self.snapshot, *self.records[: index + 1]]


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A pool under pressure: preemptions, knob changes, aborts, drafts, a pause, over several segments."""
    path = tmp_path_factory.mktemp("replay") / "run.schedtop"
    scheduler = {"max_num_seqs": 16, "num_blocks": 400, "num_speculative_tokens": 2, "max_model_len": 4096}
    config = EngineConfig(
        device="sim:llama-3.1-8b@l4", workload=WorkloadSpec(source="mixed", rate=3.0), scheduler=scheduler
    )
    engine = build_engine(config)
    snapshot, records = engine.snapshot(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schedtop.engine.recording.writer.BATCH_RECORDS", 16)
        patch.setattr("schedtop.engine.recording.writer.SEGMENT_RECORDS", 64)
        patch.setattr("schedtop.engine.recording.writer.KEYFRAME_SHARE", 1e9)
        with RecordingWriter(path, engine.header, engine.snapshot) as writer:
            while len(records) < NUM_RECORDS:
                i = len(records)
                if i % 97 == 50:
                    engine.set_knobs({"max_num_seqs": 12 + i % 7}, by="test")
                if i % 61 == 30:
                    engine.abort(int(row_columns(records[-1])["request"][0]))
                if i in (300, 301):
                    (engine.pause if i == 300 else engine.resume)()
                record = engine.step()
                assert record is not None
                records.append(record)
                writer.write(record)
    return Told(path, engine.header, snapshot, records)


@pytest.fixture
def recording(reported: Told) -> Iterator[Recording]:
    with Recording(reported.path) as opened:
        assert opened.num_records == NUM_RECORDS and opened.truncated is None
        yield opened
