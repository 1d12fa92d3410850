"""What nobody should send: the right status, nothing lost, nothing of it in the log."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest
from schedtop.engine.http.access import LOOPBACK_NAMES
from schedtop.engine.http.settings import MAX_BODY_BYTES, MAX_HEADERS

from tests.engine.http.served import Served

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(autouse=True)
def unharmed(served: Served) -> None:
    """Whatever came before, the next request is served."""
    assert served.complete().status_code == 200


def answer(served: Served, data: bytes) -> tuple[int, bytes]:
    """Status and body that raw bytes are answered with; 0 if the server hangs up instead."""
    with served.raw() as sock:
        sock.sendall(data)
        if b"\r\n\r\n" not in data:
            sock.shutdown(socket.SHUT_WR)
        received = b""
        while b"\r\n\r\n" not in received:
            piece = sock.recv(65536)
            if not piece:
                return 0, received
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


def post(served: Served, body: bytes, headers: bytes = b"") -> int:
    return answer(served, POST + headers + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))[0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{bad",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": 123456789012345678901234567890}',
        b'{"prompt": "x", "max_tokens": -9223372036854775809}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "user": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b'{"prompt": "x"} {"prompt": "y"}',
        b"\x00" * 1000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_no_request_is_400(served: Served, body: bytes) -> None:
    assert post(served, body) == 400


def test_a_text_with_any_character_is_a_prompt(served: Served) -> None:
    for text in ("\0", "\x1b[2J", "\u202e", "🦙" * 50, "\r\n\r\n", "data: [DONE]"):
        assert served.complete(text).status_code == 200


def test_a_body_that_is_too_large_is_413_before_it_is_read(served: Served) -> None:
    assert answer(served, POST + b"Content-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))[0] == 413
    assert answer(served, POST + b"Content-Length: 99999999999999999999\r\n\r\n")[0] in (400, 413)


def test_a_body_that_grows_too_large_is_413(served: Served) -> None:
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    with served.raw(POST + b"Transfer-Encoding: chunked\r\n\r\n") as sock:
        try:
            for _ in range(MAX_BODY_BYTES // (1 << 20) + 2):
                sock.sendall(chunk)
        except OSError:
            return  # it hung up on us
        assert b" 413 " in sock.recv(65536)


@pytest.mark.parametrize("count", [MAX_HEADERS + 1, 10_000])
def test_too_many_headers_are_refused(served: Served, count: int) -> None:
    headers = b"".join(b"x-%d: y\r\n" % place for place in range(count))
    assert answer(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")[0] in (400, 431)


def test_a_header_that_is_too_long_is_refused(served: Served) -> None:
    assert answer(served, b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * (1 << 20) + b"\r\n\r\n")[0] in (
        0,
        400,
    )


@pytest.mark.parametrize("line", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\0\0\0\0\r\n\r\n"])
def test_what_is_no_http_is_400(served: Served, line: bytes) -> None:
    assert answer(served, line)[0] in (0, 400)


def test_a_head_that_never_ends_is_hung_up_on(served: Served) -> None:
    """Slow loris, at the start of a connection and behind a request that was answered."""
    with served.raw(b"GET /health HTTP/1.1\r\nHost: loc") as one, served.raw() as silent, served.raw() as later:
        later.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in later.recv(65536)
        later.sendall(b"GET /hea")
        for sock in (one, silent, later):
            with suppress(ConnectionResetError):
                assert sock.recv(65536) == b""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::2]", "["])
def test_another_host_is_421(served: Served, host: str) -> None:
    """A web page that had its name resolved to this machine (DNS rebinding)."""
    assert served.http.get("/v1/models", headers={"host": host}).status_code == 421
    assert served.post("/v1/completions", {"prompt": "x"}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("name", sorted(LOOPBACK_NAMES))
def test_this_machines_names_are_answered(served: Served, name: str) -> None:
    host = f"[{name}]:80" if ":" in name else f"{name}:80"
    assert served.http.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("body", [b"{", b'{"messages": 5}', b'{"prompt": 5}', b'{"messages": [5]}'])
def test_every_route_refuses_nonsense_with_a_reason(served: Served, route: str, body: bytes) -> None:
    response = served.http.post(route, content=body)
    assert response.status_code == 400 and response.json()["error"]["message"]
    assert "Traceback" not in response.text


def test_nothing_that_was_sent_is_in_the_log(served: Served) -> None:
    secret = "a-prompt-that-is-nobodys-business"
    served.complete(secret)
    served.http.post("/v1/completions", content=json.dumps({"prompt": {"x": secret}}))
    served.http.get(f"/{secret}")
    assert secret not in "\n".join(served.engine.stderr_tail())


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "http://localhost.evil.example:80"])
def test_a_page_of_another_site_is_403(served: Served, origin: str) -> None:
    response = served.post("/v1/completions", {"prompt": "x"}, headers={"origin": origin})
    assert response.status_code == 403
    assert served.http.get("/health", headers={"origin": "http://localhost:3000"}).status_code == 200
