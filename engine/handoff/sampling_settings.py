"""Which sampling settings mean something; checked before a model is loaded."""

from __future__ import annotations

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import SamplingParams


def check_sampling(params: SamplingParams) -> SamplingParams:
    """`params` itself if every value can be used; raises `ConfigError` naming the first that cannot."""
    rules = (
        ("temperature", 0 <= params.temperature < float("inf"), "a finite number of at least 0 (0 is greedy)"),
        ("top_k", params.top_k >= 0, "at least 0 (0 is off)"),
        ("top_p", 0 < params.top_p <= 1, "above 0 and at most 1"),
        ("min_p", 0 <= params.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", 0 < params.repetition_penalty < float("inf"), "above 0 and finite (1 is off)"),
        ("presence_penalty", -2 <= params.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", -2 <= params.frequency_penalty <= 2, "from -2 to 2"),
    )
    for name, holds, wanted in rules:
        if not holds:
            raise ConfigError(f"{name}={getattr(params, name)}: must be {wanted}")
    if any(not stop for stop in params.stop):
        raise ConfigError("stop: an empty stop string would end every request at once")
    if not all(token >= 0 and -100 <= bias <= 100 for token, bias in params.logit_bias):
        raise ConfigError("logit_bias: token ids are at least 0, and what is added is from -100 to 100")
    return params
