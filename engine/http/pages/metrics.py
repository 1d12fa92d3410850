"""The Prometheus page, counted from the engine's records and the HTTP side's own counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from schedtop.engine.contract.telemetry import Header
from schedtop.engine.http.server_state import HttpCounts
from schedtop.engine.metrics.collector import MetricsCollector
from schedtop.engine.metrics.counts import Counts
from schedtop.engine.metrics.page_text import page_text


class HttpCollector(Collector):
    """Requests that never reached the engine, or whose client left."""

    def __init__(self, model: str, counts: HttpCounts) -> None:
        self._model = model
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        rejections = CounterMetricFamily(
            "vllm:admission_rejections", "Requests turned away before the queue.", labels=["model_name", "reason"]
        )
        rejections.add_metric([self._model, "max_num_queued_reqs"], self._counts.queue_rejections)
        yield rejections
        slow = CounterMetricFamily(
            "schedtop_slow_readers", "Streams given up because their client did not read.", labels=["model_name"]
        )
        slow.add_metric([self._model], self._counts.slow_readers)
        yield slow


def metrics_registry(header: Header, model: str, counts: Counts, http_counts: HttpCounts) -> CollectorRegistry:
    """Everything on the page, under the clients' name for the model."""
    registry = CollectorRegistry()
    for collector in (GCCollector, PlatformCollector, ProcessCollector):
        collector(registry=registry)
    registry.register(MetricsCollector(msgspec.structs.replace(header, model=model), counts))
    registry.register(HttpCollector(model, http_counts))
    return registry


def metrics_page(header: Header, model: str, counts: Counts, http_counts: HttpCounts) -> Callable[[], bytes]:
    """A function that renders the page."""
    registry = metrics_registry(header, model, counts, http_counts)
    return lambda: page_text(registry.collect())
