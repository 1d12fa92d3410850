"""The `/metrics` page: vLLM's names, labels and buckets where they apply, `schedtop_*` for the rest."""

from schedtop.engine.metrics.serve import MetricsError, start_metrics

__all__ = ["MetricsError", "start_metrics"]
