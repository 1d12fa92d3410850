"""Other servers' metrics pages: what vLLM and SGLang say of themselves without a hook."""
