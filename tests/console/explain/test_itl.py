"""ITL is up when prompts arrive."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import Run, ask, numbers, serve, stream
from schedtop.console.explain.log import Log, read
from schedtop.console.explain.window import Bounds
from schedtop.engine.contract.reading import itl_column


def mixed(prompt: int) -> Run:
    """20 long answers; every quarter of a second a prompt arrives."""
    return serve([ask(i, 20, 4000) for i in range(20)] + stream(60, 0.25, prompt, 2), 12)


def test_long_prompts_stall_the_answers_beside_them() -> None:
    run = mixed(3000)
    finding = run.findings()["itl-prompts"]
    reported = numbers(finding)
    gaps = np.concatenate([itl_column(r) for r in run.window()])
    owner = np.concatenate([np.full(len(itl_column(r)), i) for i, r in enumerate(run.window())])
    keep = ~np.isnan(gaps)
    gaps, owner = gaps[keep].astype(float), owner[keep]
    stalled = gaps > 3 * np.median(gaps)
    slow = {int(i) for i in owner[stalled]}
    assert finding.n == stalled.sum()
    assert reported["stall_share"] == pytest.approx(stalled.mean())
    assert reported["slow_steps"] == len(slow)
    tokens = np.array([[r.prefill_tokens, r.scheduled_tokens] for r in run.window()])
    is_slow = np.isin(np.arange(len(tokens)), list(slow))
    assert reported["slow_prompt_part"] == pytest.approx(tokens[is_slow, 0].sum() / tokens[is_slow, 1].sum())
    assert reported["other_prompt_part"] == pytest.approx(tokens[~is_slow, 0].sum() / tokens[~is_slow, 1].sum())
    part = tokens[:, 0] / tokens[:, 1]
    assert reported["beside_prompts"] == pytest.approx((part[owner[stalled]] >= 0.5).mean())
    assert (finding.advice[0].knob, finding.advice[0].direction) == ("max_num_batched_tokens", "down")
    by_seq = {r.seq: r for r in run.records}
    assert all(by_seq[s.first_seq].prefill_tokens > 500 for s in finding.steps)


def test_short_prompts_are_silent() -> None:
    assert mixed(100).findings() == {}


def test_an_slo_takes_the_place_of_the_median() -> None:
    run = serve([ask(i, 20, 4000) for i in range(20)] + stream(110, 0.1, 600, 2), 12)
    median = float(np.nanmedian(np.concatenate([itl_column(r) for r in run.window()])))
    assert "itl-prompts" not in run.findings()
    assert "itl-prompts" in run.findings(Bounds(itl_s=1.5 * median))
    assert "itl-prompts" not in mixed(3000).findings(Bounds(itl_s=1.0))


def test_without_other_steps_nothing_tells_that_prompts_are_the_reason() -> None:
    run = serve([ask(i, 20, 4000) for i in range(20)] + stream(3000, 0.004, 1200, 2), 14)
    shortest = float(np.nanmin(np.concatenate([itl_column(r) for r in run.window(10.5)])))
    found = read(run.messages, Log(10.5, Bounds(itl_s=shortest / 2))).entries
    assert "itl-prompts" not in found


def test_slow_steps_without_prompts_are_someone_else() -> None:
    run = serve([ask(i, 20, 4000) for i in range(20)], 10, slow=(10, 5.0))
    assert "itl-prompts" not in run.findings()
