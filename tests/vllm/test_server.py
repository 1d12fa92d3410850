"""The hook in a real vLLM server, with real clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedtop.console.past.state import LiveState
from schedtop.engine.contract.commands import Abort, Pause, Resume, SetKnobs
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import Bye, Header, Notice, Reply, Snapshot, StepRecord
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.recording import Recording
from schedtop.engine.scrape.fetch import Fetcher

from tests.vllm.clients import Console, ask
from tests.vllm.conftest import Server

CLIENTS = [int(count) for count in os.environ.get("SCHEDTOP_TEST_CLIENTS", "8,32").split(",")]
TOKENS = int(os.environ.get("SCHEDTOP_TEST_TOKENS", "12"))


@pytest.fixture
def console(server: Server) -> Iterator[Console]:
    console = Console(server.address)
    console.until(lambda message: isinstance(message, Snapshot))
    yield console
    console.close()


@pytest.mark.parametrize("count", CLIENTS)
def test_every_life_is_what_its_client_saw(server: Server, console: Console, count: int) -> None:
    pages = [Fetcher(server.url).fetch()]
    answers = ask(server.url, f"life{count}x", count, TOKENS)
    console.until(
        lambda message: (
            isinstance(message, StepRecord)
            and not message.running
            and not message.waiting
            and message.executed
            and len(console.lives(f"life{count}x")) == count
        )
    )
    pages.append(Fetcher(server.url).fetch())
    lives = console.lives(f"life{count}x")
    assert lives.keys() == {answer.name for answer in answers}
    emitted: dict[int, int] = {}
    for record in console.records:
        columns = row_columns(record)
        for number, tokens in zip(columns["request"].tolist(), columns["emitted"].tolist(), strict=True):
            emitted[number] = emitted.get(number, 0) + tokens
    for answer in answers:
        arrival, finish = lives[answer.name]
        assert finish is not None
        assert (arrival.prompt_tokens, finish.output_tokens) == (answer.prompt_tokens, answer.output_tokens)
        assert (finish.reason, emitted[arrival.number]) == (answer.reason, answer.output_tokens)
        assert arrival.client_wait_s is not None and arrival.client_wait_s >= 0
    (before,), (after,) = (page.values() for page in pages)
    for figure, mine in (
        ("output_tokens", sum(a.output_tokens for a in answers)),
        ("prompt_tokens", sum(a.prompt_tokens for a in answers)),
    ):
        assert after.counters[figure] - before.counters[figure] == pytest.approx(mine, rel=0.05)
    assert console.records[-1].blocks.held == 0


def test_a_lower_cap_drains_and_texts_stay_the_same(server: Server, console: Console) -> None:
    plain = ask(server.url, "plain", 10, 4 * TOKENS)
    last = console.records[-1].step

    def turn() -> None:
        console.until(
            lambda message: isinstance(message, StepRecord) and message.running == 10 and message.step > last
        )
        assert console.ask(lambda id: SetKnobs(id, {"max_num_seqs": 2}, by="test")).ok
        assert console.ask(
            lambda id: SetKnobs(id, {"max_num_scheduled_tokens": 48, "long_prefill_token_threshold": 32})
        ).ok
        refused = console.ask(lambda id: SetKnobs(id, {"max_num_seqs": 17}))
        assert not refused.ok and "at most 16" in refused.text

    turned = ask(server.url, "turned", 10, 4 * TOKENS, turn)
    assert [answer.digest for answer in turned] == [answer.digest for answer in plain]
    assert all(answer.reason == "length" for answer in turned)
    first = next(place for place, record in enumerate(console.records) if record.knobs)
    changed = [change.new for record in console.records[first:] for change in record.knobs]
    assert changed == [2, 48, 32]
    running = [record.running for record in console.records[first:]]
    assert running == sorted(running, reverse=True), "nobody is admitted above the cap"
    assert running[0] > 2 and 2 in running
    limits_hold(server, console)
    back = {"max_num_seqs": 16, "max_num_scheduled_tokens": None, "long_prefill_token_threshold": 0}
    assert console.ask(lambda id: SetKnobs(id, back)).ok
    console.until(
        lambda message: (
            isinstance(message, StepRecord) and message.knobs_version == console.records[0].knobs_version + 3
        )
    )


def limits_hold(server: Server, console: Console) -> None:
    """Under the cap of 2, the budget of 48 and the threshold of 32 that are set."""
    before = len(console.records)
    ask(server.url, "limited", 6, TOKENS, word="other")
    records = console.records[before:]
    longest = [int(row_columns(record)["tokens"].max(initial=0)) for record in records]
    assert max(record.scheduled_tokens for record in records) <= 48
    assert max(longest) == 32 and max(record.running for record in records) == 2


def test_a_trial_that_breaks_its_slo_is_taken_back_by_the_server(server: Server, console: Console) -> None:
    """No gap is as short as this SLO asks; the console does nothing."""
    before = len(console.records)

    def turn() -> None:
        reply = console.ask(
            lambda id: SetKnobs(id, {"max_num_seqs": 8}, by="test", trial_s=3600.0, slo_s={"itl": 1e-6})
        )
        assert reply.ok, reply.text
        console.until(lambda message: isinstance(message, Notice) and "back to max_num_seqs 16" in message.text)

    answers = ask(server.url, "tried", 8, 4 * TOKENS, turn)
    assert all(answer.reason == "length" for answer in answers)
    changes = [change for record in console.records[before:] for change in record.knobs]
    assert [(change.old, change.new) for change in changes] == [(16, 8), (8, 16)]


def test_a_pause_holds_admissions_and_an_abort_tells_its_client(server: Server, console: Console) -> None:
    """The engine is idle when the pause comes, and sleeps while it holds."""
    assert console.ask(Pause).text == "paused"

    def act() -> None:
        waiting = console.until(
            lambda message: isinstance(message, StepRecord) and message.paused and message.waiting == 2
        )
        assert waiting.limiter == "paused"
        number = console.lives("held")["held1"][0].number
        assert console.ask(lambda id: Abort(id, number)).ok
        ended = console.until(
            lambda message: (
                isinstance(message, StepRecord) and any(finish.number == number for finish in message.finishes)
            )
        )
        assert [finish.reason for finish in ended.finishes] == ["abort"]
        assert console.ask(Resume).text == "running"

    first, second = ask(server.url, "held", 2, TOKENS, act)
    assert (first.output_tokens, first.reason) == (TOKENS, "length")
    assert second.output_tokens == 0


def test_consoles_that_die_hang_or_flood_cost_the_server_nothing(server: Server, console: Console) -> None:
    code = (
        "import sys, time; from schedtop.engine.channel.client import ChannelClient;"
        f"ChannelClient.connect({server.address!r}); print('joined', flush=True); time.sleep(600)"
    )
    hung = subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE)
    assert hung.stdout is not None and hung.stdout.readline() == b"joined\n"
    flood = Console(server.address)

    def harm() -> None:
        os.kill(hung.pid, signal.SIGKILL)
        hung.wait()
        for _ in range(200):
            flood.link.send(SetKnobs(1, {"max_num_seqs": 99}))
        flood.until(lambda message: isinstance(message, Reply) and not message.ok)

    answers = ask(server.url, "harm", 4, TOKENS, harm)
    assert all(answer.reason == "length" for answer in answers)
    flood.close()


def recorded(address: str, path: Path) -> None:
    """`schedtop record`, from the server's start."""
    program = "from schedtop.console.cli.start import program; program()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "record", address, "-o", str(path), "--duration", "3"],
        capture_output=True,
        text=True,
    )
    assert "from the engine's start" in done.stderr, done.stderr


