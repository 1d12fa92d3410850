"""The KV-cache manager: the block pool and the prefix cache."""
