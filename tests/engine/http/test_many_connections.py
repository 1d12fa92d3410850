"""More connections than the server has descriptors for."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.engine.http.served import Served, serving

NUM_FILES = 120
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server whose processes may have few descriptors."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES))
    monkeypatch.setattr(subprocess, "Popen", partial(subprocess.Popen, preexec_fn=limit))
    with serving() as served:
        yield served


@pytest.mark.parametrize("asks", [b"", HEALTH], ids=["silent", "kept alive"])
def test_idle_connections_make_room_for_those_who_ask(narrow: Served, asks: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(2 * NUM_FILES):
            sock = stack.enter_context(narrow.raw(asks))
            if asks:
                assert b" 200 " in sock.recv(65536)
        assert narrow.complete().status_code == 200
        with narrow.engine.connect() as console:
            assert console.receive(30) is not None
