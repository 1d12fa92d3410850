"""Sources of requests: generators and traces."""

from schedtop.engine.workload.open import open_source
from schedtop.engine.workload.trace import TraceError, register_reader

__all__ = ["TraceError", "open_source", "register_reader"]
