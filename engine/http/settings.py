"""What the HTTP process gets as its first line of stdin, and where a server may listen."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

import msgspec
from schedtop.engine.contract.config import ConfigError, EngineConfig

SERVING, FAILED = "serving", "failed"
"""The prefix of the process's line on stdout."""

DEFAULT_PLACE = "127.0.0.1:8000"
MAX_BODY_BYTES = 16 << 20
MAX_HEADERS = 128


class HttpSettings(msgspec.Struct, frozen=True):
    """`channel` is the engine's address, `socket_fd` a listening socket, `token` what those who may command know."""

    channel: str
    socket_fd: int
    config: EngineConfig
    loopback: bool
    token: str


class ListenAddress(NamedTuple):
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback


def parse_place(text: str) -> ListenAddress:
    """`HOST:PORT`, `HOST` or `:PORT`; the host is an address, or localhost. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, ""
    host, port = host.strip("[]") or "127.0.0.1", port or "8000"
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"--http {text}: {host!r} is not an address: write HOST:PORT, as in {DEFAULT_PLACE}"
        ) from None
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"--http {text}: {port!r} is not a port: write 0 to 65535")
    return ListenAddress(host, int(port))
