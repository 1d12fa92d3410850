"""Other servers' metrics pages: what vLLM and SGLang report without a hook."""
