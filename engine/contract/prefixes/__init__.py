"""Prompts by their shared prefixes: the identity of a block across engines, and the hits a pool lost."""
