"""The generated workloads: a table of what each sends, and the stream of requests it makes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.workload.paced import Ask, Wave
from schedtop.engine.workload.tokens import mixed


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal spread of lengths in tokens about `median`, cut at `low` and `high`."""

    median: float
    sigma: float
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of request in a mix. `prompt` is what each has of its own, behind a prefix of `shared_tokens` that
    is drawn from `num_prefixes`. A lower `priority` is more urgent."""

    name: str
    weight: float
    prompt: Lengths
    output: Lengths
    priority: int = 0
    shared_tokens: int = 0
    num_prefixes: int = 1


@dataclass(frozen=True, slots=True)
class WorkloadPreset:
    """A generated workload: `rate` in requests/s, Poisson arrivals, bunched where there is a `wave`."""

    name: str
    summary: str
    rate: float
    kinds: tuple[RequestKind, ...]
    wave: Wave | None = None


_CHAT = Lengths(220, 0.8, 8, 2000)
_ANSWER = Lengths(180, 0.6, 8, 800)

PRESETS: tuple[WorkloadPreset, ...] = (
    WorkloadPreset(
        "mixed",
        "short chats beside long reports; a few urgent (-1), reports behind (1) under the priority policy",
        rate=8.0,
        kinds=(
            RequestKind("chat", 0.82, _CHAT, _ANSWER),
            RequestKind("urgent", 0.04, _CHAT, _ANSWER, priority=-1),
            RequestKind("report", 0.14, Lengths(5000, 0.5, 1500, 16000), Lengths(400, 0.4, 64, 1200), priority=1),
        ),
    ),
    WorkloadPreset(
        "shared-prefix",
        "questions about four long documents: prefixes of 3,072 tokens that the cache can share",
        rate=8.0,
        kinds=(RequestKind("ask", 1.0, _CHAT, _ANSWER, shared_tokens=3072, num_prefixes=4),),
    ),
    WorkloadPreset(
        "unrelated",
        "the same lengths as shared-prefix with nothing in common: the cache cannot help",
        rate=8.0,
        kinds=(RequestKind("ask", 1.0, _CHAT, _ANSWER, shared_tokens=3072, num_prefixes=0),),
    ),
    WorkloadPreset(
        "pressure",
        "long prompts and long outputs: more state than the pool holds, hence preemptions",
        rate=4.0,
        kinds=(RequestKind("long", 1.0, Lengths(2500, 0.5, 500, 8000), Lengths(1500, 0.5, 300, 6000)),),
    ),
    WorkloadPreset(
        "burst",
        "chats that all come in the first 4 s of every 20 s",
        rate=8.0,
        kinds=(RequestKind("chat", 1.0, _CHAT, _ANSWER),),
        wave=Wave(on_s=4.0, period_s=20.0),
    ),
)
BY_NAME = {preset.name: preset for preset in PRESETS}

_CHUNK = 256
"""Requests drawn at a time; a part of the streams' definition, like the order of the draws."""


def preset_asks(preset: WorkloadPreset, spec: WorkloadSpec, max_model_len: int, block_size: int) -> Iterator[Ask]:
    """The preset's requests, endless; own time is in mean gaps (1 request per own second).

    Lengths are scaled, then cut so that every request fits `max_model_len`: outputs to a quarter of it, prompts to
    the rest. A shared prefix is whole blocks, and leaves at least one token of the prompt to its request.
    """
    gaps = np.random.default_rng([spec.seed, 1])
    draws = np.random.default_rng([spec.seed, 2])
    weights = np.cumsum([kind.weight for kind in preset.kinds])
    prefix_keys = mixed(np.arange(max((kind.num_prefixes for kind in preset.kinds), default=0)), spec.seed + 1)
    own_s, ordinal = 0.0, 0
    while True:
        chunk_gaps = gaps.exponential(size=_CHUNK)
        picks, prefixes = draws.random(_CHUNK) * weights[-1], draws.random(_CHUNK)
        prompts, outputs = draws.standard_normal(_CHUNK), draws.standard_normal(_CHUNK)
        for i in range(_CHUNK):
            kind = preset.kinds[int(np.searchsorted(weights, picks[i], side="right"))]
            output = _length(kind.output, outputs[i], spec.scale, max(max_model_len // 4, 1))
            output = min(output, spec.max_output_tokens or output)
            prefix = round(kind.shared_tokens * spec.scale)
            room = max(max_model_len - output, 1)
            prompt = min(prefix + _length(kind.prompt, prompts[i], spec.scale, room), room)
            prompt = min(prompt, spec.max_prompt_tokens or prompt)
            width = min(prefix, prompt - 1) // block_size * block_size if kind.num_prefixes else 0
            which = int(prefixes[i] * kind.num_prefixes)
            yield Ask(
                own_s,
                ordinal,
                f"{kind.name}-{ordinal}",
                prompt,
                output,
                kind.priority,
                prefix_keys[which : which + 1] if width else None,
                width,
            )
            own_s += float(chunk_gaps[i])
            ordinal += 1


def _length(lengths: Lengths, normal: float, scale: float, most: int) -> int:
    tokens = min(max(lengths.median * math.exp(lengths.sigma * normal), lengths.low), lengths.high)
    return min(max(round(tokens * scale), 1), most)
