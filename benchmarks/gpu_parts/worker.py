# mypy: allow-untyped-calls
"""The worker itself on a random Llama: whole steps from plan to token ids, with and without recorded graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu_parts.bench import BF16, Bench, Row, check


def measure_worker(bench: Bench) -> None:
    """Decode steps as served; both ways must pick the same tokens, but for a near tie."""
    try:
        import transformers
    except ImportError:
        bench.add(Row("worker", note="left out: transformers is not installed"))
        return
    config = _config(transformers, bench)
    torch.manual_seed(5)
    with torch.device(bench.device):
        model = transformers.LlamaForCausalLM(config).to(BF16).eval()
    embedding = model.get_input_embeddings().weight  # of which a step reads a row per token
    weight_bytes = 2 * (sum(weight.numel() for weight in model.parameters()) - embedding.numel())
    decoder, cache = _decoder(bench, model)
    del model, embedding
    shape, context = bench.sizes.model, bench.sizes.model_context
    token_bytes = 2 * 2 * shape.layers * shape.kv_heads * shape.head_size
    for rows in bench.sizes.model_batches:
        eager_ms, eager_ids = _decode(bench, decoder, cache, rows, graphs=False)
        what = f"worker step, batch {rows}"
        num_bytes = weight_bytes + rows * context * token_bytes
        bench.moved(f"{what}, eager", eager_ms, num_bytes, "from plan to ids")
        graph_ms, graph_ids = _decode(bench, decoder, cache, rows, graphs=True)
        bench.moved(f"{what}, graph", graph_ms, num_bytes, f"{eager_ms / graph_ms:.1f} x eager")
        bench.reach(f"worker {rows}x{context}", num_bytes / graph_ms / 1e6 / bench.copy_gb_s)
        # Later tokens follow from these, so that one rounding that tips a near tie would count many times.
        error = float((eager_ids[1] != graph_ids[1]).mean())
        check(bench, f"{what}, share of other tokens", 0.05, partial(float, error))
    check(bench, "worker, kernels still in use", 0.0, lambda: float(not decoder.on_kernels))


def _config(transformers: Any, bench: Bench) -> Any:
    shape = bench.sizes.model
    return transformers.LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=2 * bench.sizes.model_context,
    )


def _decoder(bench: Bench, model: Any) -> tuple[Any, Any]:
    from schedtop.engine.runner.gpu.backend import make_kernel_decoder
    from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache

    shape = bench.sizes.model
    layout = CacheShape(shape.layers, 16, shape.kv_heads, shape.head_size, BF16)
    columns = -(-2 * bench.sizes.model_context // 16)
    cache = PagedCache(layout, max(bench.sizes.model_batches) * columns, bench.device)
    return make_kernel_decoder(model, cache, 2 * bench.sizes.model_context, None, print), cache


def _decode(bench: Bench, decoder: Any, cache: Any, rows: int, graphs: bool) -> tuple[float, np.ndarray]:
    """Median ms of a decode step, and the ids of every step, [steps, rows]; prompts are prefilled in one step."""
    from schedtop.engine.runner.gpu.graphs import CudaRecorder, DecodeGraphs
    from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler
    from schedtop.engine.runner.worker import ModelWorker

    context, steps = bench.sizes.model_context, 4 if bench.interpreted else 40
    recorder = (lambda run: run) if bench.interpreted else CudaRecorder()
    recorded = DecodeGraphs(
        decoder, recorder, max_model_len=2 * context, block_size=16, device=bench.device, tell=print
    )
    worker = ModelWorker(
        decoder,
        16,
        bench.device,
        graphs=recorded if graphs else None,
        sampler=KernelSampler(bench.device, print),
    )
    rng = np.random.default_rng(6)
    prompts = rng.integers(0, bench.sizes.model.vocab, (rows, context - steps), dtype=np.int32)
    times, ids = [], []
    for plan in _plans(prompts, steps, cache.num_blocks // rows):
        began = time.perf_counter()
        result = worker.execute(plan)
        times.append((time.perf_counter() - began) * 1000)
        ids.append(result.sampled[:, 0])
    # The first step is the prefill; the second compiles or records.
    return median(times[2:]), np.stack(ids)


def _plans(prompts: np.ndarray, steps: int, columns: int) -> Iterator[Any]:
    """A prefill and decodes of all rows at once, planned without the scheduler, which needs more than torch and NumPy.

    Every row has `columns` blocks of its own from the start.
    """
    from schedtop.engine.handoff.plan import Started, StepPlan
    from schedtop.engine.handoff.request import Request

    rows, length = prompts.shape
    numbers = np.arange(rows, dtype=np.int32)
    ones, zeros = np.ones(rows, dtype=np.int32), np.zeros(rows, dtype=np.int32)
    started = []
    for row in range(rows):
        request = Request(f"r{row}", prompts[row], steps, number=row)
        started.append(Started(row, request, list(range(row * columns, (row + 1) * columns)), False))
    for step in range(steps):
        yield StepPlan(
            ids=[entry.request.id for entry in started],
            numbers=numbers,
            tokens=ones if step else ones * length,
            drafts=zeros,
            computed=zeros + length + step - 1 if step else zeros,
            samples=np.ones(rows, dtype=bool),
            draft_token_ids=None,
            new_blocks={},
            started=[] if step else started,
            gone=[],
        )
