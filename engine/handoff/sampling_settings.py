"""Validates sampling settings, before a model is loaded."""

from __future__ import annotations

from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import ConfigError

MAX_LOGPROBS = 5


def check_sampling(params: SamplingParams) -> SamplingParams:
    """`params` itself if every value can be used; raises `ConfigError` naming the first that cannot."""
    rules = (
        ("temperature", 0 <= params.temperature < float("inf"), "a finite number of at least 0 (0 is greedy)"),
        ("top_k", params.top_k >= 0, "at least 0 (0 is off)"),
        ("top_p", 0 < params.top_p <= 1, "above 0 and at most 1"),
        ("min_p", 0 <= params.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", 0 < params.repetition_penalty < float("inf"), "a finite number above 0 (1 is off)"),
        ("frequency_penalty", -2 <= params.frequency_penalty <= 2, "from -2 to 2"),
        ("presence_penalty", -2 <= params.presence_penalty <= 2, "from -2 to 2"),
        ("logprobs", params.logprobs is None or 0 <= params.logprobs <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
        ("logit_bias", all(-100 <= bias <= 100 for _, bias in params.logit_bias), "of values from -100 to 100"),
    )
    for name, holds, wanted in rules:
        if not holds:
            raise ConfigError(f"{name}={getattr(params, name)}: must be {wanted}")
    if any(not stop for stop in params.stop):
        raise ConfigError("stop: an empty stop string would end every request at once")
    return params
