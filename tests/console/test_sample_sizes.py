"""How many samples a quantile needs: one rule, whoever shows it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from schedtop.console.explain import catalogue
from schedtop.console.life.reader import read_life
from schedtop.console.past import sample_sizes
from schedtop.engine.contract.latencies.samples import collect, merge
from seat import COMPACT, STRIP, WIDE, seated


@pytest.mark.parametrize(("share", "least"), [(0.5, 10), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_a_quantile_has_ten_samples_and_one_beyond_it(share: float, least: int) -> None:
    assert sample_sizes.needed(share) == least
    below, at = (collect(np.linspace(0.1, 0.2, n)) for n in (least - 1, least))
    assert sample_sizes.quantile(below, share) is None
    assert sample_sizes.quantile(at, share) == pytest.approx(0.1 + 0.1 * share, abs=1e-5)


def test_explain_keeps_to_it() -> None:
    assert catalogue.MIN_FIRSTS.value >= sample_sizes.needed(0.5)
    assert catalogue.MIN_GAPS.value >= sample_sizes.needed(0.95)


@pytest.mark.parametrize("size", [WIDE, COMPACT, STRIP])
async def test_the_latency_panel_keeps_to_it(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        samples = merge(seat.app.history.latency_columns("ttft", seat.app.view.moment, 60.0, 10))
        assert 10 <= samples.n < 20, "the synthetic engine's first 150 steps"
        (line,) = (line for line in seat.lines if "TTFT" in line and f"n {samples.n}" in line)
        members = sum(map(int, re.search(r"n ([\d+]+)", line)[1].split("+")))  # type: ignore[index]
        assert 20 <= members < 100, "with those still waiting"
        assert line.count("–") == 1, "a p50, a p95, no p99"
    async with seated(size, steps=0) as seat:
        line = next(line for line in seat.lines if line.lstrip(" │").startswith("TTFT") or "TTFT  p50" in line)
        assert "–" not in line and "n/a" not in line and "SLO 500 n/a" not in seat.text


async def test_both_sides_of_a_change_keep_to_it() -> None:
    async with seated() as seat:
        text = await seat.press("6", "-", "enter", "K")
        figures = [line for line in text.split("\n") if "TTFT p" in line or "ITL p" in line]
        assert len(figures) == 4 and all("–" in line or ">" in line for line in figures), (
            "after the change some wait and few were served"
        )
        rates = [line for line in text.split("\n") if "out tok/s" in line or "preempt/min" in line]
        assert len(rates) == 2 and all("needs 10 s" in line for line in rates)


async def test_one_requests_gaps_keep_to_it() -> None:
    async with seated() as seat:
        history, some = seat.app.history, {}
        for number in [*history.finished, *history.live.requests]:
            life = read_life(history, history.now(), number)
            assert life is not None
            gaps = sum(visit.gap_s is not None for visit in life.visits)
            some[gaps > 0, gaps >= 10, gaps >= 20] = number, gaps
        assert {few for few in some if few[0]} == {(True, False, False), (True, True, False), (True, True, True)}
        for number, gaps in some.values():
            seat.app.show_request(number)
            await seat.settle()
            assert ("ITL p50 –" in seat.text) == (0 < gaps < 10)
            assert ("p95 –" in seat.text) == (0 < gaps < 20)
            await seat.press("escape")
