"""Draws the pictures of the README from a real run: `make pictures`.

An engine on a simulated device serves a workload under pressure in its own process; the console attaches to it at
160x45, one limit is changed on the way, and what it shows is saved as SVG.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from schedtop.engine.channel.spawn import start_engine
from schedtop.engine.contract.commands import SetKnobs
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec

HERE = Path(__file__).parent
SIZE = (160, 45)
SECONDS = 25
CONFIG = EngineConfig(
    device="sim:llama-3.1-8b@h100",
    workload=WorkloadSpec(source="mixed", rate=11.0, seed=7),
    scheduler={"num_blocks": 3000, "watermark": 0.02, "max_num_seqs": 48},
    real_time=True,
)


async def draw(name: str, keys: tuple[str, ...]) -> None:
    """Run for a while, lower a budget half-way, press `keys`, save the screen."""
    options = ConsoleOptions(theme="dark", ttft_slo_s=1.0, itl_slo_s=0.05, window_s=30.0)
    with start_engine(CONFIG) as process:
        app = ConsoleApp(process.connect(), options)
        async with app.run_test(size=SIZE) as pilot:
            await asyncio.sleep(SECONDS * 0.8)
            app.feed.send(SetKnobs(id=0, values={"max_num_batched_tokens": 1024}, by="key"))
            await asyncio.sleep(SECONDS * 0.2)
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            (HERE / f"{name}.svg").write_text(app.export_screenshot(title="schedtop"))


def main() -> None:
    for name, keys in (("live", ("1",)), ("explain", ("x",))):
        asyncio.run(draw(name, keys))
        print(HERE / f"{name}.svg")


if __name__ == "__main__":
    main()