def test_a_recording_from_the_start_is_decided_alike(server: Server, tmp_path: Path) -> None:
    """Of all that the tests before did: caps, budgets, a pause and an abort."""
    path = tmp_path / "server.rec"
    recorded(server.address, path)
    with Recording(path) as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps > 0


def test_an_asynchronous_server_is_decided_alike(tmp_path: Path) -> None:
    """Caps, a pause, clients that leave in the middle and preemptions, while steps overlap."""
    flags = ("--num-gpu-blocks-override", "12", "--block-size", "32", "--max-model-len", "320")
    server = Server(tmp_path, *flags, overlaps=True)
    try:
        server.await_ready()
        console = Console(server.address)
        header = console.until(lambda message: isinstance(message, Header))
        assert header.config["async_scheduling"]

        def turn() -> None:
            console.until(lambda message: isinstance(message, StepRecord) and message.running > 2)
            number = next(iter(console.lives("over").values()))[0].number
            assert console.ask(lambda id: Abort(id, number)).ok
            assert console.ask(lambda id: SetKnobs(id, {"max_num_seqs": 3, "max_num_scheduled_tokens": 64})).ok
            assert console.ask(Pause).ok and console.ask(Resume).ok

        ask(server.url, "over", 12, 4 * TOKENS, turn)
        path = tmp_path / "server.rec"
        recorded(server.address, path)
    finally:
        server.close()
    with Recording(path) as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps > 0 and verdict.preemptions and verdict.aborted


def test_what_a_console_folds_is_what_a_snapshot_says(server: Server, console: Console) -> None:
    ask(server.url, "fold", 3, TOKENS)
    late = Console(server.address)
    snapshot = late.until(lambda message: isinstance(message, Snapshot))
    console.until(lambda message: isinstance(message, StepRecord) and message.seq >= snapshot.seq)
    state = LiveState()
    for message in console.messages:
        if isinstance(message, Snapshot):
            state.start_afresh(message)
        elif isinstance(message, StepRecord) and message.seq <= snapshot.seq:
            state.apply(message)
    known = state.snapshot()
    assert (known.block_classes, known.totals, known.knobs) == (
        snapshot.block_classes,
        snapshot.totals,
        snapshot.knobs,
    )
    late.close()


def test_a_server_that_was_killed_starts_again_at_the_same_address(tmp_path: Path) -> None:
    """Last: it takes a server of its own."""
    first = Server(tmp_path)
    try:
        first.await_ready()
        console = Console(first.address)
        console.until(lambda message: isinstance(message, Header))
        first.close(signal.SIGKILL)
    finally:
        first.close(signal.SIGKILL)
    assert (tmp_path / "0.sock").exists()  # nobody removed it
    second = Server(tmp_path, "--shutdown-timeout", "60")  # else its front end kills the engine first
    try:
        second.await_ready()
        console = Console(second.address)
        assert console.until(lambda message: isinstance(message, Header)).engine == "vllm"
        assert all(answer.reason == "length" for answer in ask(second.url, "again", 1, 2))
        second.close()
        assert "shutting down" in console.until(lambda message: isinstance(message, Bye)).reason
    finally:
        second.close(signal.SIGKILL)
