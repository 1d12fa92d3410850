"""The engine's end of the channel: polled between steps; never waits for a console."""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from schedtop.engine.channel.listen import listen, peer_uid, remove_socket
from schedtop.engine.channel.peer import Peer
from schedtop.engine.channel.protocol import (
    ChannelError,
    Sink,
    decode_incoming,
    encode,
    mismatch,
)
from schedtop.engine.channel.token_file import VARIABLE, ensure_token, token_path
from schedtop.engine.contract.commands import Abort, Incoming, Join, Submit
from schedtop.engine.contract.telemetry import (
    PROTOCOL,
    Bye,
    Header,
    Notice,
    Output,
    Reply,
    Snapshot,
    Stage,
    StepRecord,
    TextDelta,
)

JOIN_WITHIN_S = 10.0
SYNC_GAP_S = 0.5
"""A console that cannot keep up gets a snapshot at most this often: making one costs the engine time."""


class ChannelServer(Sink):
    """Serves consoles on one address. Single-threaded: every method is called from the thread that steps.

    Raises `ChannelError` when it cannot listen. Each console has an outbox of `outbox_bytes`; when it is full,
    whole records are dropped, and once it drains the console gets a fresh `Snapshot` whose `dropped` counts them.
    Replies, notices and `Bye` are never dropped. `on_gone` is called for every connection that ended.

    `kept` gives the engine's first snapshot and all records since, encoded; nothing where they were not kept. `recent`
    gives frames of a snapshot and the records since, `newest_s` the engine's clock at the newest of them.

    Over TCP a console must give the token of `token_file`. With `read_only` no console may command.
    """

    def __init__(
        self,
        address: str,
        *,
        outbox_bytes: int = 8 << 20,
        max_peers: int = 16,
        token_file: str | None = None,
        read_only: bool = False,
    ) -> None:
        self._token_path = token_path(token_file)
        self._token = ensure_token(self._token_path) if address.startswith("tcp:") else ""
        self._read_only = read_only
        self._listener, self.address = listen(address)
        self._outbox_bytes = outbox_bytes
        self._max_peers = max_peers
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.kept: Callable[[], Sequence[bytes]] = tuple
        self.recent: Callable[[], Sequence[bytes]] = tuple
        self.newest_s: Callable[[], float | None] = lambda: None
        self._peers: list[Peer] = []
        self._stage: bytes | None = None
        self._header: Header | None = None
        self._snapshot: Callable[[], Snapshot] | None = None
        self._commands: list[tuple[Peer, Incoming]] = []
        self.on_gone: Callable[[Peer], object] = lambda peer: None

    @property
    def who_may_connect(self) -> str:
        """In words for the operator, with their permissions."""
        who = f"whoever has the token in {self._token_path}" if self._token else f"user {os.getuid()} alone"
        return f"{who} may connect" + (", to watch only" if self._read_only else "")

    @property
    def num_joined(self) -> int:
        """Consoles that said `Join`."""
        return sum(peer.joined and peer.console for peer in self._peers)

    def watch(self, file: Any, on_ready: Callable[[], object]) -> None:
        """Let `poll` also wait for a readable `file` and call `on_ready` then."""
        self._selector.register(file, selectors.EVENT_READ, on_ready)

    def unwatch(self, file: Any) -> None:
        """Undo `watch`."""
        self._selector.unregister(file)

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Peer, Incoming]]:
        """Send and receive; wait up to `timeout_s` for anything to happen. Returns the commands that came in."""
        for peer in list(self._peers):
            self._flush(peer)
        for key, events in self._selector.select(max(timeout_s, 0.0)):
            if isinstance(key.data, Peer):
                self._serve(key.data, events)
            elif key.data is None:
                self._accept()
            else:
                key.data()
        self._drop_silent()
        commands, self._commands = self._commands, []
        return commands

    def stage(self, stage: Stage) -> None:
        """Tell consoles, and those who join later, what the engine is doing before it serves."""
        self._stage = encode(stage)
        self._push_joined(self._stage)

    def ready(self, header: Header, snapshot: Callable[[], Snapshot]) -> None:
        """The engine now serves: consoles get `header`, a snapshot (made in `poll`), then records."""
        self._header, self._snapshot = header, snapshot
        for peer in self._peers:
            if peer.joined:
                self._welcome(peer)

    def write(self, record: StepRecord, encoded: bytes) -> None:
        """Offer a record to every console; never waits and never raises."""
        for peer in self._peers:
            if peer.joined and not peer.offer(encoded):
                peer.lost_records += 1

    def text(self, delta: TextDelta) -> None:
        """Offer a piece of output text; dropped where records are dropped."""
        body = encode(delta)
        for peer in self._peers:
            if peer.joined and peer.console:
                peer.offer(body)

    def notice(self, notice: Notice) -> None:
        """Send every console one line."""
        self._push_joined(encode(notice))

    def reply(self, peer: Peer, reply: Reply) -> None:
        """Answer one command."""
        peer.push(encode(reply))

    def output(self, peer: Peer, output: Output) -> None:
        """Send a client its tokens, immediately; never dropped."""
        peer.push(encode(output))
        self._flush(peer)

    def close(self, bye: Bye, within_s: float = 1.0) -> None:
        """Say `bye`, wait up to `within_s` until consoles have read all, and stop listening."""
        self.on_gone = lambda peer: None  # the engine accepts no more commands
        self._selector.unregister(self._listener)
        self._listener.close()
        self._push_joined(encode(bye))
        deadline_s = time.monotonic() + within_s
        for peer in self._peers:
            peer.leaving = True
        self.poll()
        while self._peers and time.monotonic() < deadline_s:
            self.poll(deadline_s - time.monotonic())
        for peer in list(self._peers):
            self._drop(peer)
        self._selector.close()
        remove_socket(self.address)

    def _push_joined(self, body: bytes) -> None:
        for peer in self._peers:
            if peer.joined and not peer.leaving:
                peer.push(body)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        peer = Peer(sock, self._outbox_bytes)
        self._peers.append(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        uid = peer_uid(sock)
        if uid is not None and uid != os.getuid():
            self._dismiss(peer, f"this engine belongs to user {os.getuid()}, not {uid}")
        elif self.num_joined >= self._max_peers:
            self._dismiss(peer, f"{self._max_peers} consoles are connected already: close one")
        else:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._make_room()

    def _make_room(self) -> None:
        """Connections that have not joined take no console's slot: the oldest is closed when there are too many."""
        strangers = [peer for peer in self._peers if not peer.joined]
        if len(strangers) > self._max_peers:
            self._drop(strangers[0])

    def _serve(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ or peer not in self._peers:
            return
        try:
            bodies = peer.read()
            if bodies is None:
                self._drop(peer)
                return
            for body in bodies:
                if not peer.leaving:
                    self._take(peer, decode_incoming(body))
        except ChannelError as error:
            self._dismiss(peer, str(error))
        except OSError:
            self._drop(peer)

    def _take(self, peer: Peer, command: Incoming) -> None:
        if not isinstance(command, Join):
            if not peer.joined:
                raise ChannelError("the first message must be Join")
            if peer.read_only and not _of_a_client(peer, command):
                whose = "this engine" if self._read_only else "this console"
                text = f"{whose} is read-only: no command is taken"
                peer.push(encode(Reply(command.id, ok=False, text=text, knobs_version=0)))
            else:
                self._commands.append((peer, command))
        elif command.protocol != PROTOCOL:
            raise ChannelError(mismatch(PROTOCOL, command.protocol))
        elif self._token and not hmac.compare_digest(command.token.encode(), self._token.encode()):
            raise ChannelError(self._token_wanted(command.token))
        elif not peer.joined:
            if self.num_joined >= self._max_peers:
                raise ChannelError(f"{self._max_peers} consoles are connected already: close one")
            peer.joined, peer.console = True, command.console
            peer.read_only = command.read_only or self._read_only
            self._welcome(
                peer,
                self.kept() if command.from_start else (),
                self.recent() if command.recent and not command.from_start else (),
            )

    def _token_wanted(self, given: str) -> str:
        what = "another token was given" if given else "none was given"
        return (
            f"this engine asks for the token in {self._token_path} ({what}):"
            f" give a copy with --token-file FILE or {VARIABLE}=FILE"
        )

    def _welcome(self, peer: Peer, kept: Sequence[bytes] = (), recent: Sequence[bytes] = ()) -> None:
        """`kept` messages or `recent` frames take the place of the present snapshot."""
        if self._header is not None:
            newest_s = self.newest_s() if recent else None
            peer.push(encode(msgspec.structs.replace(self._header, newest_s=newest_s)))
            for body in kept:
                peer.push(body)
            peer.push_framed(recent)
            if not kept and not recent:
                self._sync(peer)
        elif self._stage is not None:
            peer.push(self._stage)

    def _sync(self, peer: Peer) -> None:
        assert self._snapshot is not None
        snapshot = msgspec.structs.replace(self._snapshot(), dropped=peer.lost_records)
        peer.lost_records = 0
        peer.synced_at = time.monotonic()
        peer.push(encode(snapshot))

    def _flush(self, peer: Peer) -> None:
        try:
            peer.flush()
            if peer.caught_up and time.monotonic() - peer.synced_at >= SYNC_GAP_S:
                self._sync(peer)
                peer.flush()
        except OSError:
            self._drop(peer)
            return
        if peer.leaving and not peer.outbox_bytes:
            self._drop(peer)
            return
        self._set_interest(peer)

    def _set_interest(self, peer: Peer) -> None:
        """Wait for room only while something is unsent; leave commands unread while the outbox is full."""
        events = 0 if peer.full else selectors.EVENT_READ
        if peer.outbox_bytes:
            events |= selectors.EVENT_WRITE
        if events != peer.interest:
            peer.interest = events
            self._selector.modify(peer.sock, events, peer)

    def _dismiss(self, peer: Peer, reason: str) -> None:
        """Send the reason, then close once it is sent."""
        peer.leaving = True
        peer.push(encode(Bye(reason=reason, step=0)))
        self._flush(peer)

    def _drop_silent(self) -> None:
        """Close connections that never sent `Join`, or were dismissed and do not read."""
        oldest_s = time.monotonic() - JOIN_WITHIN_S
        for peer in self._peers.copy():
            if (not peer.joined or peer.leaving) and peer.connected_at < oldest_s:
                self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        self.on_gone(peer)

    def __enter__(self) -> ChannelServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener.fileno() >= 0:
            self.close(Bye(reason="the engine ended", step=0), within_s=0.0)


def _of_a_client(peer: Peer, command: Incoming) -> bool:
    """A request and its end change no setting: a read-only engine serves."""
    return isinstance(command, Submit) or (isinstance(command, Abort) and not peer.console)
