"""A real engine process with its HTTP server, and a console beside it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from schedtop.engine.channel import ChannelClient
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.config import EngineConfig

SCHEDULER = {"num_blocks": 512, "max_model_len": 1024, "max_num_seqs": 16}


class Served:
    """`http` talks to the server; `console` has joined the engine and reads its records."""

    def __init__(self, engine: EngineProcess, console: ChannelClient, url: str) -> None:
        self.engine = engine
        self.console = console
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self._id = 1000

    @property
    def place(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def complete(self, prompt: Any = "hello", max_tokens: int = 4, **more: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **more})

    def records(self) -> Iterator[t.StepRecord]:
        """Records as they come, without end."""
        while True:
            message = self.console.receive(30)
            assert message is not None, "no record came"
            if isinstance(message, t.StepRecord):
                yield message

    def command(self, command: Any) -> t.Reply:
        self._id += 1
        self.console.send(type(command)(self._id, *[getattr(command, f) for f in command.__struct_fields__[1:]]))
        while True:
            message = self.console.receive(30)
            assert message is not None
            if isinstance(message, t.Reply) and message.command == self._id:
                return message

    def raw(self, data: bytes = b"") -> socket.socket:
        sock = socket.create_connection(self.place, timeout=30)
        sock.sendall(data)
        return sock


@contextmanager
def serving(scheduler: dict[str, Any] | None = None, **settings: Any) -> Iterator[Served]:
    """A simulated engine that answers as fast as it can, unless told otherwise."""
    settings.setdefault("workload", None)
    settings.setdefault("http", "127.0.0.1:0")
    config = EngineConfig(scheduler={**SCHEDULER, **(scheduler or {})}, **settings)
    with start_engine(config) as engine, engine.connect() as console:
        while True:
            message = console.receive(60)
            assert message is not None and not isinstance(message, t.Bye), message
            if isinstance(message, t.Notice) and message.text.startswith("HTTP at "):
                break
        served = Served(engine, console, message.text.split()[2].rstrip(","))
        with served.http:
            yield served


def events(response: httpx.Response) -> list[str]:
    """The data lines of a stream of events, whose form is checked."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text.endswith("\n\n") and "\r" not in response.text
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]
