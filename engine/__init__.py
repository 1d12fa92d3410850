"""The inference engine: scheduler, KV-cache manager, devices and telemetry. It never imports the console."""

__version__ = "0.1.0"
