"""Who may join over TCP, and what a read-only console may do: both are the engine's to hold."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from schedtop.engine.channel import ChannelClient, ChannelError, ChannelServer
from schedtop.engine.channel.protocol import Loopback, parse_address
from schedtop.engine.channel.token_file import VARIABLE, ensure_token
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import Drain, Pause, SetKnobs

TCP = "tcp:127.0.0.1:0"


@pytest.fixture
def tcp(own_token: Path, fake: ModuleType) -> Iterator[ChannelServer]:
    with ChannelServer(TCP, max_peers=2) as server:
        server.ready(fake.header(), lambda: fake.snapshot(0))
        yield server


def take(server: ChannelServer, client: ChannelClient, kind: type[Any]) -> Any:
    for _ in range(2000):
        server.poll(0.001)
        message = client.receive(0)
        if isinstance(message, kind):
            return message
        assert message is None or not isinstance(message, t.Bye), message
    raise AssertionError(f"no {kind.__name__} came")


def test_the_token_is_made_once_for_its_owner_alone(tcp: ChannelServer, own_token: Path) -> None:
    assert stat.S_IMODE(own_token.stat().st_mode) == 0o600
    assert stat.S_IMODE(own_token.parent.stat().st_mode) == 0o700
    token = own_token.read_text()
    with ChannelServer(TCP):
        assert own_token.read_text() == token and len(token) > 40
    assert [path.name for path in own_token.parent.iterdir()] == ["token"]


def test_whoever_gives_the_token_joins(tcp: ChannelServer, tmp_path: Path, own_token: Path) -> None:
    copy = tmp_path / "copy"
    copy.touch(mode=0o600)
    copy.write_text(own_token.read_text())
    with ChannelClient.connect(tcp.address, token_file=str(copy)) as client:
        take(tcp, client, t.Snapshot)


@pytest.mark.parametrize("given", [None, "wrong", "é" * 40])
def test_without_the_token_nobody_joins_and_the_refusal_names_it(
    tcp: ChannelServer, tmp_path: Path, own_token: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    if given:
        other.touch(mode=0o600)
        other.write_text(given)
    monkeypatch.setenv(VARIABLE, str(other))
    with ChannelClient.connect(tcp.address) as client:
        client.send(Drain(1, now=True))
        commands: list[object] = []
        for _ in range(20):
            commands += tcp.poll(0.01)
        bye = client.receive(5)
    assert (
        isinstance(bye, t.Bye) and str(own_token) in bye.reason and own_token.read_text().strip() not in bye.reason
    )
    assert not commands and not tcp.num_joined


def test_a_token_that_others_may_read_is_not_used(own_token: Path) -> None:
    ensure_token(own_token)
    own_token.chmod(0o640)
    for use in (ChannelServer, ChannelClient.connect):
        with pytest.raises(ChannelError, match="chmod 600"):
            use(TCP)


def test_an_empty_token_lets_nobody_in(own_token: Path) -> None:
    ensure_token(own_token)
    own_token.write_text("\n")
    with pytest.raises(ChannelError, match="is empty"):
        ChannelServer(TCP)


@pytest.mark.parametrize("by_engine", [True, False])
def test_read_only_is_held_by_the_engine(tmp_path: Path, fake: ModuleType, by_engine: bool) -> None:
    with ChannelServer(str(tmp_path / "e.sock"), read_only=by_engine) as server:
        server.ready(fake.header(), lambda: fake.snapshot(0))
        with ChannelClient.connect(server.address, read_only=not by_engine) as client:
            take(server, client, t.Snapshot)
            for number, command in enumerate((Drain(0, now=True), SetKnobs(1, {"max_num_seqs": 1}), Pause(2))):
                client.send(command)
                reply = take(server, client, t.Reply)
                assert (reply.command, reply.ok) == (number, False) and "read-only" in reply.text
            assert not server.poll(0)


def test_strangers_take_no_consoles_place(tcp: ChannelServer) -> None:
    place = parse_address(tcp.address)
    assert isinstance(place, Loopback)
    strangers = []
    for _ in range(10):
        strangers.append(socket.create_connection(place, timeout=5))
        tcp.poll(0.01)
    clients = [ChannelClient.connect(tcp.address) for _ in range(2)]
    for client in clients:
        take(tcp, client, t.Snapshot)
    for sock in [*clients, *strangers]:
        sock.close()
