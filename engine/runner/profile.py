"""Where a step's time goes: the worker's parts, timed during a run. For a CPU, which runs them synchronously."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from schedtop.engine.runner.detokenize import Texts
from schedtop.engine.runner.models.attention import TorchAttention
from schedtop.engine.runner.models.fused import NativeAttention, NativeOperations, TorchOperations
from schedtop.engine.runner.models.linear import Linear, NativeLinear, PackedLinear
from schedtop.engine.runner.next_token import Picker
from schedtop.engine.runner.worker import ModelWorker

STEP = "whole step"
DRAFTS = "drafts"
REST = "Python and inputs"
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "linears": (
        *((kind, "__call__") for kind in (Linear, PackedLinear, NativeLinear)),
        (torch.nn.Linear, "forward"),
    ),
    "attention": ((TorchAttention, "__call__"), (NativeAttention, "__call__")),
    "norms, rotary, activation": tuple(
        (kind, name) for kind in (TorchOperations, NativeOperations) for name in ("add_norm", "rotate", "gate")
    ),
    "sampling": ((Picker, "pick"),),
    DRAFTS: ((ModelWorker, "_propose"),),
    "text": ((Texts, "extend"),),
    STEP: ((ModelWorker, "execute"),),
}


class Profile:
    """Seconds by part, and the number of steps. `device` says what ran them."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.device = ""
        self.steps = 0
        self.drafting = False

    def shares(self) -> dict[str, tuple[float, float]]:
        """Milliseconds per step and share of the step, for each part and for what is left of the step."""
        whole_s = self.seconds[STEP]
        parts = {name: spent_s for name, spent_s in self.seconds.items() if name != STEP}
        parts[REST] = whole_s - sum(parts.values())
        parts[STEP] = whole_s
        if not self.steps:
            return {}
        return {name: (1e3 * spent_s / self.steps, spent_s / whole_s) for name, spent_s in parts.items()}

    def as_text(self) -> str:
        """The device, then one line per part."""
        if not self.steps:
            return "no steps of a model on a CPU were run: nothing to profile"
        width = max(map(len, PARTS))
        parts = [f"{name:{width}} {ms:9.2f} ms {share:6.1%}" for name, (ms, share) in self.shares().items()]
        return "\n".join([f"{'device':{width}} {self.device}", *parts])


@contextmanager
def profiled() -> Iterator[Profile]:
    """Times every worker of this process until the block ends."""
    profile = Profile()
    with ExitStack() as stack:
        for part, places in PARTS.items():
            for owner, name in places:
                stack.enter_context(_timed(owner, name, part, profile))
        yield profile


@contextmanager
def _timed(owner: Any, name: str, part: str, profile: Profile) -> Iterator[None]:
    inner: Callable[..., Any] = owner.__dict__[name]

    def timed(*arguments: Any, **named: Any) -> Any:
        if profile.drafting:  # a draft model's own parts: all its time is that of the drafts
            return inner(*arguments, **named)
        profile.drafting = part == DRAFTS
        began_s = time.perf_counter()
        result = inner(*arguments, **named)
        profile.seconds[part] += time.perf_counter() - began_s
        if part == STEP:
            profile.steps += 1
            profile.device = getattr(arguments[0].info, "device", "")
        profile.drafting = False
        return result

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, inner)
