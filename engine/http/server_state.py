"""The state of the running server that every route needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from schedtop.engine.contract.telemetry import Header
from schedtop.engine.handoff.request import TokenIds
from schedtop.engine.http.errors import ApiError, busy
from schedtop.engine.http.link import EngineLink
from schedtop.engine.http.text import Texts


@dataclass(slots=True)
class HttpCounts:
    """What the HTTP side counts beside the engine's records."""

    queue_rejections: int = 0
    slow_readers: int = 0


@dataclass(slots=True)
class ServerState:
    """The engine at the other end of `link`, and how its model is called. `draining`: nothing new is taken."""

    link: EngineLink
    header: Header
    texts: Texts
    names: Sequence[str]
    max_num_queued_reqs: int | None = None
    draining: bool = False
    counts: HttpCounts = field(default_factory=HttpCounts)
    created: int = field(default_factory=lambda: int(time.time()))
    _preparing: set[object] = field(default_factory=set)

    @property
    def max_model_len(self) -> int:
        return self.header.max_model_len

    @property
    def vocab_size(self) -> int:
        return int(self.header.settings.get("vocab_size") or 1 << 31)

    @property
    def adapters(self) -> Sequence[str]:
        """LoRA adapters; each is a model to clients, as in vLLM."""
        names: Sequence[str] = self.header.settings.get("lora", ())
        return names

    def adapter(self, model: str | None) -> str:
        """The adapter that clients call `model`; empty for none."""
        return model if model is not None and model in self.adapters else ""

    @property
    def has_logits(self) -> bool:
        """Whether a model runs."""
        return not self.header.simulated_clock

    @property
    def advice(self) -> Mapping[str, Any]:
        """The sampling defaults from the model's files."""
        advice: Mapping[str, Any] = self.header.settings.get("sampling", {})
        return advice

    @property
    def healthy(self) -> bool:
        """The engine is up and accepts requests."""
        return self.link.ended is None and not self.draining

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` for a model that is not served."""
        served = (*self.names, *self.adapters)
        if name is not None and name not in served:
            raise ApiError(404, f"there is no model {name[:200]!r} here: {', '.join(served)}", "model")

    def check_ids(self, ids: list[int]) -> TokenIds:
        """Token ids as an array. Raises `ApiError` if the model has not all of them."""
        vocab_size = self.vocab_size
        bad = next((token_id for token_id in ids if token_id >= vocab_size), None)
        if bad is not None:
            raise ApiError(400, f"token id {bad} is not among the model's {vocab_size}", "prompt")
        return np.array(ids, dtype=np.int32)

    @contextmanager
    def admission(self) -> Iterator[Callable[[], None]]:
        """A request on its way into the queue; to be called when it is there, lest it counts twice.

        Raises `ApiError` if the queue is full, or nothing is taken any more.
        """
        if not self.healthy:
            raise busy(self.link.ended or "the server is ending and takes no new requests")
        most = self.max_num_queued_reqs
        if most is not None and self.link.num_queued + len(self._preparing) >= most:
            self.counts.queue_rejections += 1
            raise busy(f"{most} requests wait already (--max-num-queued-reqs)")
        request = object()
        self._preparing.add(request)
        try:
            yield lambda: self._preparing.discard(request)
        finally:
            self._preparing.discard(request)
