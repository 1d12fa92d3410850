"""The page's server under those who connect and say nothing, say it slowly, or ask in another's name."""

from __future__ import annotations

import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedtop.engine.metrics.page_server import MOST_CONNECTIONS, PageServer


@pytest.fixture
def port() -> Iterator[int]:
    def app(environ: object, start_response: object) -> list[bytes]:
        start_response("200 OK", [])  # type: ignore[operator]
        return [b"figures"]

    server = PageServer(0, app)
    yield server.server_port
    server.close()


def asked(port: int, host: str | None = None) -> bytes:
    headers = {} if host is None else {"Host": host}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


def descriptors() -> int:
    return len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))


def test_idle_connections_take_neither_descriptors_nor_the_page(port: int) -> None:
    before = descriptors()
    idle = []
    for _ in range(60):
        idle.append(socket.create_connection(("127.0.0.1", port), timeout=30))
        idle[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
    assert asked(port) == b"figures"
    for sock in idle[:-MOST_CONNECTIONS]:
        while sock.recv(4096):  # each was hung up on
            pass
    assert descriptors() < before + len(idle) + 2 * MOST_CONNECTIONS  # not one at this end for each of them
    assert sum(thread.name.startswith("Thread-") for thread in threading.enumerate()) <= MOST_CONNECTIONS + 4
    for sock in idle:
        sock.close()


@pytest.mark.parametrize("host", [None, "localhost", "localhost:9400", "127.0.0.1:1", "[::1]:80", "LOCALHOST"])
def test_this_machine_is_answered(port: int, host: str | None) -> None:
    assert asked(port, host) == b"figures"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9400", "127.0.0.1.evil.example", "localhost.evil", ""]
)
def test_a_page_of_another_site_is_not(port: int, host: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(port, host)
    assert refused.value.code == 403
    assert b"only for this machine" in refused.value.read()
    refused.value.close()
