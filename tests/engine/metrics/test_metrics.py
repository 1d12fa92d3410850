"""The page beside a real one of vLLM's, and beside the records it was counted from."""

from __future__ import annotations

import math
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from schedtop.engine.build import build_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.prefixes.lost_hits import PrefixMemory
from schedtop.engine.contract.reading import draft_positions, itl_column, row_columns
from schedtop.engine.handoff.request import Request
from schedtop.engine.metrics import MetricsError, start_metrics
from schedtop.engine.metrics.collector import MetricsCollector
from schedtop.engine.metrics.counts import Buckets, Counts, one_two_five
from schedtop.engine.metrics.page_text import page_text

FIXTURE = Path(__file__).parent / "vllm-0.32-plain-under-load.txt"
"""The page of a live vLLM 0.32 on a CPU, serving under load."""

# What this page leaves out, absent rather than 0 (docs/serving.md says the same).
LEFT_OUT = {
    "vllm:estimated_": "a GPU's arithmetic and memory traffic, which nobody measures here",
    "vllm:external_prefix_cache": "there is no KV cache outside the pool",
    "vllm:mm_cache": "only text is served",
    "vllm:engine_sleep_state": "this engine does not sleep",
    "vllm:admission_rejections": "requests are turned away by the HTTP server, whose page has it",
}
UNKNOWN = tuple(LEFT_OUT)
UNKNOWN_VALUES = {"source": {"external_kv_transfer", "host", "p2p", "disk", "external_unspecified"}}

Samples = dict[str, list[tuple[dict[str, str], float]]]


