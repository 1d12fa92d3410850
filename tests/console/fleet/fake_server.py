"""A fake metrics server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, str, bytes]
PLAIN = "text/plain; version=0.0.4"


class Server:
    """`answer` is what it says next."""

    def __init__(self) -> None:
        self.answer: Answer | Callable[[BaseHTTPRequestHandler], None] = (200, PLAIN, b"")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if callable(outer.answer):
                    outer.answer(self)
                    return
                code, kind, body = outer.answer
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def page(tokens: int, waiting: int = 0, usage: float = 0.5, engine: str = "0") -> bytes:
    labels = f'engine="{engine}",model_name="m"'
    return (
        f"vllm:num_requests_running{{{labels}}} 4\nvllm:num_requests_waiting{{{labels}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}\nvllm:generation_tokens_total{{{labels}}} {tokens}\n"
        f'vllm:inter_token_latency_seconds_bucket{{le="0.01",{labels}}} {tokens}\n'
        f'vllm:inter_token_latency_seconds_bucket{{le="+Inf",{labels}}} {tokens}\n'
    ).encode()
