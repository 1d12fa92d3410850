"""Draws the picture of docs/vllm.md from a real server: python docs/pictures/draw_vllm.py ADDRESS URL MODEL.

ADDRESS is the hook's, URL the server's, MODEL its served name. Streams of different lengths run meanwhile, and the
admission cap is lowered half-way.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.contract.commands import SetKnobs

HERE = Path(__file__).parent
SIZE = (160, 45)
STREAMS, SECONDS = 12, 100


async def stream(client: httpx.AsyncClient, url: str, model: str, place: int) -> None:
    """One client after another, for as long as the picture takes."""
    for turn in range(100):
        words = (17 * place + 41 * turn) % 24 + 3
        question = {
            "model": model,
            "prompt": f"{place} {turn} " + "and so on " * words,
            "max_tokens": 10 + (7 * place + turn) % 30,
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream("POST", f"{url}/v1/completions", json=question) as answer:
            async for _ in answer.aiter_bytes():
                pass


async def draw(address: str, url: str, model: str) -> None:
    app = ConsoleApp(ChannelClient.connect(address), ConsoleOptions(theme="dark", window_s=60.0, embedded=False))
    async with httpx.AsyncClient(timeout=900) as client, app.run_test(size=SIZE) as pilot:
        streams = [asyncio.create_task(stream(client, url, model, place)) for place in range(STREAMS)]
        await asyncio.sleep(SECONDS * 0.6)
        app.feed.send(SetKnobs(id=0, values={"max_num_seqs": 6}, by="key"))
        await asyncio.sleep(SECONDS * 0.4)
        await pilot.press("1")
        await pilot.pause()
        (HERE / "vllm.svg").write_text(app.export_screenshot(title="schedtop on vLLM"))
        app.feed.send(SetKnobs(id=1, values={"max_num_seqs": 16}, by="key"))
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(draw(*sys.argv[1:4]))