def parse(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


class Served:
    """A page over the records of a real engine."""

    def __init__(self) -> None:
        config = EngineConfig(
            device="sim:llama-3.1-8b@l4",
            workload=WorkloadSpec(source="shared-prefix", rate=8.0, limit=120),
            scheduler={"max_num_seqs": 24, "num_blocks": 600, "max_model_len": 2048, "num_speculative_tokens": 1},
        )
        engine = build_engine(config)
        self.records: list[t.StepRecord] = []
        with start_metrics(0, engine.header) as page:
            assert page.url.startswith("http://127.0.0.1:")
            while not engine.exhausted:
                if engine.clock_s > 4 and engine.knobs_version == 0:
                    engine.abort(int(row_columns(self.records[-1])["request"][0]))
                    engine.set_knobs({"max_num_seqs": 20})
                record = engine.step()
                assert record is not None
                page.write(record)
                self.records.append(record)
            with urllib.request.urlopen(page.url, timeout=30) as response:
                self.text = response.read().decode()
        self.samples = parse(self.text)

    def value(self, name: str, **labels: str) -> float:
        (value,) = (v for have, v in self.samples[name] if labels.items() <= have.items())
        return value


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    yield Served()


@pytest.fixture(scope="module")
def vllm() -> Samples:
    return parse(FIXTURE.read_text())


def test_every_name_that_the_engine_knows_is_there(served: Served, vllm: Samples) -> None:
    wanted = {name for name in vllm if name.startswith("vllm:") and not name.startswith(UNKNOWN)}
    assert wanted - set(served.samples) == set()


def test_nothing_unknown_is_there(served: Served) -> None:
    assert [name for name in served.samples if name.startswith(UNKNOWN)] == []


def test_label_names_are_the_same(served: Served, vllm: Samples) -> None:
    for name in (set(vllm) & set(served.samples)) - {"vllm:cache_config_info"}:
        if name.startswith("vllm:"):
            wanted = {tuple(sorted(labels)) for labels, _ in vllm[name]}
            assert {tuple(sorted(labels)) for labels, _ in served.samples[name]} == wanted, name
    ours = set(served.samples["vllm:cache_config_info"][0][0])
    assert ours <= set(vllm["vllm:cache_config_info"][0][0])


def test_label_values_are_the_known_ones(served: Served, vllm: Samples) -> None:
    for name in (set(vllm) & set(served.samples)) - {"vllm:cache_config_info"}:
        for label in ("reason", "source", "finished_reason", "engine"):
            wanted = {labels[label] for labels, _ in vllm[name] if label in labels}
            ours = {labels[label] for labels, _ in served.samples[name] if label in labels}
            assert ours == wanted - UNKNOWN_VALUES.get(label, set()), (name, label)


def test_buckets_are_the_same(served: Served, vllm: Samples) -> None:
    names = [name for name in vllm if name.startswith("vllm:") and name.endswith("_bucket")]
    assert len(names) == 16
    for name in names:
        edges = [labels["le"] for labels, _ in vllm[name]]
        assert [labels["le"] for labels, _ in served.samples[name]] == edges, name


def test_counters_are_the_records_totals(served: Served) -> None:
    totals = served.records[-1].totals
    blocks = served.records[-1].blocks
    reasons = [finish.reason for record in served.records for finish in record.finishes]
    assert served.value("vllm:num_preemptions_total") == totals.preemptions > 0
    assert served.value("vllm:generation_tokens_total") == totals.output_tokens > 0
    assert served.value("vllm:prefix_cache_queries_total") == totals.prompt_tokens > 0
    assert served.value("vllm:prefix_cache_hits_total") == totals.cached_tokens > 0
    assert served.value("schedtop_recomputed_tokens_total") == totals.recomputed_tokens > 0
    assert served.value("schedtop_rejected_draft_tokens_total") == totals.rejected_draft_tokens > 0
    accepted = served.value("vllm:spec_decode_num_accepted_tokens_total")
    assert accepted == totals.accepted_draft_tokens > 0
    # Drafts of a life that a preemption ended while they were under way are neither.
    assert accepted + totals.rejected_draft_tokens <= totals.draft_tokens
    drafted, held = sum(draft_positions(record) for record in served.records)[:, 0]
    assert served.value("schedtop_spec_decode_num_draft_tokens_per_pos_total", position="0") == drafted > held
    assert served.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0") == held == accepted
    assert served.value("schedtop_knob_changes_total") >= 1
    for reason in ("stop", "length", "abort"):
        assert served.value("vllm:request_success_total", finished_reason=reason) == reasons.count(reason)
    assert reasons.count("abort") == 1
    for reason in ("error", "repetition"):
        assert served.value("vllm:request_success_total", finished_reason=reason) == 0, "there from the start"
    steps = {str(limiter): 0 for limiter in t.Limiter}
    for record in served.records:
        steps[record.limiter] += record.executed
    assert {labels["limiter"]: value for labels, value in served.samples["schedtop_steps_total"]} == steps
    classes = {labels["class"]: value for labels, value in served.samples["schedtop_kv_blocks"]}
    assert classes == {name: getattr(blocks, name) for name in ("held", "shared", "cached_free", "empty")}
    assert served.value("vllm:num_requests_running") == 0


def test_lost_hits_are_those_of_the_records(served: Served) -> None:
    prefixes = PrefixMemory(16)
    for record in served.records:
        prefixes.add(record)
    assert served.value("schedtop_lost_hit_tokens_total") == prefixes.found.lost_tokens > 0


def test_prompts_by_source_add_up_once_all_have_begun(served: Served) -> None:
    computed = served.value("vllm:prompt_tokens_by_source_total", source="local_compute")
    cached = served.value("vllm:prompt_tokens_by_source_total", source="local_cache_hit")
    assert computed + cached == served.value("vllm:prompt_tokens_total")
    assert computed + served.value("vllm:generation_tokens_total") == served.value(
        "vllm:iteration_tokens_total_sum"
    )


def test_histograms_hold_every_sample(served: Served) -> None:
    itl = np.concatenate([itl_column(record) for record in served.records]).astype(np.float64)
    itl = itl[~np.isnan(itl)]
    ttft = [wait_s for record in served.records for _, wait_s in record.ttft_s]
    finishes = [finish for record in served.records for finish in record.finishes]
    expected = {
        "vllm:inter_token_latency_seconds": itl.tolist(),
        "vllm:time_to_first_token_seconds": ttft,
        "vllm:e2e_request_latency_seconds": [f.e2e_s for f in finishes if f.e2e_s is not None],
        "vllm:request_time_per_output_token_seconds": [f.tpot_s for f in finishes if f.tpot_s is not None],
        "vllm:request_generation_tokens": [float(f.output_tokens) for f in finishes],
        "vllm:request_num_preemptions": [float(f.preemptions) for f in finishes],
    }
    for name, values in expected.items():
        assert served.value(f"{name}_count") == len(values) > 0
        assert math.isclose(served.value(f"{name}_sum"), sum(values), rel_tol=1e-9)
        for labels, count in served.samples[f"{name}_bucket"]:
            assert count == sum(value <= float(labels["le"]) for value in values), (name, labels)


def test_without_an_answer_there_is_no_sample(served: Served) -> None:
    """A refused request ends nowhere in vLLM's histograms; an engine that never drafted has no draft counters."""
    engine = build_engine(EngineConfig(workload=None))
    with start_metrics(0, engine.header) as page:
        idle = t.StepRecord(
            **{
                **{name: getattr(served.records[-1], name) for name in t.StepRecord.__struct_fields__},
                "executed": False,
                "finishes": [],
                "totals": t.Totals(submitted=1, refused=1),
                "oldest_wait_s": None,
                "arrivals": [t.Arrival(0, "r", 0.0, 9, 9)],
                "refusals": [t.Refusal(0, "r", "too long")],
            }
        )
        page.write(idle)
        with urllib.request.urlopen(page.url, timeout=30) as response:
            samples = parse(response.read().decode())
    assert not [name for name in samples if "spec_decode" in name]
    assert "schedtop_oldest_wait_seconds" not in samples
    (refused,) = samples["schedtop_requests_refused_total"]
    assert refused[1] == 1
    assert all(value == 0 for _, value in samples["vllm:request_prompt_tokens_count"])


def test_a_taken_port_is_one_line() -> None:
    header = build_engine(EngineConfig(workload=None)).header
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            MetricsError, match=rf"^cannot serve metrics on port {port}: Address already in use; .*\Z"
        ):
            start_metrics(port, header)


