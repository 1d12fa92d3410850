"""The HTTP server's process: `python -m schedtop.engine.http.service`, started by the engine.

The first line of stdin is `HttpSettings` as JSON; at its end nothing new is taken. One line on stdout says that it
serves, or why it cannot.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

import msgspec
import uvicorn
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.sanitize import one_line
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.http.app import make_app
from schedtop.engine.http.link import EngineLink
from schedtop.engine.http.pages.metrics import metrics_page
from schedtop.engine.http.server_state import ServerState
from schedtop.engine.http.settings import FAILED, SERVING, HttpSettings
from schedtop.engine.http.text import open_texts
from schedtop.engine.http.timed_protocol import TimedProtocol
from schedtop.engine.metrics.counts import Counts

KEEP_ALIVE_S = 75.0
END_WITHIN_S = 3.0
MAX_HEAD_BYTES = 64 << 10
MOST_FILES = 1 << 16
OTHER_FILES = 64
"""File descriptors reserved for anything but connections."""
TOLD_EVERY_S = 60.0


def main() -> int:
    """Serve until the engine is gone; the exit code."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=HttpSettings)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # requests are not logged
    num_files = _raise_file_limit()
    try:
        asyncio.run(serve(settings, num_files))
    except (ConfigError, ChannelError, OSError) as error:
        _tell(FAILED, str(error))
        return 1
    return 0


async def serve(settings: HttpSettings, num_files: int) -> None:
    """Join the engine, wait until it serves, and serve with at most `num_files` descriptors.

    Raises `ConfigError`, `ChannelError` or `OSError`.
    """
    asyncio.get_running_loop().set_exception_handler(_report)
    early: list[StepRecord] = []
    link = await EngineLink.connect(settings.channel, settings.token, early.append)
    header = await link.header
    names = settings.config.served_model_name or (settings.config.model or header.model,)
    texts = await asyncio.to_thread(open_texts, settings.config, header.settings["vocab_size"])
    state = ServerState(link, header, texts, names, settings.config.max_num_queued_reqs)
    counts = Counts(header)
    for record in early:
        counts.write(record)
    link.on_record = counts.write
    app = make_app(state, settings, metrics_page(header, names[0], counts, state.counts))
    # All pending connections are accepted at once, before any of them can be turned away.
    backlog = min(2048, max(1, num_files // 8))
    TimedProtocol.most = max(1, num_files - backlog - OTHER_FILES)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=TimedProtocol,
            backlog=backlog,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(KEEP_ALIVE_S),
            timeout_graceful_shutdown=int(END_WITHIN_S),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
    )
    link.on_end = lambda: setattr(server, "should_exit", True)
    server.should_exit = link.ended is not None
    _watch_engine(state)
    with socket.socket(fileno=settings.socket_fd) as listener:
        host, port = listener.getsockname()[:2]
        _tell(SERVING, f"http://{f'[{host}]' if ':' in host else host}:{port}, model {', '.join(names)}")
        await server.serve(sockets=[listener])


def _watch_engine(state: ServerState) -> None:
    """The end of stdin: the engine is ending and accepts nothing new."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            state.draining = True

    loop.add_reader(0, read)


def _raise_file_limit() -> int:
    """Each stream takes a descriptor: as many as this user may have, and how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MOST_FILES)), hard))
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MOST_FILES)


_reported_at_s: dict[str, float] = {}


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One line, and the same one at most every `TOLD_EVERY_S`."""
    error = context.get("exception")
    where = traceback.extract_tb(error.__traceback__)[-1:] if error is not None else []
    place = f" ({os.path.basename(where[0].filename)}:{where[0].lineno})" if where else ""
    text = one_line(f"{context.get('message')}: {type(error).__name__}{place}", 300)
    if loop.time() - _reported_at_s.get(text, -TOLD_EVERY_S) >= TOLD_EVERY_S:
        _reported_at_s[text] = loop.time()
        print(f"schedtop http: {text}", file=sys.stderr, flush=True)


def _tell(what: str, text: str) -> None:
    with suppress(OSError):
        print(what, one_line(text, 1000), flush=True)


if __name__ == "__main__":
    sys.exit(main())
