"""Access control and request size limits, applied before any route."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from schedtop.engine.http.errors import ApiError
from schedtop.engine.http.settings import MAX_BODY_BYTES, MAX_HEADERS, HttpSettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_WITHIN_S = 30.0
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN_PATHS = frozenset({"/health"})
"""Served without a token: they reveal nothing, and load balancers have none."""


class Guard:
    """Middleware: the `Host` a browser was led to, the page it shows, the token, and the size of headers."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(Request(scope))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, request: Request) -> None:
        if len(request.headers.raw) > MAX_HEADERS:
            raise ApiError(431, f"more than {MAX_HEADERS} headers")
        if self._settings.loopback:
            if _host_name(request.headers.get("host", "")) not in LOOPBACK_NAMES:
                raise ApiError(421, "this server answers to localhost only: check the Host header")
            origin = request.headers.get("origin")
            if origin is not None and _host_name(origin.rpartition("/")[2]) not in LOOPBACK_NAMES:
                raise ApiError(403, "this server answers no web page of another site")
        elif request.url.path not in OPEN_PATHS:
            check_token(request, self._settings.token)


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def check_token(request: Request, token: str) -> None:
    """Raise `ApiError` unless the request bears the token; in constant time."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not same:
        raise ApiError(401, "this needs the server's token, as Authorization: Bearer TOKEN")


async def read_body(request: Request) -> bytes:
    """The whole body. Raises `ApiError` for one that is too large or too slow."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(408, f"the body was not there within {BODY_WITHIN_S:g} s") from None
    return b"".join(chunks)


def _too_large() -> ApiError:
    return ApiError(413, f"the body has more than {MAX_BODY_BYTES} bytes")


class ClientGoneError(Exception):
    """The client has disconnected."""


async def while_connected(receive: Receive, work: Awaitable[Response | None]) -> Response | None:
    """The result of `work`; it is cancelled, and `ClientGoneError` raised, when the client hangs up."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for left in (task, watcher):
            left.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _hang_up(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
