"""The last minutes of an engine, in memory and on disk."""
