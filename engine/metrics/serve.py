"""Serving the page on this machine."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from schedtop.engine.contract.telemetry import Header, StepRecord
from schedtop.engine.metrics.collector import MetricsCollector
from schedtop.engine.metrics.counts import Counts
from schedtop.engine.metrics.page_server import PageServer


class MetricsError(Exception):
    """The page cannot be served; the text is one line."""


class MetricsPage:
    """A sink whose counts are served over HTTP on this machine, until closed."""

    def __init__(self, port: int, header: Header) -> None:
        self._counts = Counts(header)
        registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=registry)
        registry.register(MetricsCollector(header, self._counts))
        try:
            self._server = PageServer(port, make_wsgi_app(registry))
        except OSError as error:
            raise MetricsError(_refusal(port, error)) from None
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"

    def write(self, record: StepRecord, encoded: bytes = b"") -> None:
        """Count one record."""
        self._counts.write(record)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def __enter__(self) -> MetricsPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_metrics(port: int, header: Header) -> MetricsPage:
    """The page at `port` (0: a free one) of 127.0.0.1. Raises `MetricsError` if the port is taken."""
    return MetricsPage(port, header)


def _refusal(port: int, error: OSError) -> str:
    return f"cannot serve metrics on port {port}: {error.strerror or error}; choose another --metrics-port"
