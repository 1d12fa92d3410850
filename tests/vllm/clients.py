"""Streaming clients of a vLLM server, and a console beside them that keeps all it is told."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.contract.commands import Command
from schedtop.engine.contract.telemetry import Arrival, Finish, Outgoing, Reply, StepRecord


class Answer(NamedTuple):
    """What one client saw. `pieces` are the times of its deliveries."""

    name: str
    prompt_tokens: int
    output_tokens: int
    reason: str | None
    digest: str
    pieces: list[float]


def ask(
    url: str, prefix: str, count: int, tokens: int, during: Callable[[], None] | None = None, word: str = "word"
) -> list[Answer]:
    """So many clients at once, each streaming its own answer; `during` runs beside them."""

    async def all_of_them() -> list[Answer]:
        async with httpx.AsyncClient(timeout=900) as client:
            tasks = [asyncio.create_task(_one(client, url, prefix, place, tokens, word)) for place in range(count)]
            if during is not None:
                await asyncio.to_thread(during)
            return list(await asyncio.gather(*tasks))

    return asyncio.run(all_of_them())


async def _one(client: httpx.AsyncClient, url: str, prefix: str, place: int, tokens: int, word: str) -> Answer:
    name, text, pieces, usage, reason = f"{prefix}{place}", "", [], {}, None
    question = {
        "model": "m",
        "prompt": f"{word} " * (10 + 7 * place) + f"number {place}",
        "max_tokens": tokens + place % 5,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"X-Request-Id": name}
    async with client.stream("POST", f"{url}/v1/completions", json=question, headers=headers) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                text, reason = text + choice["text"], choice["finish_reason"] or reason
                pieces.append(time.monotonic())
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Answer(name, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), reason, digest, pieces)


def lives_that_ended(
    consoles: list[Console], prefix: str, count: int, within_s: float = 300.0
) -> list[dict[str, tuple[Arrival, Finish]]]:
    """What each console saw of requests with this prefix, once all `count` have ended."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        lives = [
            {name: (arrival, finish) for name, (arrival, finish) in console.lives(prefix).items() if finish}
            for console in consoles
        ]
        if sum(map(len, lives)) == count:
            return lives
        time.sleep(0.05)
    raise AssertionError(f"{sum(map(len, lives))} of {count} ended")


class Console:
    """Joined to a server; reads on a thread of its own."""

    def __init__(self, address: str, from_start: bool = False) -> None:
        self.link = ChannelClient.connect(address, from_start=from_start)
        self.messages: list[Outgoing] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self._command = 0

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                message = self.link.receive(0.2)
            except Exception:
                return
            if message is not None:
                self.messages.append(message)

    def until(self, found: Callable[[Outgoing], bool], within_s: float = 300.0) -> Any:
        """The first message, old or new, that is one."""
        until_s, seen = time.monotonic() + within_s, 0
        while time.monotonic() < until_s:
            count = len(self.messages)
            for message in self.messages[seen:count]:
                if found(message):
                    return message
            seen = count
            self._ended.wait(0.02)
        raise AssertionError(f"it never came among {len(self.messages)} messages")

    def ask(self, make: Callable[[int], Command]) -> Reply:
        """Send the command that `make` makes of an id; its reply."""
        self._command += 1
        number = self._command
        self.link.send(make(number))
        reply: Reply = self.until(lambda message: isinstance(message, Reply) and message.command == number)
        return reply

    @property
    def records(self) -> list[StepRecord]:
        return [message for message in self.messages if isinstance(message, StepRecord)]

    def lives(self, prefix: str) -> dict[str, tuple[Arrival, Finish | None]]:
        """Arrival and end of each request that clients with this prefix sent, by the client's name for it."""
        ends = {finish.number: finish for record in self.records for finish in record.finishes}
        arrivals = [arrival for record in self.records for arrival in record.arrivals]
        mine = {
            arrival.id.split("-")[1]: arrival for arrival in arrivals if arrival.id.startswith(f"cmpl-{prefix}")
        }
        return {name: (arrival, ends.get(arrival.number)) for name, arrival in mine.items()}

    def close(self) -> None:
        self._ended.set()
        self.link.close()
