"""HTTP for one page on this machine that cannot take the engine's descriptors, threads or time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

MOST_CONNECTIONS = 8
"""Prometheus uses one. One more closes the oldest, so that idle connections block nobody."""
SILENT_S = 5.0
_NO_DESCRIPTOR_WAIT_S = 0.1

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = SILENT_S

    def log_message(self, *_: Any) -> None:
        """Nothing is logged: requests are routine."""


class PageServer(ThreadingMixIn, WSGIServer):
    """Serves `app` at 127.0.0.1 from its own thread, until closed. Raises `OSError` if `port` is taken."""

    daemon_threads = True

    def __init__(self, port: int, app: App) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.set_app(local_only(app))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """As `WSGIServer`, without the look-up of this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection; raises `OSError`, not too often, while this process has no descriptor left."""
        try:
            connection, address = super().get_request()
        except OSError:
            time.sleep(_NO_DESCRIPTOR_WAIT_S)
            raise
        with self._lock:
            self._open.append(connection)
            oldest = self._open[0] if len(self._open) > MOST_CONNECTIONS else None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread notices and closes it
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        """Close a finished connection."""
        with self._lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken or silent connections are not logged."""

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def local_only(app: App) -> App:
    """`app` for those who ask for this machine by name: a web page of another site does not (DNS rebinding)."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "localhost")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() in _LOCAL_HOSTS:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"only for this machine: ask for localhost or 127.0.0.1\n"]

    return guarded
