"""The whole way: a process with the real engine on a simulated device, a console at the other end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from schedtop.engine.channel import ChannelClient, ChannelClosedError
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import SetKnobs
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import block_changes
from schedtop.engine.recording import Recording


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    config = EngineConfig(workload=WorkloadSpec(source="mixed", rate=20.0), real_time=True)
    with start_engine(config) as engine:
        yield engine


def messages(client: ChannelClient) -> Iterator[t.Outgoing]:
    while True:
        message = client.receive(30)
        assert message is not None, "the engine fell silent"
        yield message


def test_records_follow_the_snapshot_and_add_up(engine: EngineProcess) -> None:
    with engine.connect() as client:
        stream = messages(client)
        header = next(message for message in stream if isinstance(message, t.Header))
        snapshot = next(message for message in stream if isinstance(message, t.Snapshot))
        classes = np.frombuffer(snapshot.block_classes, np.uint8).copy()
        totals, seq = snapshot.totals, snapshot.seq
        for _, record in zip(range(200), (m for m in stream if isinstance(m, t.StepRecord)), strict=False):
            seq += 1
            assert record.seq == seq
            assert record.totals.scheduled_tokens == totals.scheduled_tokens + record.scheduled_tokens
            totals = record.totals
            blocks, values = block_changes(record)
            classes[blocks] = values
            counts = np.bincount(classes, minlength=4).tolist()
            reported = record.blocks
            assert counts == [reported.empty, reported.cached_free, reported.held, reported.shared]
            assert sum(counts) == header.num_blocks


def test_a_knob_change_is_answered_and_marked(engine: EngineProcess) -> None:
    with engine.connect() as client:
        client.send(SetKnobs(1, {"max_num_seqs": 3}, by="test"))
        reply = next(
            message for message in messages(client) if isinstance(message, t.Reply) and message.command == 1
        )
        while not reply.ok and "loading" in reply.text:
            client.send(SetKnobs(1, {"max_num_seqs": 3}, by="test"))
            reply = next(message for message in messages(client) if isinstance(message, t.Reply))
        assert reply.ok, reply.text
        record = next(m for m in messages(client) if isinstance(m, t.StepRecord) and m.knobs)
        assert record.knobs[0].name == "max_num_seqs" and record.knobs[0].by == "test"
        client.send(SetKnobs(2, {"max_num_seqs": 0}))
        refused = next(message for message in messages(client) if isinstance(message, t.Reply))
        assert not refused.ok and "at least 1" in refused.text


OWNER = """
import sys
from schedtop.engine.channel.spawn import start_engine
from schedtop.engine.contract.config import EngineConfig
engine = start_engine(EngineConfig(real_time=True, socket=sys.argv[1], record=sys.argv[2]))
engine.connect(30).receive(30)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_owner_leaves_a_whole_recording_and_no_process(tmp_path: Path) -> None:
    address, path = str(tmp_path / "e.sock"), tmp_path / "a.schedtop"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, address, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout and owner.stdin
    assert owner.stdout.readline() == b"ready\n"
    with ChannelClient.connect(address) as client:
        stream = messages(client)
        next(message for message in stream if isinstance(message, t.StepRecord))
        owner.kill()
        bye = next(message for message in stream if isinstance(message, t.Bye))
        assert "owned this engine is gone" in bye.reason
        with pytest.raises(ChannelClosedError):
            client.receive(30)
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    with Recording(path) as recording:
        assert recording.truncated is None
        assert recording.num_steps == bye.step


def test_a_bad_setting_ends_it_with_one_line() -> None:
    with start_engine(EngineConfig(device="sim:nonsense@h100")) as engine:
        assert engine.process.wait(60) == 2
        cause = engine.exit_cause()
        assert cause and "nonsense" in cause
        assert len(engine.stderr_tail()) == 1
