"""How many samples a quantile needs: one rule, whoever shows it."""

from __future__ import annotations

import numpy as np
import pytest
from schedtop.console import enough
from schedtop.console.explain import table
from schedtop.console.latency import collect
from schedtop.console.life import read_life
from seat import seated


@pytest.mark.parametrize(("share", "least"), [(0.5, 10), (0.9, 20), (0.95, 40), (0.99, 200), (0.999, 2000)])
def test_a_quantile_has_ten_samples_and_two_beyond_it(share: float, least: int) -> None:
    assert enough.needed(share) == least
    below, at = (collect(np.linspace(0.1, 0.2, n)) for n in (least - 1, least))
    assert enough.quantile(below, share) is None
    assert enough.quantile(at, share) == pytest.approx(0.1 + 0.1 * share, abs=1e-5)
    assert enough.lack(share) == f"n<{least}"


def test_explain_keeps_to_it() -> None:
    assert table.MIN_FIRSTS.value >= enough.needed(0.5)
    assert table.MIN_GAPS.value >= enough.needed(0.95)


async def test_both_sides_of_a_change_keep_to_it() -> None:
    async with seated() as seat:
        text = await seat.press("6", "-", "enter", "K")
        figures = [line for line in text.split("\n") if "TTFT p" in line or "ITL p" in line]
        assert len(figures) == 4 and all("n<" in line for line in figures), "nothing was sampled after the change"


async def test_one_requests_gaps_keep_to_it() -> None:
    async with seated() as seat:
        history, seen = seat.app.history, set()
        for number in [*history.finished, *history.live.requests]:
            life = read_life(history, history.now(), number)
            assert life is not None
            gaps = sum(visit.gap_s is not None for visit in life.visits)
            seat.app.show_request(number)
            await seat.settle()
            assert ("ITL p50 n<10" in seat.text) == (0 < gaps < 10)
            assert ("p95 n<40" in seat.text) == (0 < gaps < 40)
            seen.add((gaps >= 10, gaps >= 40))
            await seat.press("escape")
        assert len(seen) == 3
