"""Both ends of the channel, joined by real sockets and driven from one thread."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedtop.engine.channel import ChannelClient, ChannelClosedError, ChannelError, ChannelServer, encode
from schedtop.engine.channel import listen as listening
from schedtop.engine.channel.protocol import FrameBuffer, decode_incoming, decode_outgoing, frame, parse_address
from schedtop.engine.channel.token_file import read_token, token_path
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import Abort, Incoming, Join, Pause, SetKnobs
from schedtop.engine.contract.reading import itl_column, row_matrix


def take(server: ChannelServer, client: ChannelClient, kind: type[Any]) -> Any:
    """The client's next message, which must be of `kind`; the server is polled until it comes."""
    for _ in range(2000):
        server.poll(0)
        message = client.receive(0.001)
        if message is not None:
            assert isinstance(message, kind), message
            return message
    raise AssertionError(f"no {kind.__name__} came")


def commands(server: ChannelServer, count: int) -> list[tuple[Any, Incoming]]:
    got: list[tuple[Any, Incoming]] = []
    while len(got) < count:
        got += server.poll(1.0)
    return got


def raw(server: ChannelServer) -> socket.socket:
    address = parse_address(server.address)
    if isinstance(address, listening.Loopback):
        return socket.create_connection(address, timeout=5)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(address.path)
    return sock


def last_words(server: ChannelServer, sock: socket.socket) -> list[t.Outgoing]:
    """All the server says on a raw socket until it hangs up."""
    sock.setblocking(False)
    buffer = FrameBuffer(1 << 20)
    for _ in range(2000):
        server.poll(0.001)
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            continue
        except ConnectionError:
            break
        if not data:
            break
        buffer.feed(data)
    else:
        raise AssertionError("the server did not hang up")
    messages = []
    while (body := buffer.next()) is not None:
        messages.append(decode_outgoing(body))
    return messages


def test_a_console_gets_stages_header_snapshot_and_every_record(server: ChannelServer, fake: ModuleType) -> None:
    server.stage(t.Stage("loading weights", 0.1))
    with ChannelClient.connect(server.address) as client:
        assert take(server, client, t.Stage).name == "loading weights"
        server.ready(fake.header(), lambda: fake.snapshot(7))
        assert take(server, client, t.Header) == fake.header()
        assert take(server, client, t.Snapshot).seq == 7
        records = [fake.record(seq) for seq in range(8, 40)]
        for record in records:
            server.write(record, encode(record))
        assert [take(server, client, t.StepRecord) for _ in records] == records
        server.close(t.Bye("done", 39), within_s=0)
        assert client.receive(1) == t.Bye("done", 39)
        with pytest.raises(ChannelClosedError):
            client.receive(1)


def test_a_late_console_hears_up_to_when_the_last_minutes_reach(server: ChannelServer, fake: ModuleType) -> None:
    minutes: list[t.Message] = [fake.snapshot(2), *(fake.record(seq) for seq in range(3, 8))]
    server.recent, server.newest_s = lambda: [b"".join(frame(encode(item))) for item in minutes], lambda: 12.5
    server.ready(fake.header(), lambda: fake.snapshot(7))
    with ChannelClient.connect(server.address, recent=True) as late, ChannelClient.connect(server.address) as other:
        assert take(server, late, t.Header) == msgspec.structs.replace(fake.header(), newest_s=12.5)
        assert [take(server, late, type(item)) for item in minutes] == minutes
        assert take(server, other, t.Header) == fake.header(), "nothing old follows"


def test_commands_are_answered_in_order(server: ChannelServer, fake: ModuleType) -> None:
    server.ready(fake.header(), lambda: fake.snapshot(0))
    with ChannelClient.connect(server.address) as client:
        take(server, client, t.Header)
        take(server, client, t.Snapshot)
        sent = [
            SetKnobs(1, {"max_num_seqs": 4, "policy": None}, expected_version=3, by="key"),
            Pause(2),
            Abort(3, 17),
        ]
        for command in sent:
            client.send(command)
        got = commands(server, 3)
        assert [command for _, command in got] == sent
        for peer, command in got:
            server.reply(peer, t.Reply(command.id, True, "ok", 1))
        assert [take(server, client, t.Reply).command for _ in sent] == [1, 2, 3]


