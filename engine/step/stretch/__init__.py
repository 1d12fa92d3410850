"""Stretches: steps of nothing but decoding, and those that compute prompts between them, taken together."""
