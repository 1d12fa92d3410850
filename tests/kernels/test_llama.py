"""A small Llama on the kernels equals transformers token for token, whatever the chunks and the batch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("seeded")

BLOCK_SIZE = 8


def load_benchmark() -> Any:
    """The benchmark holds the compact model; it is a script, not a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
        return importlib.import_module("gpu_parts.llama")


gpu = load_benchmark()


def tiny_llama(device: Any) -> tuple[Any, Any]:
    """The same random weights as a transformers model and as one on the kernels."""
    config = transformers.LlamaConfig(
        vocab_size=151,
        hidden_size=96,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    theirs = transformers.LlamaForCausalLM(config).eval().to(device)
    weights = theirs.state_dict()

    def joined(layer: str, *names: str) -> Any:
        return torch.cat([weights[f"{layer}.{name}_proj.weight"] for name in names])

    layers = []
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        layers.append(
            gpu.Layer(
                weights[f"{layer}.input_layernorm.weight"],
                joined(f"{layer}.self_attn", "q", "k", "v"),
                weights[f"{layer}.self_attn.o_proj.weight"],
                weights[f"{layer}.post_attention_layernorm.weight"],
                joined(f"{layer}.mlp", "gate", "up"),
                weights[f"{layer}.mlp.down_proj.weight"],
            )
        )
    from schedtop.kernels.rotary import cos_sin_table

    shape = gpu.LlamaShape(2, 96, 3, 1, 64, 80, 151, eps=config.rms_norm_eps)
    table = cos_sin_table(theirs.model.rotary_emb.inv_freq, 128)
    norm, head = weights["model.norm.weight"], weights["lm_head.weight"]
    return theirs, gpu.Llama(shape, weights["model.embed_tokens.weight"], layers, norm, head, table)


def make_step(rows: list[tuple[list[int], int]], tables: Any, device: Any) -> Any:
    """Rows are (new tokens, tokens computed before)."""
    tokens, positions, slots, starts, lengths = [], [], [], [0], []
    for row, (new, computed) in enumerate(rows):
        places = range(computed, computed + len(new))
        tokens += new
        positions += places
        slots += [int(tables[row, place // BLOCK_SIZE]) * BLOCK_SIZE + place % BLOCK_SIZE for place in places]
        starts.append(starts[-1] + len(new))
        lengths.append(computed + len(new))

    def tensor(values: list[int], dtype: Any = torch.int64) -> Any:
        return torch.tensor(values, dtype=dtype, device=device)

    return gpu.Step(
        tensor(tokens),
        tensor(positions),
        tensor(slots),
        tables[: len(rows)],
        tensor(starts, torch.int32),
        tensor(lengths, torch.int32),
        tensor([start - 1 for start in starts[1:]]),
        max(len(new) for new, _ in rows),
        max(lengths),
    )


@torch.inference_mode()
def test_tiny_llama_equals_transformers(device: Any) -> None:
    theirs, ours = tiny_llama(device)
    prompts = [torch.randint(0, 151, (length,)).tolist() for length in (29, 3, 16)]
    tables = torch.randperm(3 * 8, device=device).view(3, 8).int()
    caches = [gpu.Pool(*torch.full((2, 24, BLOCK_SIZE, 1, 64), float("nan"), device=device)) for _ in range(2)]
    sequences, computed = [list(prompt) for prompt in prompts], [0, 0, 0]
    # The first prompt takes three chunks while the others already decode.
    for _ in range(5):
        rows = [(sequence[done : done + 11], done) for sequence, done in zip(sequences, computed, strict=True)]
        logits = ours.logits(make_step(rows, tables, device), caches)
        for row, (new, done) in enumerate(rows):
            computed[row] = done + len(new)
            if computed[row] < len(sequences[row]):
                continue
            expected = theirs(torch.tensor([sequences[row]], device=device)).logits[0, -1]
            assert torch.allclose(logits[row], expected, rtol=1e-3, atol=1e-4)
            assert int(logits[row].argmax()) == int(expected.argmax())
            sequences[row].append(int(expected.argmax()))
    assert [len(sequence) - len(prompt) for sequence, prompt in zip(sequences, prompts, strict=True)] == [3, 5, 4]
