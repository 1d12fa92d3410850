"""TTFT is up while ITL is smooth: each cause from a real engine, and its healthy twin."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import Run, ask, numbers, serve, stream
from schedtop.console.explain.window import Bounds
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.contract.reading import itl_column


def decodes(budget: int) -> Run:
    """26 long answers, and a stream of short questions beside them."""
    requests = [ask(i, 20, 4000) for i in range(26)] + stream(400, 0.03, 40, 4)
    return serve(requests, 8, max_num_batched_tokens=budget)


def backlog(every_s: float) -> Run:
    return serve(stream(300, every_s, 3000, 4), 15)


def capped(cap: int) -> Run:
    return serve(WorkloadSpec(source="mixed", rate=8.0, seed=3), 20, max_num_seqs=cap)


def pool(blocks: int) -> Run:
    return serve(stream(300, 0.05, 600, 60), 12, num_blocks=blocks)


def check_symptom(run: Run, reported: dict[str, float]) -> None:
    """TTFT and queue figures against the records' own first tokens and admissions."""
    window = run.window()
    queue_s = {a.number: a.waited_s for r in run.records for a in r.admissions if not a.resumed}
    firsts = [(ttft_s, queue_s[number]) for r in window for number, ttft_s in r.ttft_s]
    begun = {number for r in run.records for number, _ in r.ttft_s}
    waits = [window[-1].end_s - a.arrival_s for r in run.records for a in r.arrivals if a.number not in begun]
    assert reported["n"] == len(firsts) and reported["open"] == len(waits)
    # At least what those who wait have come to: as if each got its first token now.
    for name, share in (("ttft_p50_s", 0.5), ("ttft_p95_s", 0.95)):
        assert reported[name] == pytest.approx(np.quantile([t for t, _ in firsts] + waits, share))
    assert reported["queue_p50_s"] == pytest.approx(np.quantile([q for _, q in firsts], 0.5))
    gaps = np.concatenate([itl_column(r) for r in window])
    gaps = gaps[~np.isnan(gaps)].astype(float)
    assert reported["stall_share"] == pytest.approx((gaps > 3 * np.median(gaps)).mean())
    assert reported["stall_share"] < 0.05
    assert reported["queued_share"] == pytest.approx(np.mean([r.waiting > 0 for r in window]))


def held(run: Run, *reasons: str) -> float:
    """Share of the steps with a queue whose head one of these holds."""
    return float(np.mean([(r.head.reason if r.head else r.limiter) in reasons for r in run.window() if r.waiting]))


def test_decodes_use_up_the_budget() -> None:
    run = decodes(32)
    finding = run.findings()["ttft-decodes"]
    reported = numbers(finding)
    check_symptom(run, reported)
    queued = [r for r in run.window() if r.waiting]
    decode_part = sum(r.decode_tokens + r.draft_tokens for r in queued) / sum(r.token_budget for r in queued)
    assert reported["decode_part"] == pytest.approx(decode_part)
    assert decode_part > 0.5
    assert reported["token_budget"] + reported["input_budget"] == pytest.approx(
        held(run, "token_budget", "input_budget")
    )
    assert [(a.knob, a.direction) for a in finding.advice] == [
        ("max_num_batched_tokens", "up"),
        ("max_num_seqs", "down"),
    ]
    assert finding.advice[0].now == "32"


def test_the_knob_that_makes_the_budget_is_named() -> None:
    requests = [ask(i, 20, 4000) for i in range(26)] + stream(400, 0.03, 40, 4)
    finding = serve(requests, 8, max_num_scheduled_tokens=32).findings()["ttft-decodes"]
    assert (finding.advice[0].knob, finding.advice[0].now) == ("max_num_scheduled_tokens", "32")


def test_decodes_within_a_larger_budget_are_silent() -> None:
    assert decodes(512).findings() == {}


def test_a_prompt_backlog() -> None:
    run = backlog(0.05)
    finding = run.findings()["ttft-backlog"]
    reported = numbers(finding)
    check_symptom(run, reported)
    queued = [r for r in run.window() if r.waiting]
    part = sum(r.prefill_tokens for r in queued) / sum(r.token_budget for r in queued)
    assert reported["prompt_part"] == pytest.approx(part)
    admitted = {a.number for r in run.records for a in r.admissions}
    waiting = [a for r in run.records for a in r.arrivals if a.number not in admitted]
    assert reported["backlog_tokens"] == sum(a.prompt_tokens for a in waiting) > 0
    assert finding.advice[0].knob == "max_num_batched_tokens"
    assert finding.advice[0].direction == "up"


def test_prompts_at_a_bearable_pace_are_silent() -> None:
    assert "ttft-backlog" not in backlog(0.3).findings()


def test_the_sequence_cap() -> None:
    run = capped(8)
    finding = run.findings()["ttft-sequence-cap"]
    reported = numbers(finding)
    check_symptom(run, reported)
    assert reported["cap"] == 8
    assert reported["sequence_cap"] == pytest.approx(held(run, "sequence_cap"))
    queued = [r for r in run.window() if r.waiting]
    assert reported["budget_use"] == pytest.approx(
        sum(r.scheduled_tokens for r in queued) / sum(r.token_budget for r in queued)
    )
    assert [(a.knob, a.direction, a.now) for a in finding.advice] == [("max_num_seqs", "up", "8")]
    assert "queue-low-use" not in run.findings()


def test_the_sequence_cap_left_alone_is_silent() -> None:
    assert capped(128).findings() == {}


def test_the_lower_cap_is_named() -> None:
    run = serve(WorkloadSpec(source="mixed", rate=8.0, seed=3), 20, max_num_seqs=64, max_num_active_seqs=8)
    assert run.findings()["ttft-sequence-cap"].advice[0].knob == "max_num_active_seqs"


def test_a_full_pool() -> None:
    run = pool(130)
    finding = run.findings()["ttft-pool"]
    reported = numbers(finding)
    check_symptom(run, reported)
    heads = [r.head for r in run.window() if r.waiting and r.head and r.head.reason in ("blocks", "full_sequence")]
    assert reported["need_blocks"] == pytest.approx(np.mean([h.need for h in heads if h.need is not None]))
    assert reported["free_blocks"] == pytest.approx(np.mean([h.have for h in heads if h.have is not None]))
    assert reported["blocks"] + reported["full_sequence"] == pytest.approx(held(run, "blocks", "full_sequence"))
    assert finding.advice[-1].knob == "num_blocks"
    assert reported["open"] > 20
    assert f"(n={reported['n']}+{reported['open']})" in finding.links[0].words and ">" in finding.links[0].words


def test_room_in_the_pool_is_silent() -> None:
    assert pool(13_000).findings() == {}


def test_a_kept_slo_silences_and_a_broken_one_does_not() -> None:
    run = capped(8)
    p95 = numbers(run.findings()["ttft-sequence-cap"])["ttft_p95_s"]
    assert "ttft-sequence-cap" not in run.findings(Bounds(ttft_s=p95 + 1))
    assert "ttft-sequence-cap" in run.findings(Bounds(ttft_s=p95 - 1))


def test_evidence_lies_in_steps_that_show_it() -> None:
    run = capped(8)
    by_seq = {r.seq: r for r in run.records}
    spans = run.findings()["ttft-sequence-cap"].steps
    assert spans
    for span in spans:
        for seq in range(span.first_seq, span.last_seq + 1):
            record = by_seq[seq]
            assert record.waiting > 0
            assert record.head is not None
            assert record.head.reason == "sequence_cap"
        assert by_seq[span.first_seq].step == span.first_step
        assert by_seq[span.last_seq].step == span.last_step
