"""The server's pages besides generation: metrics, knobs."""
