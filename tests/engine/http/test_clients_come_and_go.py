"""Clients that hang up, read slowly or come in crowds; an engine that ends under them."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import Abort, Pause, Resume
from schedtop.engine.contract.reading import row_columns

from tests.engine.http.served import Served, events, serving

LONG = {"prompt": "x", "max_tokens": 900}


def request(served: Served, body: dict[str, object]) -> socket.socket:
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data)
    return served.raw(head + data)


def until_running(served: Served, count: int) -> t.StepRecord:
    return next(record for record in served.records() if record.running == count)


def reset(sock: socket.socket) -> None:
    """Hang up without a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.fixture(scope="module")
def lasting(token_file: Path) -> Iterator[Served]:
    """A server in real time for the tests that leave it as they found it."""
    with serving(real_time=True) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_hangs_up_frees_its_blocks(lasting: Served, stream: bool, how: str) -> None:
    sock = request(lasting, {**LONG, "stream": stream})
    until_running(lasting, 1)
    if stream:
        assert b"200 OK" in sock.recv(1 << 16)
    {"close": sock.close, "reset": lambda: reset(sock), "half": lambda: sock.shutdown(socket.SHUT_WR)}[how]()
    record = next(record for record in lasting.records() if record.finishes)
    assert [finish.reason for finish in record.finishes] == ["abort"]
    assert record.running == record.blocks.held == record.blocks.shared == 0
    assert lasting.complete().status_code == 200
    record = next(record for record in lasting.records() if record.finishes)
    assert [finish.reason for finish in record.finishes] == ["length"]


def test_a_client_that_hangs_up_before_anything_ran_leaves_nothing() -> None:
    with serving(real_time=True) as served:
        served.command(Pause(0))
        reset(request(served, LONG))
        with served.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"):
            pass
        for record in served.records():
            if record.finishes:
                break
        assert [finish.reason for finish in record.finishes] == ["abort"] and record.totals.steps == 0
        served.command(Resume(0))
        assert served.complete().status_code == 200


def test_a_slow_reader_gets_many_tokens_at_once_and_holds_nobody_up() -> None:
    """The engine runs flat out, so that its tokens are ready long before the client reads."""
    with serving({"max_model_len": 4096}) as served:
        slow = request(served, {"prompt": "x", "max_tokens": 4000, "stream": True})
        until_running(served, 1)
        for _ in range(3):
            assert served.complete().status_code == 200
        received = b""
        while b"[DONE]" not in received:
            received += slow.recv(1 << 16)
        slow.close()
        texts = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
        words = "".join(chunk["choices"][0]["text"] for chunk in texts).split()
        assert len(words) == 4000 and len(texts) < 4000


def test_a_full_queue_is_503_with_when_to_come_back() -> None:
    with serving({"max_num_seqs": 1}, real_time=True, max_num_queued_reqs=8) as served:
        served.command(Pause(0))
        # All at once: one that is being queued must not count twice.
        waiting = [request(served, {**LONG, "max_tokens": 2}) for _ in range(8)]
        next(record for record in served.records() if record.waiting == 8)
        refused = served.complete()
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        page = served.http.get("/metrics").text
        assert 'vllm:admission_rejections_total{model_name="llama-3.1-8b",reason="max_num_queued_reqs"} 1.0' in page
        served.command(Resume(0))
        for sock in waiting:
            assert b"200 OK" in sock.recv(1 << 16)
            sock.close()
        assert served.complete().status_code == 200


def test_an_operators_abort_ends_the_answer(lasting: Served) -> None:
    done: list[httpx.Response] = []
    client = threading.Thread(target=lambda: done.append(lasting.post("/v1/completions", LONG)))
    client.start()
    record = until_running(lasting, 1)
    assert lasting.command(Abort(0, int(row_columns(record)["request"][0]))).ok
    client.join()
    assert done[0].json()["choices"][0]["finish_reason"] == "abort"


def stream_in_thread(served: Served, body: dict[str, object], done: list[httpx.Response]) -> threading.Thread:
    thread = threading.Thread(target=lambda: done.append(served.post("/v1/completions", {**body, "stream": True})))
    thread.start()
    return thread


def test_sigterm_finishes_answers_and_takes_no_more() -> None:
    with serving(real_time=True) as served:
        done: list[httpx.Response] = []
        client = stream_in_thread(served, {**LONG, "max_tokens": 100}, done)
        until_running(served, 1)
        served.engine.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=served.url, trust_env=False) as other:
            while other.get("/health").status_code == 200:
                pass
            refused = other.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503 and "ending" in refused.json()["error"]["message"]
        client.join()
        assert events(done[0])[-1] == "[DONE]"
        words = [json.loads(line)["choices"][0]["text"] for line in events(done[0])[:-1]]
        assert len("".join(words).split()) == 100
        assert served.engine.process.wait(20) == 0


def test_a_second_sigterm_ends_answers_with_an_error() -> None:
    with serving(real_time=True) as served:
        done: list[httpx.Response] = []
        client = stream_in_thread(served, LONG, done)
        until_running(served, 1)
        served.engine.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=served.url, trust_env=False) as other:
            while other.get("/health").status_code == 200:
                pass
        served.engine.process.send_signal(signal.SIGTERM)
        client.join()
        last = json.loads(events(done[0])[-1])
        assert last["error"]["code"] == 503 and "SIGTERM" in last["error"]["message"]
        assert served.engine.process.wait(20) == 0


def test_an_engine_that_dies_ends_answers_with_an_error_and_its_server_with_it() -> None:
    with serving(real_time=True) as served:
        done: list[httpx.Response] = []
        client = stream_in_thread(served, LONG, done)
        next(record for record in served.records() if record.totals.output_tokens > 2)
        served.engine.process.kill()
        client.join()
        assert "error" in json.loads(events(done[0])[-1])
        while True:  # the port is free once the server is gone
            try:
                socket.create_connection(served.place, timeout=5).close()
            except ConnectionRefusedError:
                break
            except ConnectionResetError:  # it goes while it answers
                continue


def test_a_server_that_dies_ends_its_requests_and_the_engine() -> None:
    with serving(real_time=True) as served:
        sock = request(served, LONG)
        until_running(served, 1)
        children = Path(f"/proc/{served.engine.process.pid}/task").glob("*/children")
        (pid,) = [pid for child in children for pid in child.read_text().split()]
        os.kill(int(pid), signal.SIGKILL)
        assert served.engine.process.wait(20) == 1
        assert "HTTP: its process ended" in "\n".join(served.engine.stderr_tail())
        sock.close()
