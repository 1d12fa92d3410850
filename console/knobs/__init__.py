"""knobs."""
