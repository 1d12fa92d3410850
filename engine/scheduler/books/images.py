"""Images: the encoder budget of a step, a third one beside tokens and rows, and the cache of encoded images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.handoff.request import Image, Request

Reference = tuple[int, int]
"""A request's number and the index of its image."""


@dataclass(slots=True)
class Fitting:
    """What the chunk of a request being planned needs: images to encode, and references taken for it."""

    request: Request
    encode: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


class Encoder:
    """Every image that a request still needs holds a reference; unreferenced ones are evicted when room is needed,
    the longest-unreferenced first.

    `left` tokens of the step's budget; `encoded` maps numbers to images that the step encodes, `dropped` are names
    that left the cache; `missing` is the image that had no room in the last fitting.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.budget = config.encoder_budget or 0
        self.size = self.budget if config.encoder_cache is None else config.encoder_cache
        self.whole_only = config.disable_chunked_mm_input
        self.ahead = config.prefill_lookahead
        self.left = self.budget
        self.encoded: dict[int, list[int]] = {}
        self.dropped: list[str] = []
        self.missing: Image | None = None
        self._lengths: dict[str, int] = {}
        self._references: dict[str, set[Reference]] = {}
        self._idle: dict[str, None] = {}
        self._holders: set[int] = set()
        self._fitting: Fitting | None = None

    @property
    def is_holding(self) -> bool:
        """Whether a request still refers to an image."""
        return bool(self._holders)

    def begin_step(self) -> None:
        self.left = self.budget
        self.encoded, self.dropped = {}, []

    def fit(self, request: Request, start: int, chunk: int) -> int:
        """How many of the `chunk` tokens from `start` on can be computed; follow with `charge` or `give_back`."""
        self.charge()
        fitting = self._fitting = Fitting(request)
        self.missing = None
        needed: dict[str, int] = {}
        for index, image in enumerate(request.images):
            if image.offset >= start + chunk + self.ahead:
                break
            if image.end <= start:
                continue
            before = max(image.offset - start - self.ahead, 0)
            if self.whole_only and start < image.offset and start + chunk < image.end:
                return before
            if image.name in self._references:
                if self._refer(request, index):
                    fitting.taken.append(index)
            elif image.name in needed:
                fitting.encode.append(index)
            elif image.length + sum(needed.values()) <= self.left and self._make_room(image, needed):
                needed[image.name] = image.length
                fitting.encode.append(index)
            else:
                self.missing = image
                return before
        return chunk

    def _make_room(self, image: Image, needed: dict[str, int]) -> bool:
        """Whether the cache has room for the image beside the others of its chunk; evicts unreferenced images for
        it."""
        want = image.length + sum(needed.values())
        free = self.size - sum(self._lengths.values())
        if want > free + sum(self._lengths[name] for name in self._idle):
            return False
        while want > free:
            name = next(iter(self._idle))
            del self._idle[name], self._references[name]
            free += self._lengths.pop(name)
            self.dropped.append(name)
        return True

    def charge(self) -> None:
        """The chunk fitted last is scheduled: its images are encoded."""
        fitting, self._fitting = self._fitting, None
        if fitting is None:
            return
        for index in fitting.encode:
            image = fitting.request.images[index]
            if image.name not in self._references:
                self._references[image.name], self._lengths[image.name] = set(), image.length
                self.left -= image.length
                self.encoded.setdefault(fitting.request.number, []).append(index)
                if image.name in self.dropped:
                    self.dropped.remove(image.name)
            self._refer(fitting.request, index)

    def give_back(self) -> None:
        """The chunk fitted last is not scheduled, and its request does not run."""
        fitting, self._fitting = self._fitting, None
        if fitting is not None:
            for index in fitting.taken:
                self._unrefer(fitting.request, index)

    def _refer(self, request: Request, index: int) -> bool:
        """Refer to an image in the cache; False if the request already does."""
        name, reference = request.images[index].name, (request.number, index)
        if reference in self._references[name]:
            return False
        self._idle.pop(name, None)
        self._references[name].add(reference)
        self._holders.add(request.number)
        return True

    def _unrefer(self, request: Request, index: int) -> None:
        name, reference = request.images[index].name, (request.number, index)
        references = self._references.get(name)
        if references and reference in references:
            references.remove(reference)
            if not references:
                self._idle[name] = None

    def leave(self, request: Request) -> None:
        """A request ends or is preempted: its images are not encoded in this step."""
        if self._fitting is not None and self._fitting.request is request:
            self._fitting = None
        if request.number not in self._holders:
            return
        for index in range(len(request.images)):
            self._unrefer(request, index)
        self._holders.discard(request.number)

    def drop_plan(self, request: Request) -> None:
        """A request that the step had planned is preempted: its share of the budget is free again."""
        self.left += sum(request.images[index].length for index in self.encoded.pop(request.number, ()))

    def settle(self, computed: Iterable[tuple[Request, int, bool]]) -> None:
        """After a step: of each request in it, the tokens computed for certain, and whether it ends."""
        for request, num_computed, ends in computed:
            if request.number not in self._holders:
                continue
            if ends:
                self.leave(request)
                continue
            for index, image in enumerate(request.images):
                if image.end + self.ahead <= num_computed:
                    self._unrefer(request, index)
            if request.images[-1].end + self.ahead <= num_computed:
                self._holders.discard(request.number)


def open_encoder(config: SchedulerConfig) -> Encoder | None:
    """None where there is no encoder."""
    return None if config.encoder_budget is None else Encoder(config)
