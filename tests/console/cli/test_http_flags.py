"""`--http`: where it serves, what it refuses, and the console above it."""

from __future__ import annotations

import os
import pty
import select
import socket
import sys
from pathlib import Path

import pytest
from schedtop.console.cli.main import main

START = "import sys; from schedtop.console.cli.start import program; sys.argv[0] = 'schedtop'; program()"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says why."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    line = capsys.readouterr().err
    assert ended.value.code == 2 and line.count("\n") == 1
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--http", "example.org:80"], "--http example.org:80: 'example.org' is not an address"),
        (["serve", "--http", "127.0.0.1:http"], "'http' is not a port"),
        (["serve", "--http", "127.0.0.1:70000"], "'70000' is not a port"),
        (["serve", "--served-model-name", "x"], "--served-model-name: no client is served: give --http, too"),
        (["serve", "--max-num-queued-reqs", "3"], "--max-num-queued-reqs: no client is served: give --http, too"),
        (["serve", "--http", "--max-num-queued-reqs", "0"], "--max-num-queued-reqs 0: must be at least 1"),
        (["serve", "--http", "--limit", "5"], "--http alone generates nothing: give --workload, too"),
        (["--http"], "--http without a terminal: use schedtop serve --http"),
        (["run", "--http"], "no such option"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words.lower() in refused(arguments, capsys).lower()


def test_a_port_that_is_taken_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(["serve", "--http", place], capsys)
    assert f"--http {place}: Address already in use: choose another port" in line


def test_the_console_runs_above_a_server_for_clients(tmp_path: Path) -> None:
    """In a terminal of its own; what a client asked for is drawn, by the client's own id."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.environ.update(TERM="xterm-256color", COLUMNS="140", LINES="45", SCHEDTOP_TOKEN_FILE=str(tmp_path / "t"))
        os.execv(
            sys.executable, [sys.executable, "-c", START, "--device", "sim:llama-3.1-8b@l4", f"--http=:{port}"]
        )
    body = b'{"prompt": "x", "max_tokens": 400}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: seen-7\r\nContent-Length: %d\r\n\r\n"
    client: socket.socket | None = None
    drawn = ""
    while "seen-7" not in drawn:
        assert select.select([terminal], [], [], 60)[0], drawn[-2000:]
        drawn += os.read(terminal, 1 << 16).decode(errors="replace")
        if client is None and "HTTP at" in drawn:
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
            client.sendall(head % len(body) + body)
    assert client is not None
    os.write(terminal, b"qy\r")
    while True:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:
            break
    assert os.waitpid(pid, 0)[0] == pid
    client.close()
