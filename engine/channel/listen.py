"""Opening a place to listen that only the engine's owner can reach."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

from schedtop.engine.channel.protocol import ChannelError, Loopback, Unix, parse_address
from schedtop.engine.contract.files.output_files import make_folder

_CREDENTIALS = struct.Struct("3i")


def runtime_dir() -> Path:
    """The owner's directory for sockets, made if missing (mode 0700). Raises `ChannelError`."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "schedtop") if base else Path(tempfile.gettempdir(), f"schedtop-{os.getuid()}")
    try:
        make_folder(path)
        status = path.lstat()
    except OSError as error:
        raise ChannelError(f"cannot make {path} for the socket: {error.strerror}") from None
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    if not (stat.S_ISDIR(status.st_mode) and private):
        raise ChannelError(f"{path} is not a directory that only you can open: remove it or run chmod 700 on it")
    return path


def default_address() -> str:
    """A fresh socket path in `runtime_dir`."""
    return str(runtime_dir() / f"engine-{os.getpid()}-{os.urandom(4).hex()}.sock")


def listen(text: str) -> tuple[socket.socket, str]:
    """A listening, non-blocking socket and its address as text. Raises `ChannelError`."""
    address = parse_address(text)
    if isinstance(address, Loopback):
        return _listen_tcp(address)
    return _listen_unix(address), address.path


def _listen_tcp(address: Loopback) -> tuple[socket.socket, str]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ChannelError(f"cannot listen on tcp:{address.host}:{address.port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener, f"tcp:{address.host}:{listener.getsockname()[1]}"


def _listen_unix(address: Unix) -> socket.socket:
    path = Path(address.path)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        make_folder(path.parent)
        _bind_private(listener, address.path)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ChannelError(f"cannot listen on {path}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def _bind_private(listener: socket.socket, path: str) -> None:
    """The mode must hold from the moment the file exists: chmod after bind would leave a gap."""
    umask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(umask)


def _remove_stale(path: Path) -> None:
    """Remove a socket nobody listens on; raises `ChannelError` if the path is taken by anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ChannelError(f"{path} exists and is not a socket: choose another path")
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ChannelError(f"cannot use {path}: {error.strerror}") from None
    raise ChannelError(f"an engine already listens on {path}: choose another path")


def remove_socket(text: str) -> None:
    """Remove the file of an address, if it has one."""
    address = parse_address(text)
    if isinstance(address, Unix):
        Path(address.path).unlink(missing_ok=True)


def peer_uid(sock: socket.socket) -> int | None:
    """User id at the other end of a Unix socket; None for TCP."""
    if sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)