def test_a_full_outbox_drops_whole_records_and_a_snapshot_follows(server: ChannelServer, fake: ModuleType) -> None:
    seq = 0
    server.ready(fake.header(), lambda: fake.snapshot(seq))
    with ChannelClient.connect(server.address) as client:
        take(server, client, t.Header)
        take(server, client, t.Snapshot)
        (peer,) = server._peers
        while peer.lost_records < 100:
            seq += 1
            record = fake.record(seq, num_rows=64)
            server.write(record, encode(record))
            server.poll(0)
        server.notice(t.Notice("info", "kept"))
        assert peer.outbox_bytes < (1 << 16) + 4096, "the outbox is bounded"
        peer.synced_at = 0.0
        got: list[t.Outgoing] = []
        while not (got and isinstance(got[-1], t.Snapshot)):
            server.poll(0)
            message = client.receive(0.01)
            if message is not None:
                got.append(message)
        records = [m for m in got if isinstance(m, t.StepRecord)]
        resync = got[-1]
        assert isinstance(resync, t.Snapshot)
        assert [r.seq for r in records] == list(range(1, len(records) + 1)), "what came is whole and in order"
        assert resync.dropped == seq - len(records) == 100
        assert (resync.seq, resync.totals.steps) == (seq, seq), "totals lose nothing"
        assert any(isinstance(m, t.Notice) for m in got), "notices are never dropped"
        record = fake.record(seq + 1)
        server.write(record, encode(record))
        assert take(server, client, t.StepRecord).seq == seq + 1


def test_unread_replies_stop_the_reading_of_commands(server: ChannelServer, fake: ModuleType) -> None:
    """A console that asks without ever reading cannot make the engine hoard answers."""
    server.ready(fake.header(), lambda: fake.snapshot(0))
    sock = raw(server)
    sock.sendall(b"".join(frame(encode(Join(0, t.PROTOCOL, read_token(token_path()))))))
    sock.setblocking(False)
    ask = b"".join(frame(encode(Pause(1)))) * 500
    stalled = 0
    while stalled < 50:
        for peer, command in server.poll(0):
            server.reply(peer, t.Reply(command.id, True, "x" * 500, 1))
        try:
            sock.send(ask)
            stalled = 0
        except BlockingIOError:
            stalled += 1
    # One read's worth of commands may still be answered after the outbox is full.
    assert server._peers[0].outbox_bytes < (1 << 16) + (1 << 16) / len(encode(Pause(1))) * 600
    sock.close()


