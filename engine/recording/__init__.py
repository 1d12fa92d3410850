"""Step recordings: written beside the engine, read anywhere."""
