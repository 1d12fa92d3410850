"""Inspects recordings: summaries, exports and checks."""
