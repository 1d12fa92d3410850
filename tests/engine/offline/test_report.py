"""A report says what the records say."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.slo import parse_slo
from schedtop.engine.contract.reading import itl_column
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.offline.report import Report, report_text

SLO = parse_slo("ttft=600ms,itl=30ms")


@cache
def run() -> tuple[StepRecord, ...]:
    """A pool under pressure: preemptions, a refusal, an abort, and everything else ends."""
    spec = WorkloadSpec(source="pressure", limit=30, scale=0.2, seed=2)
    scheduler = {"num_blocks": 300, "max_model_len": 4000, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    engine = build_engine(EngineConfig(workload=spec, scheduler=scheduler))
    records = []
    aborted = False
    while not engine.exhausted:
        record = engine.step()
        if record is not None:
            records.append(record)
            if record.running >= 6 and not aborted:
                aborted = engine.abort(record.admissions[-1].number if record.admissions else -1)
    last = engine.step()
    return (*records, last) if last else tuple(records)


@pytest.fixture
def report() -> Report:
    made = Report(SLO)
    for record in run():
        made.add(record)
    return made


def test_the_document_has_exactly_the_promised_keys() -> None:
    document = Report().as_dict()
    assert [*document] == [
        "requests",
        "tokens",
        "ttft_s",
        "itl_s",
        "tpot_s",
        "e2e_s",
        "preemptions",
        "hit_rate",
        "steps",
        "budget_use",
        "peak_kv_usage",
        "clock_s",
        "wall_s",
        "refusals",
        "cut_outputs",
    ]
    assert [*document["requests"]] == [
        "submitted",
        "finished",
        "kv_capacity",
        "refused",
        "aborted",
        "failed",
        "running",
        "waiting",
        "by_class",
    ]
    assert [*document["tokens"]] == ["prompt", "output", "scheduled", "recomputed", "cached", "aborted_prefill"]
    assert [*document["itl_s"]] == ["mean", "p50", "p90", "p95", "p99", "n", "open", "at_most", "lower_bound"]
    assert [*document["budget_use"]] == ["tokens", "rows"]


def test_what_is_unknown_is_null() -> None:
    document = Report(SLO).as_dict()
    figures = dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert document["ttft_s"] == {**figures, "n": 0, "open": 0, "at_most": {}, "lower_bound": []}
    unknown = (document["hit_rate"], document["peak_kv_usage"], document["wall_s"], document["goodput"]["share"])
    assert unknown == (None, None, None, None)
    assert document["budget_use"] == {"tokens": None, "rows": None}
    assert json.loads(json.dumps(document)) == document
    assert "n/a" in report_text(document)


def test_every_request_is_accounted_for(report: Report) -> None:
    document = report.as_dict()
    requests, tokens = document["requests"], document["tokens"]
    assert requests["submitted"] == 30 == requests["finished"] + requests["refused"] + requests["aborted"]
    assert requests["aborted"] == 1
    assert document["preemptions"] == sum(len(record.preemptions) for record in run()) > 0
    assert tokens["recomputed"] == sum(record.recomputed_tokens for record in run()) > 0
    assert tokens["scheduled"] == sum(record.scheduled_tokens for record in run())
    assert document["steps"] == sum(record.executed for record in run())


def test_latencies_are_those_of_the_records(report: Report) -> None:
    records = run()
    ends = [end for record in records for end in record.finishes if end.reason not in ("abort", "refused")]
    gaps = np.concatenate([itl_column(record) for record in records])
    values = {
        "ttft_s": [ttft_s for record in records for _, ttft_s in record.ttft_s],
        "itl_s": gaps[~np.isnan(gaps)].tolist(),
        "tpot_s": [end.tpot_s for end in ends if end.tpot_s is not None],
        "e2e_s": [end.e2e_s for end in ends if end.e2e_s is not None],
    }
    document = report.as_dict()
    for name, expected in values.items():
        assert document[name]["n"] == len(expected) > 0
        for share in (50, 95, 99):
            assert document[name][f"p{share}"] == pytest.approx(np.percentile(expected, share), rel=1e-6)


def test_first_tokens_and_gaps_add_up_to_outputs(report: Report) -> None:
    document = report.as_dict()
    assert document["ttft_s"]["n"] + document["itl_s"]["n"] == document["tokens"]["output"]
    assert document["ttft_s"]["n"] >= document["e2e_s"]["n"] == document["requests"]["finished"]


def test_shares(report: Report) -> None:
    document, totals = report.as_dict(), run()[-1].totals
    assert document["budget_use"]["tokens"] == totals.scheduled_tokens / totals.token_budget
    usage = [(b.held + b.shared) / (b.held + b.shared + b.cached_free + b.empty) for b in (r.blocks for r in run())]
    assert document["peak_kv_usage"] == max(usage) <= 1
    assert document["hit_rate"] == totals.cached_tokens / totals.cache_queries
    assert document["clock_s"] == run()[-1].end_s


def test_goodput_counts_finished_requests_that_met_every_bound(report: Report) -> None:
    ends = [end for record in run() for end in record.finishes if end.reason not in ("abort", "refused")]
    met = sum(
        end.ttft_s is not None and end.ttft_s <= 0.6 and (end.itl_p95_s is None or end.itl_p95_s <= 0.03)
        for end in ends
    )
    good = report.as_dict()["goodput"]
    assert 0 < met < len(ends), "the case should have both"
    assert (good["met"], good["n"], good["share"]) == (met, len(ends), met / len(ends))
    assert good["per_s"] == met / run()[-1].end_s


def test_text_is_plain_and_has_every_figure(report: Report) -> None:
    report.wall_s = 1.25
    text = report.as_text()
    assert text.isascii()
    assert "\x1b" not in text
    assert all(line == line.rstrip() and len(line) <= 110 for line in text.splitlines())
    for part in ("30 submitted", "TTFT", "ITL", "TPOT", "E2E", "goodput", "peak KV usage", "1.25 s of wall time"):
        assert part in text
    columns = [line for line in text.splitlines() if line.startswith(("TTFT", "ITL", "TPOT", "E2E"))]
    assert len({len(line) for line in columns}) == 1
