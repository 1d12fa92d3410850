"""What the engine and its consoles agree on: telemetry, knobs, settings, figures. All that a console may import."""
