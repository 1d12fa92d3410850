"""The HTTP server that the engine starts beside itself."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

import msgspec
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.channel.server import ChannelServer
from schedtop.engine.channel.token_file import ensure_token, token_path
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.http.settings import FAILED, SERVING, HttpSettings, ListenAddress, parse_place

NEEDS = ("starlette", "uvicorn")
END_WITHIN_S = 4.0
_BACKLOG = 2048


class HttpProcess:
    """The child, in its own session: Ctrl+C in a terminal is for the engine to handle."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def watch(
        self, server: ChannelServer, on_serving: Callable[[str], object], on_end: Callable[[str], None]
    ) -> None:
        """Let `server.poll` also read the child's messages: where it serves, or why it ended."""
        stdout = self.process.stdout
        assert stdout is not None

        def read() -> None:
            line = stdout.readline().decode(errors="replace").strip()
            if line.startswith(SERVING):
                on_serving(line.removeprefix(SERVING).strip())
                return
            server.unwatch(stdout)
            on_end(line.removeprefix(FAILED).strip() or "its process ended")

        server.watch(stdout, read)

    def drain(self) -> None:
        """Accept nothing new: answer 503, finish open streams."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        """Wait until the last responses are sent; kill it if that takes too long."""
        self.drain()
        try:
            self.process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def check_http(config: EngineConfig) -> ListenAddress | None:
    """The HTTP address, if any. Raises `ConfigError`."""
    if config.http is None:
        return None
    place = parse_place(config.http)
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--http needs the http extra ({missing[0]} is missing): pip install 'schedtop[http]'")
    return place


def start_http(config: EngineConfig, channel: str) -> HttpProcess | None:
    """Listen where `config` says and start the server, which joins the engine at `channel`; None without `--http`.

    Raises `ConfigError`.
    """
    place = check_http(config)
    if place is None:
        return None
    try:
        token = ensure_token(token_path(config.token_file))
    except ChannelError as error:
        raise ConfigError(str(error)) from None
    with _listen(place) as listener:
        fd = listener.fileno()
        settings = HttpSettings(channel, fd, config, place.loopback, token)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "schedtop.engine.http.service"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[fd],
                start_new_session=True,
            )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(settings) + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise ConfigError(f"cannot start the HTTP server: {error.strerror or error}") from None
    return HttpProcess(process)


def _listen(place: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"--http {place.host}:{place.port}: {error.strerror}: choose another port") from None
    listener.setblocking(False)
    return listener
