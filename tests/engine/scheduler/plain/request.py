"""A request of the plain scheduler, and the reading of a case into plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.engine.scheduler.plain.pool import Table

STOP_TOKEN = 49000


@dataclass(frozen=True)
class Image:
    offset: int
    length: int
    name: str


@dataclass(eq=False)
class PlainRequest:
    """`tables` holds one block table per KV group; `life` counts its preemptions.

    `under_way`: tokens of this life that are scheduled and not applied. `batches`: the steps of all batches with it
    that are not applied, of earlier lives too.
    """

    spec: dict[str, Any]
    ordinal: int
    prompt: list[int]
    images: list[Image]
    arrived: float
    num_groups: int
    outputs: list[int] = field(default_factory=list)
    num_drafts: int = 0
    placeholders: int = 0
    computed: int = 0
    junction: int = 0
    tables: list[Table] = field(default_factory=list)
    num_filled: list[int] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)
    mid_prompt: bool = False
    life: int = 0
    under_way: int = 0
    batches: list[int] = field(default_factory=list)
    next_decode_step: int = 0
    ended: bool = False
    loading: bool = False
    load_failed: bool = False
    just_loaded: bool = False
    cached_at_admission: int = 0

    def __post_init__(self) -> None:
        self.forget_blocks()

    def forget_blocks(self) -> None:
        self.tables = [[] for _ in range(self.num_groups)]
        self.num_filled = [0] * self.num_groups
        self.computed = self.junction = 0

    @property
    def id(self) -> str:
        return str(self.spec["id"])

    @property
    def lora(self) -> int:
        return self.spec.get("lora") or 0

    @property
    def max_tokens(self) -> int:
        return int(self.spec["max_tokens"])

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.outputs

    @property
    def urgency(self) -> tuple[int, float]:
        return (self.spec.get("priority") or 0, self.arrived)

    @property
    def waits_for_results(self) -> bool:
        """Results of a preempted life are still under way."""
        return bool(self.batches)

    def holds_blocks(self) -> bool:
        return any(self.tables)

    def output(self, place: int) -> int:
        """The model's token for output `place` (0-based)."""
        if place + 1 == self.spec.get("stop_after"):
            return STOP_TOKEN
        return 32000 + (self.ordinal * 7919 + place * 104729) % 16000


def read_request(spec: dict[str, Any], ordinal: int, num_groups: int) -> PlainRequest:
    prompt = spec.get("prompt")
    if prompt is None:
        parts = spec.get("prompt_parts") or []
        prompt = [(seed * 1000003 + i * 7919) % 32000 for seed, length in parts for i in range(length)]
    images = [
        Image(image[0], image[1], (image[2:] or [None])[0] or f"{spec['id']}#{index}")
        for index, image in enumerate(spec.get("images") or [])
    ]
    arrived = spec["arrival_step"] + ordinal * 1e-6
    return PlainRequest(spec, ordinal, list(prompt), images, arrived, num_groups)
