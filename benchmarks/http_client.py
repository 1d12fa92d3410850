"""Streams completions from an OpenAI-compatible server with as little of its own work as possible."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Outcome:
    """What the client saw: seconds to the first event and between events; tokens by the server's own count."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    output_tokens: int = 0
    requests: int = 0
    errors: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s


async def stream_one(url: str, body: dict[str, object], outcome: Outcome) -> None:
    """One streamed completion on a connection of its own; an error is noted, never raised."""
    place = urlsplit(url)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    began_s, last_s = time.perf_counter(), None
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            outcome.errors.append(status.decode().strip())
            return
        done = False
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            now_s = time.perf_counter()
            if b"[DONE]" in line:
                done = True
                break
            if b'"choices":[]' in line:
                outcome.output_tokens += json.loads(line[6:])["usage"]["completion_tokens"]
                continue
            if last_s is None:
                outcome.ttft_s.append(now_s - began_s)
            else:
                outcome.gaps_s.append(now_s - last_s)
            last_s = now_s
        outcome.requests += done
        if not done:
            outcome.errors.append("the stream ended before [DONE]")
        writer.close()
    except OSError as error:
        outcome.errors.append(str(error))


async def load(
    url: str,
    bodies: Iterable[dict[str, object]],
    concurrency: int,
    for_s: float | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Keep `concurrency` streams open until the bodies are used up or `for_s` is over; fills in `outcome`."""
    outcome = outcome or Outcome()
    waiting, began_s = iter(bodies), time.perf_counter()

    async def worker() -> None:
        for body in waiting:
            if for_s is not None and time.perf_counter() - began_s > for_s:
                return
            await stream_one(url, body, outcome)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    outcome.wall_s = time.perf_counter() - began_s
    return outcome


def quantile(values: list[float], share: float) -> float:
    """A value of the sorted list; NaN of none."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")
