"""Prompts by the prefixes they share: what a block is whatever its engine, and which hits a pool lost."""
