"""Exports the counts under vLLM's names and labels. What the engine cannot know is absent, never 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from schedtop.engine.contract.kv_groups import kinds_of
from schedtop.engine.contract.telemetry import DEFERRED, FinishReason, Header, Limiter, StepRecord, Totals
from schedtop.engine.metrics.counts import Counts, starving

Values = Iterable[tuple[dict[str, str], float]]
"""Labels beside the usual ones, and the value."""

VLLM_COUNTERS: dict[str, tuple[str, Callable[[Totals], float]]] = {
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda t: t.cache_queries),
    "vllm:prefix_cache_hits": ("Prompt tokens that the prefix cache had.", lambda t: t.cached_tokens),
    "vllm:prompt_tokens_cached": ("Prompt tokens that were not computed.", lambda t: t.cached_tokens),
    "vllm:num_preemptions": ("Preemptions.", lambda t: t.preemptions),
    "vllm:generation_tokens": ("Output tokens.", lambda t: t.output_tokens),
}
DRAFT_COUNTERS: dict[str, tuple[str, Callable[[Totals], float]]] = {
    "vllm:spec_decode_num_drafts": ("Rows that carried drafts.", lambda t: t.drafts),
    "vllm:spec_decode_num_draft_tokens": ("Draft tokens verified.", lambda t: t.draft_tokens),
    "vllm:spec_decode_num_accepted_tokens": ("Draft tokens accepted.", lambda t: t.accepted_draft_tokens),
}
OWN_COUNTERS: dict[str, tuple[str, Callable[[Totals], float]]] = {
    "schedtop_requests_submitted": ("Requests received.", lambda t: t.submitted),
    "schedtop_requests_admitted": ("First admissions.", lambda t: t.admitted),
    "schedtop_requests_refused": ("Requests that could never be served.", lambda t: t.refused),
    "schedtop_scheduled_tokens": ("Tokens scheduled.", lambda t: t.scheduled_tokens),
    "schedtop_recomputed_tokens": ("Scheduled again after a preemption.", lambda t: t.recomputed_tokens),
    "schedtop_reused_tokens": ("Found in the cache when a preempted request returned.", lambda t: t.reused_tokens),
    "schedtop_rejected_draft_tokens": ("Draft tokens that became no output.", lambda t: t.rejected_draft_tokens),
    "schedtop_requests_kv_capacity": ("Requests cut off because the pool was full.", lambda t: t.kv_capacity),
    "schedtop_aborted_prefill_tokens": (
        "Prompt tokens computed for requests that were aborted before their first output.",
        lambda t: t.aborted_prefill_tokens,
    ),
    "schedtop_token_budget": ("Token budgets of all steps.", lambda t: t.token_budget),
    "schedtop_input_rows": ("Rows of model input.", lambda t: t.input_rows),
    "schedtop_input_budget": ("Input budgets of all steps.", lambda t: t.input_budget),
    "schedtop_busy_seconds": ("Time in which a step ran.", lambda t: t.busy_s),
}

VLLM_REASONS = tuple(FinishReason(name) for name in ("stop", "length", "abort", "error", "repetition"))

HISTOGRAM_TEXTS = {
    "vllm:request_prompt_tokens": "Prompt tokens of ended requests.",
    "vllm:request_generation_tokens": "Output tokens of ended requests.",
    "vllm:request_max_num_generation_tokens": "Output tokens of the longest output of a request.",
    "vllm:request_params_max_tokens": "Output tokens asked for.",
    "vllm:request_params_n": "Answers asked for: children of one parent are one request.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens computed, not cached.",
    "vllm:request_num_preemptions": "Preemptions of a request.",
    "vllm:iteration_tokens_total": "Tokens per step: outputs, and prompts in the step that ends them.",
    "vllm:time_to_first_token_seconds": "First output after arrival.",
    "vllm:inter_token_latency_seconds": "Gap between deliveries to the client.",
    "vllm:request_time_per_output_token_seconds": "Decode time per output after the first.",
    "vllm:e2e_request_latency_seconds": "Last output after arrival.",
    "vllm:request_queue_time_seconds": "First scheduled after arrival.",
    "vllm:request_inference_time_seconds": "Last output after first scheduled.",
    "vllm:request_prefill_time_seconds": "First output after first scheduled.",
    "vllm:request_decode_time_seconds": "Last output after the first.",
    "schedtop_inter_token_latency_seconds": "Gap between deliveries to the client, from a tenth of a millisecond on.",
    "schedtop_client_wait_seconds": "From a request's arrival at its server to the scheduler.",
    "schedtop_request_requeued_seconds": "Time waiting again after preemptions, of requests that were preempted.",
    "schedtop_step_seconds": "Time of a step on the engine's clock.",
}


class MetricsCollector(Collector):
    """Builds the page's metric families from `counts`, in the thread that asks."""

    def __init__(self, header: Header, counts: Counts) -> None:
        self._header = header
        self._counts = counts
        self._has_host = bool(header.config.get("kv_host_memory_bytes"))
        self._labels = {"engine": "0", "model_name": header.model}

    def collect(self) -> Iterator[Metric]:
        """All families, as of the last record."""
        with self._counts.lock:
            self._counts.settle()
            families = [*self._counters(), *self._histogram_families()]
            last = self._counts.last
            families += self._load(0, 0, 0, 0.0) if last is None else self._gauges(last)
            families += self._adapters()
        yield self._cache_config()
        yield from families

    def _counter(self, name: str, text: str, values: Values) -> Metric:
        family = CounterMetricFamily(name, text)
        for labels, value in values:
            labels = {**self._labels, **labels}
            family.add_sample(f"{name}_total", labels, value)
            family.add_sample(f"{name}_created", labels, self._header.started_at)
        return family

    def _gauge(self, name: str, text: str, values: Values) -> Metric:
        family = GaugeMetricFamily(name, text)
        for labels, value in values:
            family.add_sample(name, {**self._labels, **labels}, value)
        return family

    def _counters(self) -> Iterator[Metric]:
        totals = self._counts.last.totals if self._counts.last is not None else Totals()
        tables = {**VLLM_COUNTERS, **OWN_COUNTERS}
        if totals.draft_tokens:
            tables.update(DRAFT_COUNTERS)
        for name, (text, value) in tables.items():
            yield self._counter(name, text, [({}, value(totals))])
        if totals.draft_tokens:
            yield from self._draft_positions()
        computed, cached = (
            self._counts.computed_prompt_tokens,
            self._counts.prompt_tokens - self._counts.computed_prompt_tokens,
        )
        yield self._counter("vllm:prompt_tokens", "Prompt tokens processed.", [({}, self._counts.prompt_tokens)])
        host = totals.external_tokens
        sources = [({"source": "local_compute"}, computed), ({"source": "local_cache_hit"}, cached - host)]
        device = [({"source": "device"}, totals.cached_tokens - host)]
        if self._has_host:
            sources.append(({"source": "external_kv_transfer"}, host))
            device.append(({"source": "host"}, host))
            asked = totals.cache_queries - (totals.cached_tokens - host)
            yield self._counter(
                "vllm:external_prefix_cache_queries", "Tokens the pool did not have.", [({}, asked)]
            )
            yield self._counter("vllm:external_prefix_cache_hits", "Those the host's memory had.", [({}, host)])
        yield self._counter("vllm:prompt_tokens_by_source", "Prompt tokens by source.", sources)
        yield self._counter("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", device)
        reasons = dict(self._counts.reasons)
        reasons[FinishReason.LENGTH] += reasons[FinishReason.KV_CAPACITY]  # as vLLM reports it to clients
        ends = [({"finished_reason": str(reason)}, reasons[reason]) for reason in VLLM_REASONS]
        yield self._counter("vllm:request_success", "Finished requests.", ends)
        ends = [({"reason": str(reason)}, count) for reason, count in self._counts.reasons.items()]
        yield self._counter("schedtop_requests_finished", "Requests that ended, by reason.", ends)
        limiters = [({"limiter": str(name)}, count) for name, count in self._counts.limiters.items()]
        yield self._counter("schedtop_steps", "Steps, by what kept them from taking more work.", limiters)
        yield self._counter(
            "schedtop_preemption_loops", "Preemptions that were part of a loop.", [({}, self._counts.loops)]
        )
        lost: Values = [({}, self._counts.lost_hit_tokens)]
        yield self._counter("schedtop_lost_hit_tokens", "Prompt tokens computed that the cache had once.", lost)
        starved: Values = [({}, self._counts.starved)]
        yield self._counter(
            "schedtop_starved_request_steps", "Running requests times steps without a token.", starved
        )
        yield self._counter("schedtop_knob_changes", "Changes of live limits.", [({}, self._counts.knob_changes)])
        if self._header.config.get("encoder_budget") is not None:
            encoded: Values = [({}, self._counts.encoder_tokens)]
            yield self._counter("schedtop_encoder_tokens", "Image tokens encoded.", encoded)

    def _draft_positions(self) -> Iterator[Metric]:
        """Drafts by position, from 0, as on vLLM's page; the number verified per position is an addition."""
        names = {
            "schedtop_spec_decode_num_draft_tokens_per_pos": "Draft tokens verified, by position.",
            "vllm:spec_decode_num_accepted_tokens_per_pos": "Draft tokens accepted, by position.",
        }
        verified = self._counts.drafts[0]
        for (name, text), counts in zip(names.items(), self._counts.drafts.tolist(), strict=True):
            values = [({"position": str(place)}, n) for place, n in enumerate(counts) if verified[place]]
            yield self._counter(name, text, values)

    def _gauges(self, record: StepRecord) -> Iterator[Metric]:
        blocks, head = record.blocks, record.head
        pool = blocks.held + blocks.shared + blocks.cached_free + blocks.empty
        deferred = sum(count for _, count in record.deferred)
        usage = (blocks.held + blocks.shared) / pool if pool else None
        yield from self._load(record.running, record.waiting, deferred, usage)
        counts = dict(record.deferred)
        by_reason = [({"reason": str(name)}, counts.get(name, 0)) for name in DEFERRED]
        yield self._gauge("schedtop_requests_deferred", "Requests that wait and are not ready.", by_reason)
        classes = [({"class": name}, getattr(blocks, name)) for name in ("held", "shared", "cached_free", "empty")]
        yield self._gauge("schedtop_kv_blocks", "KV blocks by class; the classes add up to the pool.", classes)
        yield self._gauge("schedtop_kv_watermark_blocks", "Blocks that admission leaves.", [({}, blocks.watermark)])
        yield self._gauge("schedtop_kv_stored_tokens", "Tokens in blocks in use.", [({}, blocks.stored_tokens)])
        if blocks_of := record.group_blocks:
            kinds = {place: kind.label for kind in kinds_of(self._header.config) for place in kind.groups}
            held = [({"group": str(at), "kind": kinds.get(at, "")}, count) for at, count in enumerate(blocks_of)]
            yield self._gauge("schedtop_kv_group_blocks", "Blocks in the tables of each KV group.", held)
        if record.host_blocks:
            used, size, loads, sends = record.host_blocks
            blocks_of_host = [({"state": "used"}, used), ({"state": "free"}, size - used)]
            yield self._gauge("schedtop_host_kv_blocks", "KV blocks in the host's memory.", blocks_of_host)
            copies = [({"way": "load"}, loads), ({"way": "store"}, sends)]
            yield self._gauge("schedtop_host_kv_copies", "Copies from and to the host's memory.", copies)
        left_out: Values = [({}, starving(record))]
        yield self._gauge("schedtop_requests_starving", "Running requests that the last step left out.", left_out)
        reasons = [({"reason": str(name)}, float(head is not None and head.reason == name)) for name in Limiter]
        yield self._gauge("schedtop_waiting_head", "1 for the reason why the head of the queue waits.", reasons)
        if record.oldest_wait_s is not None:
            oldest: Values = [({}, record.oldest_wait_s)]
            yield self._gauge("schedtop_oldest_wait_seconds", "How long the oldest request waits.", oldest)
        tokens = self._counts.waiting_tokens
        yield self._gauge("schedtop_waiting_prompt_tokens", "Prompts that were never admitted.", [({}, tokens)])
        yield self._gauge("schedtop_paused", "1 while the engine is paused.", [({}, record.paused)])
        yield self._gauge("schedtop_clock_seconds", "The engine's clock.", [({}, record.end_s)])

    def _load(self, running: int, waiting: int, deferred: int, usage: float | None) -> Iterator[Metric]:
        """The figures dashboards show first; all 0 before the first record."""
        yield self._gauge("vllm:num_requests_running", "Requests that run.", [({}, running)])
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait.", [({}, waiting)])
        waits = [({"reason": "capacity"}, waiting - deferred), ({"reason": "deferred"}, deferred)]
        yield self._gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by reason.", waits)
        if usage is not None:
            yield self._gauge("vllm:kv_cache_usage_perc", "Share of the blocks in use, 0 to 1.", [({}, usage)])

    def _adapters(self) -> Iterator[Metric]:
        """As vLLM reports them: names in labels, the time as the value; nothing where no request has one."""
        running, waiting = self._counts.adapters()
        most = self._header.config.get("max_loras") or 0
        if not (most or running or waiting):
            return
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters of requests that run and that wait.")
        names = {"running_lora_adapters": ",".join(running), "waiting_lora_adapters": ",".join(waiting)}
        family.add_sample("vllm:lora_requests_info", {**self._labels, "max_lora": str(most), **names}, time.time())
        yield family

    def _histogram_families(self) -> Iterator[Metric]:
        for name, buckets in self._counts.histograms.items():
            family = HistogramMetricFamily(name, HISTOGRAM_TEXTS[name])
            total = 0
            for edge, count in zip((*buckets.edges, float("inf")), buckets.counts, strict=True):
                total += count
                family.add_sample(f"{name}_bucket", {**self._labels, "le": _edge(edge)}, total)
            family.add_sample(f"{name}_count", self._labels, total)
            family.add_sample(f"{name}_sum", self._labels, buckets.sum)
            family.add_sample(f"{name}_created", self._labels, self._header.started_at)
            yield family

    def _cache_config(self) -> Metric:
        config = self._header.config
        labels = {
            "block_size": str(self._header.block_size),
            "num_gpu_blocks": str(self._header.num_blocks + 1),  # vLLM counts the null block, which holds nothing
            "enable_prefix_caching": str(config.get("enable_prefix_caching")),
            "sliding_window": str(config.get("sliding_window")),
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "Settings of the KV cache.")
        family.add_sample("vllm:cache_config_info", {"engine": "0", **labels}, 1.0)
        return family


def _edge(value: float) -> str:
    """A bucket's edge as Prometheus spells it."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
