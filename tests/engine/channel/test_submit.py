"""Requests that come over the channel: from `Submit` to the `Ending`, on a real engine process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from schedtop.engine.channel import ChannelClient
from schedtop.engine.channel.protocol import decode_incoming, encode
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import Abort, Drain, Join, Pause, SamplingParams, StepOnce, Submit
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns

PROMPT = np.arange(40, dtype=np.int32)


def submit(id: int, prompt: Any = PROMPT, max_tokens: int = 6, **fields: Any) -> Submit:
    return Submit(id, f"r{id}", prompt.tobytes(), max_tokens, **fields)


class Seen:
    """What a client was told until its requests ended or nothing more can come."""

    def __init__(self) -> None:
        self.replies: dict[int, t.Reply] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, t.Ending] = {}
        self.records: list[t.StepRecord] = []

    def take(self, message: Any) -> None:
        match message:
            case t.Reply():
                self.replies[message.command] = message
            case t.StepRecord():
                self.records.append(message)
            case t.Output():
                self._take_output(message)

    def _take_output(self, output: t.Output) -> None:
        ids = iter(np.frombuffer(output.token_ids, dtype=np.int32).tolist())
        numbers, counts = (np.frombuffer(data, dtype=np.int32).tolist() for data in (output.numbers, output.counts))
        for number, count in zip(numbers, counts, strict=True):
            assert number not in self.ends
            self.tokens.setdefault(number, []).extend(next(ids) for _ in range(count))
        assert next(ids, None) is None
        self.ends.update({end.number: end for end in output.ends})


def follow(client: ChannelClient, seen: Seen, until: Any) -> Seen:
    while not until(seen):
        message = client.receive(20)
        assert message is not None, "waited in vain"
        seen.take(message)
    return seen


def join(engine: EngineProcess) -> ChannelClient:
    client = engine.connect()
    while not isinstance(client.receive(20), t.Snapshot):
        pass
    return client


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    """A simulated device that nobody but clients asks; its clock jumps over idle time."""
    scheduler = {"num_blocks": 64, "max_model_len": 512, "max_num_seqs": 8}
    with start_engine(EngineConfig(workload=None, scheduler=scheduler)) as process:
        yield process


def test_a_request_gets_its_tokens_and_its_end(engine: EngineProcess) -> None:
    with join(engine) as client:
        client.send(submit(1))
        seen = follow(client, Seen(), lambda seen: seen.ends)
    assert seen.replies[1].ok and seen.replies[1].number == 0
    assert len(seen.tokens[0]) == 6 and seen.ends == {0: t.Ending(0, "length")}
    (arrival,) = (arrival for record in seen.records for arrival in record.arrivals)
    assert (arrival.id, arrival.prompt_tokens, arrival.max_tokens) == ("r1", 40, 6)


def test_many_get_each_their_own_and_what_the_cache_had_is_told(engine: EngineProcess) -> None:
    with join(engine) as client:
        client.send(submit(0))
        follow(client, Seen(), lambda seen: seen.ends)
        for id in range(1, 30):
            client.send(submit(id, max_tokens=id))
        seen = follow(client, Seen(), lambda seen: len(seen.ends) == 29)
    lengths = {seen.replies[id].number: id for id in range(1, 30)}
    assert {number: len(ids) for number, ids in seen.tokens.items()} == lengths
    assert {end.cached_tokens for end in seen.ends.values()} == {32}
    assert len({tuple(ids[:1]) for ids in seen.tokens.values()}) > 20, "each has tokens of its own"


def test_drafts_come_in_bursts_and_stop_at_the_length() -> None:
    scheduler = {"num_blocks": 64, "max_model_len": 512, "num_speculative_tokens": 3}
    with start_engine(EngineConfig(workload=None, scheduler=scheduler)) as process, join(process) as client:
        for id in range(5):
            client.send(submit(id, max_tokens=21 + id))
        seen = follow(client, Seen(), lambda seen: len(seen.ends) == 5)
    assert sorted(map(len, seen.tokens.values())) == [21, 22, 23, 24, 25]
    assert max(int(row_columns(record)["emitted"].max(initial=0)) for record in seen.records) > 1


@pytest.mark.parametrize("changes", [{"scheduler": {"async_scheduling": True}}, {"pipeline_parallel_size": 2}])
def test_with_steps_under_way_each_still_gets_its_own(changes: dict[str, Any]) -> None:
    scheduler = {"num_blocks": 64, "max_model_len": 512, "max_num_seqs": 4, **changes.get("scheduler", {})}
    config = EngineConfig(workload=None, **{**changes, "scheduler": scheduler})
    with start_engine(config) as process, join(process) as client:
        for id in range(12):
            client.send(submit(id, max_tokens=5 + id))
        seen = follow(client, Seen(), lambda seen: len(seen.ends) == 12)
    assert {number: len(ids) for number, ids in seen.tokens.items()} == {
        reply.number: 5 + id for id, reply in seen.replies.items()
    }
    for record in seen.records:
        if record.executed:
            rows = row_columns(record)
            assert ((rows["emitted"] > 0) <= (rows["tokens"] > 0)).all()


def test_beside_a_workload_a_client_gets_only_its_own() -> None:
    config = EngineConfig(workload=WorkloadSpec(source="mixed", rate=50.0), scheduler={"max_model_len": 4096})
    with start_engine(config) as process, join(process) as client:
        client.send(submit(3, max_tokens=50))
        seen = follow(client, Seen(), lambda seen: seen.ends)
    assert list(seen.tokens) == [seen.replies[3].number]
    assert len(seen.tokens[seen.replies[3].number]) == 50


@pytest.mark.parametrize(
    ("prompt", "number", "text"),
    [
        (np.arange(512, dtype=np.int32), 0, "the prompt has 512 tokens; max_model_len 512"),
        (np.array([], dtype=np.int32), 0, "the prompt is empty"),
        (np.array([-1], dtype=np.int32), -1, "a token id that is not among the model's"),
        (np.array([1 << 30], dtype=np.int32), -1, "a token id that is not among the model's"),
        (np.arange(3, dtype=np.int8), -1, "the prompt has 3 bytes"),
    ],
)
def test_what_cannot_be_served_is_told_at_once(engine: EngineProcess, prompt: Any, number: int, text: str) -> None:
    with join(engine) as client:
        client.send(submit(1, prompt))
        reply = follow(client, Seen(), lambda seen: seen.replies).replies[1]
        assert not reply.ok and reply.number == number and text in reply.text
        client.send(submit(2))
        assert follow(client, Seen(), lambda seen: seen.ends).ends, "the engine goes on"


def test_a_bias_for_a_token_that_is_none_is_refused(engine: EngineProcess) -> None:
    with join(engine) as client:
        client.send(submit(1, sampling=SamplingParams(logit_bias=((1 << 30, 1.0),))))
        reply = follow(client, Seen(), lambda seen: seen.replies).replies[1]
        assert not reply.ok and reply.number == -1 and "logit_bias" in reply.text


def test_an_abort_and_a_hang_up_free_everything(engine: EngineProcess) -> None:
    with join(engine) as client, join(engine) as other:
        client.send(Pause(90))
        client.send(submit(1, max_tokens=400))
        other.send(submit(1, max_tokens=400))
        follow(other, Seen(), lambda seen: seen.replies)
        client.send(StepOnce(91))
        seen = follow(client, Seen(), lambda seen: 91 in seen.replies and any(r.running == 2 for r in seen.records))
        number = seen.replies[1].number
        client.send(Abort(92, number))
        assert follow(client, seen, lambda seen: seen.ends).ends[number].reason == "abort"
        other.close()
        last = follow(client, seen, lambda seen: seen.records[-1].running == 0).records[-1]
        assert last.blocks.held == last.blocks.shared == 0
        assert last.totals.aborted == 2 and last.totals.steps == 1, "no step was needed for it"


def test_a_draining_engine_takes_no_more_and_finishes_what_it_has() -> None:
    config = EngineConfig(workload=None, real_time=True, scheduler={"max_model_len": 512})
    with start_engine(config) as process, join(process) as client:
        client.send(submit(1, max_tokens=40))
        client.send(Drain(2))
        client.send(submit(3))
        seen = follow(client, Seen(), lambda seen: seen.ends)
        assert not seen.replies[3].ok and seen.replies[3].number == -1 and "takes no new" in seen.replies[3].text
        assert seen.ends[0].reason == "length" and len(seen.tokens[0]) == 40


def test_arrivals_count_from_when_the_client_had_them() -> None:
    config = EngineConfig(workload=None, real_time=True, scheduler={"max_model_len": 512})
    with start_engine(config) as process, join(process) as client:
        client.send(submit(1, arrived_s=0.0))
        seen = follow(client, Seen(), lambda seen: seen.ends)
    (arrival,) = (arrival for record in seen.records for arrival in record.arrivals)
    assert arrival.client_wait_s is not None and arrival.client_wait_s > 0
    (admission,) = (admission for record in seen.records for admission in record.admissions)
    assert admission.waited_s >= 0


def test_a_client_is_no_console_and_gets_no_texts() -> None:
    join = Join(0, t.PROTOCOL, console=False)
    assert decode_incoming(encode(join)) == join and Join(0, t.PROTOCOL).console
