"""What the server answers beside generation: metrics, knobs."""
