"""Stretches: steps of nothing but decoding, and those that take arrivals in, computed together."""
