"""The operator console: draws telemetry records, never touches the engine."""