def test_another_protocol_is_one_clear_line_on_both_sides(server: ChannelServer, fake: ModuleType) -> None:
    sock = raw(server)
    sock.sendall(b"".join(frame(msgspec.msgpack.encode([107, 0, 99, "a field of the future"]))))
    (bye,) = last_words(server, sock)
    assert isinstance(bye, t.Bye)
    assert f"protocol {t.PROTOCOL} and the console 99" in bye.reason
    sock.close()
    future = msgspec.msgpack.encode([2, 99, "engine", {"unknown": []}])
    with pytest.raises(ChannelError, match=rf"^the engine speaks protocol 99 and the console {t.PROTOCOL}: .*\Z"):
        decode_outgoing(future)
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(fake.header())), "appended", 1, 2])
    assert decode_outgoing(longer) == fake.header(), "appended fields are no mismatch"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 0),
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        b"".join(frame(b"\x91" * 100_000)),
        b"".join(frame(encode(Pause(1)))),
        b"".join(frame(encode(Join(0, t.PROTOCOL)))) + b"".join(frame(b"\x94\x65\x01\x81\xa1a" + b"\x91" * 5000)),
    ],
)
def test_hostile_bytes_end_that_connection_only(server: ChannelServer, fake: ModuleType, data: bytes) -> None:
    server.ready(fake.header(), lambda: fake.snapshot(0))
    with ChannelClient.connect(server.address) as client:
        take(server, client, t.Header)
        sock = raw(server)
        sock.sendall(data)
        bye = last_words(server, sock)[-1]
        assert isinstance(bye, t.Bye) and bye.reason and "\n" not in bye.reason
        sock.close()
        take(server, client, t.Snapshot)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    for decode in (decode_outgoing, decode_incoming):
        try:
            decode(body)
        except ChannelError as error:
            assert "\n" not in str(error)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_record_is_refused_or_has_whole_arrays(fake: ModuleType, data: st.DataObject) -> None:
    body = bytearray(encode(fake.record(5)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode_outgoing(bytes(body))
    except ChannelError:
        return
    if isinstance(message, t.StepRecord):
        assert len(row_matrix(message)[0]) == len(itl_column(message))


def test_a_hostile_engine_is_an_error_of_the_client(tmp_path: Path) -> None:
    listener, address = listening.listen(str(tmp_path / "evil.sock"))
    listener.setblocking(True)
    with listener, ChannelClient.connect(address) as client:
        evil, _ = listener.accept()
        evil.sendall(struct.pack("<I", 0xFFFFFFF0))
        with pytest.raises(ChannelError, match="claims 4294967280 bytes"):
            client.receive(5)
        evil.close()


def test_a_dead_engine_is_seen_at_once_and_its_last_words_are_read(server: ChannelServer, fake: ModuleType) -> None:
    server.ready(fake.header(), lambda: fake.snapshot(0))
    client = ChannelClient.connect(server.address)
    take(server, client, t.Header)
    take(server, client, t.Snapshot)
    server.close(t.Bye("crash", 3), within_s=0)
    with pytest.raises(ChannelClosedError):
        for _ in range(3):
            client.send(Pause(1))
    assert client.receive(5) == t.Bye("crash", 3)
    with pytest.raises(ChannelClosedError, match=r"gone|broke"):
        client.receive(5)
    client.close()
    with pytest.raises(ChannelError, match="no engine at"):
        ChannelClient.connect(server.address)


def test_close_wakes_a_waiting_receive(server: ChannelServer) -> None:
    client = ChannelClient.connect(server.address)
    errors: list[ChannelError] = []

    def wait() -> None:
        try:
            client.receive()
        except ChannelClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    client.close()
    thread.join(10)
    assert [str(error) for error in errors] == ["the connection was closed"]


def test_too_many_consoles_are_turned_away_with_a_reason(server: ChannelServer, fake: ModuleType) -> None:
    server.ready(fake.header(), lambda: fake.snapshot(0))
    clients = [ChannelClient.connect(server.address) for _ in range(4)]
    for client in clients[:3]:
        take(server, client, t.Header)
    assert "3 consoles" in take(server, clients[3], t.Bye).reason
    for client in clients:
        client.close()


def test_a_silent_connection_is_dropped(server: ChannelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedtop.engine.channel.server.JOIN_WITHIN_S", 0.0)
    sock = raw(server)
    assert last_words(server, sock) == []
    sock.close()


def test_another_user_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChannelServer(str(tmp_path / "e.sock")) as server:
        monkeypatch.setattr("schedtop.engine.channel.server.peer_uid", lambda sock: os.getuid() + 1)
        sock = raw(server)
        (bye,) = last_words(server, sock)
        assert isinstance(bye, t.Bye) and "belongs to user" in bye.reason
        sock.close()
    assert listening.peer_uid(socket.socketpair(socket.AF_UNIX)[0]) == os.getuid()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name: 107 bytes hold both."""
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        yield Path(folder)


def test_the_socket_is_private_and_removed_at_the_end(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    address = listening.default_address()
    with ChannelServer(address):
        assert stat.S_IMODE(Path(address).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(address).parent.stat().st_mode) == 0o700
        with pytest.raises(ChannelError, match="already listens"):
            ChannelServer(address)
    assert not Path(address).exists()
    Path(address).parent.chmod(0o755)
    with pytest.raises(ChannelError, match="chmod 700"):
        listening.default_address()


def test_a_stale_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(stale))
    ChannelServer(str(stale)).close(t.Bye("", 0))
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ChannelError, match="not a socket"):
        ChannelServer(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"


def test_a_missing_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    server = ChannelServer(str(tmp_path / "new" / "engine.sock"))
    try:
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "new" / "engine.sock").stat().st_mode) == 0o600
    finally:
        server.close(t.Bye("", 0))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp:0.0.0.0:80", "only a loopback host"),
        ("tcp:example.org:80", "only a loopback host"),
        ("tcp:127.0.0.1", "has no port"),
        ("tcp:127.0.0.1:70000", "has no port 70000: .*0 to 65535"),
        ("/" + "x" * 107, "longer than 107 bytes"),
        ("localhost:9000", "not an address"),
        ("http://127.0.0.1:9000/", "not an address"),
        ("", "not an address"),
        ("/nowhere\0", "not an address"),
    ],
)
def test_a_bad_address_is_one_clear_line(address: str, reason: str) -> None:
    for use in (ChannelServer, ChannelClient.connect):
        with pytest.raises(ChannelError, match=reason):
            use(address)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_frames_survive_any_fragmentation(bodies: list[bytes], size: int) -> None:
    stream = b"".join(part for body in bodies for part in frame(body))
    buffer, got = FrameBuffer(1000), []
    for start in range(0, len(stream), size):
        buffer.feed(stream[start : start + size])
        while (body := buffer.next()) is not None:
            got.append(bytes(body))
    assert got == bodies


def test_a_message_is_not_held_back_until_the_next_one_comes() -> None:
    """Whatever the time allowed for sending."""
    ours, theirs = socket.socketpair()
    ours.settimeout(3600)
    client = ChannelClient(ours, "a pair")
    got: list[Any] = []

    def read() -> None:
        while len(got) < 20:
            got.append(client.receive())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for number in range(20):
        theirs.sendall(b"".join(frame(encode(t.Reply(number, True, "", 0)))))
        deadline_s = time.monotonic() + 30
        while len(got) <= number and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert len(got) == number + 1
    reader.join(30)
    assert [message.command for message in got] == list(range(20))
