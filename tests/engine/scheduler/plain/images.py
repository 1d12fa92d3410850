"""Images of the plain scheduler: the encoder's budget of a step, and the cache of what it encoded."""

from __future__ import annotations

from typing import Any

from tests.engine.scheduler.plain.request import Image, PlainRequest

Ref = tuple[PlainRequest, int]


class PlainImages:
    """`refs` maps names in the cache to who refers to them; `idle` are the unreferenced, longest first."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.on = config.get("encoder_budget") is not None
        self.budget = config.get("encoder_budget") or 0
        self.size = config.get("encoder_cache") or self.budget
        self.whole = bool(config.get("disable_chunked_mm_input"))
        self.ahead = config.get("prefill_lookahead") or 0
        self.lengths: dict[str, int] = {}
        self.refs: dict[str, set[Ref]] = {}
        self.idle: list[str] = []
        self.dropped: list[str] = []
        self.left = 0

    def begin_step(self) -> None:
        self.left, self.dropped = self.budget, []

    def fit(self, request: PlainRequest, computed: int, n: int) -> tuple[int, list[int], list[Ref]]:
        """How many of `n` tokens can go, which images they need encoded, and which references were taken now."""
        encode: list[int] = []
        taken: list[Ref] = []
        ahead, left = self.ahead, self.left
        for index, image in enumerate(request.images):
            if image.offset >= computed + n + ahead:
                break
            if image.offset + image.length <= computed:
                continue
            inside = computed < image.offset and computed + n < image.offset + image.length
            if self.whole and inside:
                return max(0, image.offset - computed - ahead), encode, taken
            if image.name in self.refs:
                if (request, index) not in self.refs[image.name]:
                    self.refer(request, index)
                    taken.append((request, index))
                continue
            chosen = [request.images[one] for one in encode]
            if image.name in (one.name for one in chosen):
                encode.append(index)
                continue
            lengths = {one.name: one.length for one in chosen}
            if image.length > left or not self.make_room(image.length + sum(lengths.values())):
                return max(0, image.offset - computed - ahead), encode, taken
            left -= image.length
            encode.append(index)
        return n, encode, taken

    def make_room(self, length: int) -> bool:
        idle = sum(self.lengths[name] for name in self.idle)
        free = self.size - sum(self.lengths.values())
        if length > free + idle:
            return False
        while length > free:
            name = self.idle.pop(0)
            free += self.lengths.pop(name)
            del self.refs[name]
            self.dropped.append(name)
        return True

    def refer(self, request: PlainRequest, index: int) -> None:
        name = request.images[index].name
        if name in self.idle:
            self.idle.remove(name)
        self.refs[name].add((request, index))

    def unrefer(self, request: PlainRequest, index: int) -> None:
        name = request.images[index].name
        refs = self.refs.get(name, set())
        if (request, index) in refs:
            refs.remove((request, index))
            if not refs:
                self.idle.append(name)

    def encode(self, request: PlainRequest, indices: list[int]) -> list[int]:
        """Charge the step for images; returns the indices that are really encoded, not only referred to."""
        encoded = []
        for index in indices:
            image = request.images[index]
            if image.name not in self.refs:
                self.refs[image.name], self.lengths[image.name] = set(), image.length
                self.left -= image.length
                encoded.append(index)
                if image.name in self.dropped:
                    self.dropped.remove(image.name)
            self.refer(request, index)
        return encoded

    def leave(self, request: PlainRequest) -> None:
        for index in range(len(request.images)):
            self.unrefer(request, index)

    def advance(self, request: PlainRequest) -> None:
        """After its update: images wholly behind what is computed are no longer needed."""
        for index, image in enumerate(request.images):
            if self.behind(image, request.computed - request.placeholders):
                self.unrefer(request, index)

    def behind(self, image: Image, computed: int) -> bool:
        return image.offset + image.length + self.ahead <= computed