@given(st.lists(st.floats(0, 100, width=32) | st.just(float("nan")), max_size=30))
def test_one_by_one_and_all_at_once_count_alike(values: list[float]) -> None:
    edges = (0.5, 1.0, 10.0)
    one, many = Buckets(edges), Buckets(edges)
    for value in values:
        one.add(None if math.isnan(value) else value)
    many.add_many(np.array(values, dtype=np.float32))
    assert one.counts == many.counts
    assert math.isclose(one.sum, many.sum, abs_tol=1e-9)


def test_token_edges_follow_the_model_length() -> None:
    assert one_two_five(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert one_two_five(1) == (1,)
    assert one_two_five(5)[-1] == 5


def test_a_request_cut_off_by_a_full_pool_is_a_length_to_vllms_dashboards() -> None:
    scheduler = {"num_blocks": 8, "max_model_len": 1024}
    engine = build_engine(EngineConfig(workload=None, scheduler=scheduler))
    counts = Counts(engine.header)
    engine.submit(Request("r", np.arange(20, dtype=np.int32), 500, client_wait_s=3.0))
    while engine.num_unfinished:
        record = engine.step()
        assert record is not None
        counts.write(record)
    samples = parse(page_text(MetricsCollector(engine.header, counts).collect()).decode())
    ended = {labels.get("finished_reason"): n for labels, n in samples["vllm:request_success_total"]}
    assert ended == {"stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0}
    own = {labels["reason"]: n for labels, n in samples["schedtop_requests_finished_total"]}
    assert own["kv_capacity"] == 1 and own["length"] == 0
    ((_, ttft_s),) = samples["vllm:time_to_first_token_seconds_sum"]
    ((_, e2e_s),) = samples["vllm:e2e_request_latency_seconds_sum"]
    ((_, wait_s),) = samples["schedtop_client_wait_seconds_sum"]
    assert wait_s == 3.0 < ttft_s < e2e_s, "what came before the scheduler is in vLLM's figures"
    ((_, queue_s),) = samples["vllm:request_queue_time_seconds_sum"]
    assert queue_s == 0.0
    ((labels, _),) = samples["vllm:cache_config_info"]
    assert labels["num_gpu_blocks"] == "9", "with the null block"


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b:c", "vllm:x"]), st.text(max_size=9), st.floats() | st.integers()),
        max_size=9,
    )
)
def test_the_page_is_written_as_prometheus_writes_it(samples: list[tuple[str, str, float]]) -> None:
    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            for kind in (GaugeMetricFamily, CounterMetricFamily):
                family = kind("some:thing", 'A "thing" with \\ and\nlines.')
                for label, text, value in samples:
                    suffix = "_total" if kind is CounterMetricFamily else ""
                    family.add_sample(f"some:thing{suffix}", {"name": label, "text": text}, value)
                    family.add_sample("some:thing_created", {"name": label}, 1.5e9)
                yield family

    registry = CollectorRegistry()
    registry.register(Families())
    if any(isinstance(value, int) and abs(value) > 2**53 for *_, value in samples):
        return
    assert page_text(registry.collect()) == generate_latest(registry)


def test_prompts_that_wait_are_counted_until_they_are_admitted() -> None:
    engine = build_engine(EngineConfig(workload=None, scheduler={"num_blocks": 64, "max_model_len": 256}))
    counts = Counts(engine.header)
    engine.pause()
    for size in (20, 50, 400):
        engine.submit(Request(f"r{size}", np.arange(size, dtype=np.int32), 2))

    def waiting() -> float:
        record = engine.step()
        assert record is not None
        counts.write(record)
        ((_, tokens),) = parse(page_text(MetricsCollector(engine.header, counts).collect()).decode())[
            "schedtop_waiting_prompt_tokens"
        ]
        return tokens

    assert waiting() == 70, "the one that is too long was refused"
    engine.resume()
    assert waiting() == 0


def test_running_requests_that_a_step_leaves_out_are_starving() -> None:
    settings = {"num_blocks": 64, "max_model_len": 256, "async_scheduling": False}
    engine = build_engine(EngineConfig(workload=None, scheduler=settings))
    counts = Counts(engine.header)
    for place in range(5):
        engine.submit(Request(f"r{place}", np.arange(8, dtype=np.int32), 20))
    reported = []
    for budget in (100, 100, 2, 2):
        engine.set_knobs({"max_num_scheduled_tokens": budget})
        record = engine.step()
        assert record is not None
        counts.write(record)
        samples = parse(page_text(MetricsCollector(engine.header, counts).collect()).decode())
        reported.append(
            [samples[name][0][1] for name in ("schedtop_requests_starving", "schedtop_starved_request_steps_total")]
        )
    assert reported == [[0, 0], [0, 0], [3, 3], [3, 6]]
