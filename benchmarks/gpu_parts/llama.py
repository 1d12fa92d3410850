# mypy: allow-untyped-calls
"""A whole decoder of the Llama family out of kernels and torch's matrix products, eagerly and as a graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_parts.bench import (
    BF16,
    BOUNDS,
    Bench,
    LlamaShape,
    captured,
    check,
    median_ms,
    relative_error,
    wall_ms,
)
from gpu_parts.inputs import Pool, sampling_params


@dataclass
class Layer:
    """Weights of a layer; projections that read the same input are one matrix."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass
class Step:
    """A step's inputs: one entry per token, or per row for the last four tensors."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    logit_rows: torch.Tensor
    max_query_len: int
    max_seq_len: int


@dataclass
class Llama:
    """A Llama-family decoder out of this project's kernels and torch's matrix products."""

    shape: LlamaShape
    embedding: torch.Tensor
    layers: list[Layer]
    final_norm: torch.Tensor
    head: torch.Tensor
    cos_sin: torch.Tensor

    def logits(self, step: Step, caches: Sequence[Pool]) -> torch.Tensor:
        """Logits of the tokens at `logit_rows`; writes the step's keys and values to the caches."""
        from schedtop.kernels.activation import silu_mul
        from schedtop.kernels.norm import rms_norm

        shape = self.shape
        residual = F.embedding(step.tokens, self.embedding)
        hidden = rms_norm(residual, self.layers[0].input_norm, shape.eps)
        for index, layer in enumerate(self.layers):
            attended = self.attend(hidden, layer, step, caches[index])
            hidden = rms_norm(attended, layer.mlp_norm, shape.eps, residual=residual)
            gate, up = F.linear(hidden, layer.gate_up).chunk(2, dim=-1)
            mixed = F.linear(silu_mul(gate, up), layer.down)
            last = index + 1 == len(self.layers)
            norm = self.final_norm if last else self.layers[index + 1].input_norm
            hidden = rms_norm(mixed, norm, shape.eps, residual=residual)
        return F.linear(hidden[step.logit_rows], self.head)

    def attend(self, hidden: torch.Tensor, layer: Layer, step: Step, cache: Pool) -> torch.Tensor:
        from schedtop.kernels.kv_write import kv_write
        from schedtop.kernels.paged_attention import paged_attention
        from schedtop.kernels.rotary import rotary

        shape = self.shape
        heads = F.linear(hidden, layer.qkv).unflatten(1, (-1, shape.head_size))
        query, key, value = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        rotary(query, key, step.positions, self.cos_sin)
        kv_write(key, value, cache.k_cache, cache.v_cache, step.slot_mapping)
        out = paged_attention(
            query,
            cache.k_cache,
            cache.v_cache,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            max_query_len=step.max_query_len,
            max_seq_len=step.max_seq_len,
            scale=shape.head_size**-0.5,
        )
        return F.linear(out.flatten(1), layer.attention_out)

    def num_bytes(self) -> int:
        """Bytes of weights a step reads; the embedding is read a row per token, unless it is the head."""
        tensors = [self.head, self.final_norm]
        tensors += itertools.chain.from_iterable(vars(layer).values() for layer in self.layers)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def random_llama(shape: LlamaShape, dtype: torch.dtype, device: torch.device, max_positions: int) -> Llama:
    from schedtop.kernels.rotary import cos_sin_table

    def weight(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device=device).normal_(std=0.02)

    ones = torch.ones(shape.hidden, dtype=dtype, device=device)
    query_size = shape.heads * shape.head_size
    qkv_size = query_size + 2 * shape.kv_heads * shape.head_size
    layers = [
        Layer(
            ones,
            weight(qkv_size, shape.hidden),
            weight(shape.hidden, query_size),
            ones,
            weight(2 * shape.intermediate, shape.hidden),
            weight(shape.hidden, shape.intermediate),
        )
        for _ in range(shape.layers)
    ]
    exponents = torch.arange(0, shape.head_size, 2, device=device) / shape.head_size
    embedding = weight(shape.vocab, shape.hidden)
    table = cos_sin_table(shape.rope_theta**-exponents, max_positions)
    return Llama(shape, embedding, layers, ones, embedding, table)


def decode_step(shape: LlamaShape, rows: int, context: int, device: torch.device, block_size: int) -> Step:
    """One new token per row at the end of `context` tokens, each row on blocks of its own."""
    per_row = -(-context // block_size)
    integers: dict[str, Any] = {"dtype": torch.int32, "device": device}
    table = torch.randperm(rows * per_row, device=device).view(rows, per_row).int()
    last = context - 1
    slots = table[:, last // block_size].long() * block_size + last % block_size
    return Step(
        tokens=torch.randint(0, shape.vocab, (rows,), device=device),
        positions=torch.full((rows,), last, device=device),
        slot_mapping=slots,
        block_table=table,
        query_start_loc=torch.arange(rows + 1, **integers),
        seq_lens=torch.full((rows,), context, **integers),
        logit_rows=torch.arange(rows, device=device),
        max_query_len=1,
        max_seq_len=context,
    )


def measure_model(bench: Bench) -> None:
    """A decode step with greedy sampling: from the host call by call, and replayed as a graph."""
    from schedtop.kernels.sampling import sample

    shape, context = bench.sizes.model, bench.sizes.model_context
    model = random_llama(shape, BF16, bench.device, context)
    kv_token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * 2
    for rows in bench.sizes.model_batches:
        step = decode_step(shape, rows, context, bench.device, 16)
        blocks = step.block_table.numel()
        caches = [
            Pool.random(blocks * 16, shape.kv_heads, shape.head_size, BF16, bench.device, 16)
            for _ in range(shape.layers)
        ]
        params = sampling_params(rows, bench.device, mixed=False)
        kept: dict[str, torch.Tensor] = {}

        def run(step: Step = step, caches: Any = caches, params: Any = params, kept: Any = kept) -> None:
            kept["logits"] = model.logits(step, caches)
            sample(kept["logits"], params)

        run()
        expected = kept["logits"].clone()
        eager_ms = wall_ms(bench, run)
        num_bytes = model.num_bytes() + rows * context * kv_token_bytes
        what = f"model step, batch {rows}, context {context}"
        bench.moved(f"{what}, eager", eager_ms, num_bytes, "from the host")
        if bench.interpreted:
            continue
        graph_ms = median_ms(bench, [run])
        bench.moved(f"{what}, graph", graph_ms, num_bytes, f"{eager_ms / graph_ms:.1f} x eager")
        # `kept` now holds what the graph writes.
        graph = captured([run])
        kept["logits"].fill_(float("nan"))
        graph.replay()
        error = relative_error(kept["logits"], expected)
        check(bench, f"{what}, graph equals eager", BOUNDS[BF16], partial(float, error))
