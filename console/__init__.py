"""The operator console: draws telemetry records, never touches the engine."""

import os

os.environ.setdefault("TEXTUAL_FPS", "120")
"""Textual draws what changed at its next tick, and reads this as it is imported: a key need not wait for 17 ms."""
