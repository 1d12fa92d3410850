"""Kernels until one fails, torch from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.errors import first_line
from schedtop.engine.runner.gpu.triton_attention import TritonAttention
from schedtop.engine.runner.models.attention import Attention
from schedtop.engine.runner.models.kv_cache import PagedCache
from schedtop.engine.runner.models.soft_capped_attention import torch_attention


class KernelRoute(Protocol):
    """A decoder whose layers run on kernels, and on torch after `use_torch`, with the same weights."""

    attention: Attention

    def forward(self, batch: InputBatch) -> torch.Tensor | None: ...

    def use_torch(self) -> None: ...


class GuardedDecoder:
    """A decoder on kernels. A failure to compile or launch is reported, and the step runs again on torch.

    Running again is safe: keys and values go to the same slots.
    """

    def __init__(
        self, inner: KernelRoute, cache: PagedCache, tell: Callable[[str], None], soft_cap: float | None = None
    ) -> None:
        self.inner = inner
        self._soft_cap = soft_cap
        self.on_kernels = True
        self._tell = tell
        self.use_cache(cache)

    def use_cache(self, cache: PagedCache) -> None:
        """Attend over `cache` from now on."""
        self.cache = cache
        if self.on_kernels:
            self.inner.attention = TritonAttention(cache, self._soft_cap)
        else:
            self.inner.attention = torch_attention(cache, self._soft_cap)

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none."""
        if self.on_kernels:
            try:
                return self.inner.forward(batch)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler's failure has no type of its own
                self.fall_back(error)
        return self.inner.forward(batch)

    def fall_back(self, error: Exception) -> None:
        """Leave the kernels, telling why."""
        self.on_kernels = False
        self._tell(f"a kernel failed ({first_line(error)}): running on torch, which is slower")
        self.inner.use_torch()
        self.use_cache(self.cache)
