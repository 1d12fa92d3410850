"""What a killed engine leaves behind, and who removes it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from schedtop.engine.channel.spawn import start_engine
from schedtop.engine.channel.stale_sockets import remove_leftovers
from schedtop.engine.contract.config import EngineConfig


@pytest.fixture(scope="module")
def dead() -> int:
    """The id of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Short enough for a socket, wherever the tests lie."""
    monkeypatch.chdir(tmp_path)
    return Path(".")


def bound(path: Path, *, listening: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    if listening:
        made.listen(0)
    return made


def name(process: int, number: int = 0) -> str:
    return f"engine-{process}-{number:08x}.sock"


def test_what_nobody_listens_on_is_removed(folder: Path, dead: int) -> None:
    bound(folder / name(dead)).close()
    assert remove_leftovers(folder) == [folder / name(dead)]
    assert not list(folder.iterdir())


def test_a_socket_somebody_listens_on_stays_also_with_a_full_backlog(folder: Path, dead: int) -> None:
    with bound(folder / name(dead), listening=True) as listener:
        assert remove_leftovers(folder) == []
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(8)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(folder / name(dead)))
        assert remove_leftovers(folder) == []
        for client in waiting:
            client.close()
        listener.accept()[0].close()


def test_a_socket_whose_engine_does_not_listen_yet_stays(folder: Path) -> None:
    with bound(folder / name(os.getpid())):
        assert remove_leftovers(folder) == []


def test_nothing_else_is_touched(folder: Path, dead: int) -> None:
    (folder / name(dead)).write_text("a file")
    (folder / name(dead, 1)).symlink_to(name(dead, 2))
    bound(folder / "mine.sock").close()
    bound(folder / f"engine-{dead}-x.sock").close()
    before = sorted(folder.iterdir())
    assert remove_leftovers(folder) == [] and sorted(folder.iterdir()) == before
    assert remove_leftovers(folder / "missing") == []


def test_the_next_engine_sweeps(folder: Path, dead: int) -> None:
    left = folder.absolute() / name(dead, 3)
    bound(folder / left.name).close()
    config = EngineConfig(device="sim:llama-3.1-8b@h100", socket=str(folder.absolute() / name(os.getpid(), 4)))
    with start_engine(config) as engine:
        client = engine.connect(60.0)
        while client.receive(60.0) is None:
            pass  # it has said something: it serves
        client.close()
        assert not left.exists() and Path(engine.address).exists()
