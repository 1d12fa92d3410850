"""From a name to a model in memory: files, weights, tokenizer, and the size of the KV pool."""
