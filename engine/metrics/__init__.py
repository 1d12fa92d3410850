"""The `/metrics` page: vLLM's names, labels and buckets for what this engine knows, `schedtop_*` for the rest."""

from schedtop.engine.metrics.serve import MetricsError, start_metrics

__all__ = ["MetricsError", "start_metrics"]
