"""Decode steps replayed from recorded graphs: one launch instead of hundreds.

A graph holds for a number of rows and a length of context; smaller batches are padded up to it. It reads inputs at
fixed addresses, which one copy per step fills, and is recorded when a step first needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from schedtop.engine.runner.batch import Decoder, HostBatch, InputBatch
from schedtop.engine.runner.errors import first_line
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder
from schedtop.engine.runner.staging import StaticInputs

ROW_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
SHORTEST_CONTEXT = 1024
CONTEXT_STEP = 4
"""Each context bucket is this many times the one before. It bounds the table to copy and how far keys are split."""

Replay = Callable[[], torch.Tensor]


class GraphRecorder(Protocol):
    """Records what `run` does on the device; what it returns does that again and gives the same tensor."""

    def __call__(self, run: Replay) -> Replay: ...


class CudaRecorder:
    """Records CUDA graphs. They share one memory pool: no two of them run at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Replay) -> Replay:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = run()
        self._pool = self._pool or graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph and the inputs it reads."""

    inputs: StaticInputs
    replay: Replay


class DecodeGraphs:
    """Runs batches of single tokens. A graph that cannot be recorded is reported once: steps run eagerly after that."""

    def __init__(
        self,
        decoder: GuardedDecoder,
        recorder: GraphRecorder,
        *,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        tell: Callable[[str], None],
    ) -> None:
        self._decoder = decoder
        self._recorder = recorder
        self._contexts = context_buckets(max_model_len)
        self._block_size = block_size
        self._device = device
        self._tell = tell
        self._failed = False
        self._graphs: dict[tuple[int, int], Recorded] = {}

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, host: HostBatch) -> torch.Tensor | None:
        """Logits [R, vocab], overwritten by the next step; None for a step that has to run eagerly."""
        if self._failed or not is_decode(host) or not self._decoder.on_kernels:
            return None
        rows = bucket(len(host.seq_lens), ROW_BUCKETS)
        context = bucket(int(host.seq_lens.max()), self._contexts)
        if rows is None or context is None:
            return None
        graph = self._graphs.get((rows, context)) or self._record(rows, context)
        if graph is None:
            return None
        fill(graph.inputs, host)
        return graph.replay()[: len(host.seq_lens)]

    def _record(self, rows: int, context: int) -> Recorded | None:
        inputs = StaticInputs(padding(rows, -(-context // self._block_size)), self._device)
        batch = static_batch(inputs, rows, context)
        run = partial(logits_of, self._decoder.inner, batch)
        try:
            # Kernels compile and libraries take their workspaces before the recording, which allows neither.
            run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Not through the guard: the torch route has no such thing as a padding token.
            self._decoder.fall_back(error)
            return None
        try:
            replay = self._recorder(run)
        except Exception as error:
            self._failed = True
            self._graphs.clear()
            self._tell(f"a CUDA graph could not be recorded ({first_line(error)}): decode steps run without")
            return None
        recorded = self._graphs[rows, context] = Recorded(inputs, replay)
        return recorded


def logits_of(decoder: Decoder, batch: InputBatch) -> torch.Tensor:
    """The logits of a batch that asks for some."""
    logits = decoder.forward(batch)
    assert logits is not None
    return logits


def is_decode(host: HostBatch) -> bool:
    """Whether every row has one token and wants its logits."""
    rows = len(host.seq_lens)
    return len(host.token_ids) == rows == len(host.logit_tokens)


def bucket(size: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `size`; None if none does."""
    return next((limit for limit in buckets if size <= limit), None)


def context_buckets(max_model_len: int) -> list[int]:
    """Context lengths to record for, the last one `max_model_len`."""
    lengths = []
    length = SHORTEST_CONTEXT
    while length < max_model_len:
        lengths.append(length)
        length *= CONTEXT_STEP
    return [*lengths, max_model_len]


def padding(rows: int, columns: int) -> list[np.ndarray[Any, Any]]:
    """Inputs of nothing but padding: token ids, positions, slots (none), lengths (0) and block table."""
    long = np.zeros(rows, dtype=np.int64)
    short = np.zeros(rows, dtype=np.int32)
    return [long, long, np.full(rows, -1, dtype=np.int64), short, np.zeros((rows, columns), dtype=np.int32)]


def fill(inputs: StaticInputs, host: HostBatch) -> None:
    """Put a batch into a graph's inputs, padding behind it."""
    rows = len(host.seq_lens)
    token_ids, positions, slots, lengths, blocks = inputs.arrays
    inputs.wait()
    token_ids[:rows] = host.token_ids
    positions[:rows] = host.positions
    slots[:rows] = host.slot_mapping
    slots[rows:] = -1
    lengths[:rows] = host.seq_lens
    lengths[rows:] = 0
    blocks[:rows, : host.blocks.shape[1]] = host.blocks
    inputs.send()


def static_batch(inputs: StaticInputs, rows: int, context: int) -> InputBatch:
    """A graph's inputs as the batch its decoder sees; what it says of lengths on the host is their upper bound."""
    token_ids, positions, slots, lengths, blocks = inputs.tensors
    device = token_ids.device
    return InputBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots,
        query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=device),
        seq_lens=lengths,
        block_table=blocks,
        logit_tokens=torch.arange(rows, device=device),
        query_lens=np.ones(rows, dtype=np.int32),
        contexts=np.full(rows, context - 1, dtype=np.int32),
        blocks=inputs.arrays[4],
    )
