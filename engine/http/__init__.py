"""The OpenAI-compatible server: a process of its own, a client of the engine's channel."""
