"""The requests of a golden case."""

from __future__ import annotations

import msgspec
from schedtop.engine.contract.config import SchedulerConfig


class CaseExternal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the store holds of a request: `tokens` of its prompt, from the start.

    Before `known_step` it cannot answer. The first load fails from block `fail_block` of the sequence on, or wholly.
    """

    tokens: int
    load_steps: int | None = None
    known_step: int = 0
    fail_block: int | str | None = None


class CaseImage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`length` tokens of a prompt from `offset` on; without a name it is unique."""

    offset: int
    length: int
    name: str | None = None


class CaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`prompt_parts` are [seed, length] pairs; token i of a part is (seed * 1000003 + i * 7919) % 32000.

    Its `stop_after`-th output is a stop token, which ends it; `eos_at` is another name for that. Before step
    `ready_step` it is not ready, as if a grammar were compiling.
    """

    id: str
    arrival_step: int
    max_tokens: int
    prompt_parts: list[tuple[int, int]] = []
    prompt: list[int] | None = None
    priority: int = 0
    stop_after: int | None = None
    eos_at: int | None = None
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    lora: int | None = None
    parent: str = ""
    images: list[CaseImage] = []
    external: CaseExternal | None = None
    send_steps: int | None = None
    ready_step: int = 0


def unrecorded(config: SchedulerConfig) -> list[str]:
    """What a case depends on that its recording lacks; empty if the recording can be verified."""
    return ["a KV connector"] if config.kv_connector is not None else []
