"""Recorded decode steps, with a recorder that replays eagerly: buckets, padding, and what happens when it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.runner.batch import HostBatch, InputBatch
from schedtop.engine.runner.gpu.graphs import (
    ROW_BUCKETS,
    DecodeGraphs,
    bucket,
    context_buckets,
)
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache
from schedtop.engine.runner.staging import TensorStaging

CPU = torch.device("cpu")
BLOCK_SIZE = 8
MODEL_LEN = 5000


class Echo:
    """Logits are what each row was given; a padding row must be one, in every place a kernel looks."""

    def __init__(self) -> None:
        self.attention: Any = None
        self.shapes: list[tuple[int, int]] = []

    def forward(self, batch: InputBatch) -> torch.Tensor:
        rows = batch.num_tokens
        self.shapes.append((rows, batch.block_table.shape[1]))
        assert batch.max_query_len == 1
        assert int(batch.seq_lens.max()) <= batch.max_seq_len
        assert torch.equal(batch.query_start_loc, torch.arange(rows + 1, dtype=torch.int32))
        assert torch.equal(batch.slot_mapping < 0, batch.seq_lens == 0)
        columns = -(-batch.seq_lens // BLOCK_SIZE)
        seen = torch.arange(batch.block_table.shape[1]) < columns[:, None]
        tables = (batch.block_table * seen * torch.arange(1, seen.shape[1] + 1)).sum(1)
        given = torch.stack([batch.token_ids, batch.positions, batch.slot_mapping, batch.seq_lens, tables], 1)
        assert batch.logit_tokens is not None
        return given.double()[batch.logit_tokens]

    def use_torch(self) -> None: ...


def decode(rng: np.random.Generator, rows: int, longest: int) -> HostBatch:
    lengths = rng.integers(1, longest + 1, rows).astype(np.int32)
    lengths[0] = longest
    ones = np.ones(rows, dtype=np.int32)
    return HostBatch(
        token_ids=rng.integers(0, 99, rows),
        positions=lengths.astype(np.int64) - 1,
        slot_mapping=rng.integers(0, 99, rows),
        query_start_loc=np.arange(rows + 1, dtype=np.int32),
        seq_lens=lengths,
        blocks=rng.integers(0, 99, (rows, -(-longest // BLOCK_SIZE))).astype(np.int32),
        logit_tokens=np.arange(rows),
        query_lens=ones,
        contexts=lengths - ones,
    )


def make_graphs(recorder: Any) -> tuple[DecodeGraphs, Echo, list[str]]:
    echo, reported = Echo(), []
    cache = PagedCache(CacheShape(1, BLOCK_SIZE, 1, 64, torch.float32), 1, CPU)
    guarded = GuardedDecoder(echo, cache, reported.append)
    graphs = DecodeGraphs(
        guarded, recorder, max_model_len=MODEL_LEN, block_size=BLOCK_SIZE, device=CPU, tell=reported.append
    )
    return graphs, echo, reported


def replay_eagerly(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return run


def test_padded_steps_equal_eager_ones() -> None:
    graphs, echo, reported = make_graphs(replay_eagerly)
    rng = np.random.default_rng(3)
    # Larger and smaller in turn, so that what an earlier step left behind would show.
    for rows, longest in ((7, 900), (5, 30), (8, 1024), (6, 1025), (5, 4999), (1, 3), (200, 70), (193, 9)):
        host = decode(rng, rows, longest)
        logits = graphs.run(host)
        assert logits is not None
        assert torch.equal(logits, echo.forward(host.to_device(TensorStaging(CPU))))
    assert graphs.num_graphs == 5
    assert not reported


def test_buckets() -> None:
    assert [bucket(size, ROW_BUCKETS) for size in (1, 3, 9, 256, 257)] == [1, 4, 16, 256, None]
    assert context_buckets(700) == [700]
    assert context_buckets(1024) == [1024]
    assert context_buckets(20000) == [1024, 4096, 16384, 20000]


def test_only_steps_of_single_tokens_are_recorded() -> None:
    graphs, _, _ = make_graphs(replay_eagerly)
    rng = np.random.default_rng(4)
    host = decode(rng, 3, 40)
    chunk = replace(host, token_ids=np.zeros(9, dtype=np.int64))
    unasked = replace(host, logit_tokens=np.arange(2))
    assert graphs.run(chunk) is None
    assert graphs.run(unasked) is None
    assert graphs.run(decode(rng, 257, 40)) is None
    assert graphs.run(decode(rng, 2, MODEL_LEN + 1)) is None
    assert graphs.num_graphs == 0


def test_a_failing_recorder_is_told_once() -> None:
    def refuse(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    graphs, _, reported = make_graphs(refuse)
    rng = np.random.default_rng(5)
    assert [graphs.run(decode(rng, rows, 40)) for rows in (2, 9)] == [None, None]
    assert len(reported) == 1
    assert "not permitted" in reported[0]
    assert "\n" not in reported[0]


def test_a_failing_kernel_leaves_the_kernels() -> None:
    graphs, echo, reported = make_graphs(replay_eagerly)

    def fail(batch: InputBatch) -> torch.Tensor:
        raise RuntimeError("no compiler")

    echo.forward = fail  # type: ignore[method-assign]
    assert [graphs.run(decode(np.random.default_rng(6), rows, 40)) for rows in (2, 9)] == [None, None]
    assert len(reported) == 1
    assert "no compiler" in reported[0]


def test_serves_what_transformers_generates(lab: Any) -> None:
    pytest.importorskip("triton")
    made = SimpleNamespace(graphs=None, replays=0)

    def recorder(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def replay() -> torch.Tensor:
            made.replays += 1
            return run()

        return replay

    def with_graphs(guarded: GuardedDecoder, config: Any) -> DecodeGraphs:
        made.graphs = DecodeGraphs(
            guarded, recorder, max_model_len=48, block_size=config.block_size, device=CPU, tell=print
        )
        return made.graphs

    name = "qwen3@kernels"
    prompts = lab.prompts(3, seed=31, low=3, high=8)
    served = lab.serve(name, "kernels", graphs=with_graphs)
    for prompt, max_tokens in zip(prompts, (4, 5, 6), strict=True):
        served.add(prompt, max_tokens)
    lab.check_greedy(name, prompts, served.run(), 4, 5, 6)
    assert made.graphs.num_graphs == 3
    assert made.replays == 5
