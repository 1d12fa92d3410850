"""Shapes against published parameter counts and cache sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.sim.models import MODELS, find_model

PUBLISHED = {
    "llama-3.1-8b": (8_030_261_248, 131_072),
    "llama-3.1-70b": (70_553_706_496, 327_680),
    "qwen3-8b": (8_190_735_360, 147_456),
    "qwen3-30b-a3b": (30_532_122_624, 98_304),
    "smollm2-135m": (134_515_008, 23_040),
    "llama-2-7b": (6_738_415_616, 524_288),
    "llama-2-70b": (68_976_648_192, 327_680),
    "gemma-3-4b": (3_880_263_168, 139_264),
    "gemma-3-12b": (11_766_034_176, 393_216),
    "gemma-3-27b": (27_009_346_304, 507_904),
    "gpt-oss-20b": (20_914_757_184, 49_152),
    "gpt-oss-120b": (116_829_156_672, 73_728),
}

BIASES = {"gpt-oss-20b": 6_829_824, "gpt-oss-120b": 40_108_032}
"""Left out of the shapes: attention's, the experts' and the routers', and attention sinks."""


def test_every_model_has_a_published_figure() -> None:
    assert set(MODELS) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_shape_gives_the_published_figures(name: str) -> None:
    model = MODELS[name]
    assert (model.params + BIASES.get(name, 0), model.kv_bytes_per_token) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "layers", "groups"),
    [
        ("llama-3.1-8b", 32, ("full",)),
        ("gpt-oss-20b", 12, (128, "full")),
        ("gemma-3-12b", 8, (*[1024] * 5, "full")),
        ("gemma-3-27b", 10, (*[1024] * 6, "full")),
    ],
)
def test_layers_that_keep_state_alike_form_groups(name: str, layers: int, groups: tuple[int | str, ...]) -> None:
    """As vLLM divides them: 52 windowed layers beside 10 others are six groups, the last one not quite full."""
    assert (MODELS[name].group_layers, MODELS[name].kv_groups) == (layers, groups)


def test_mixture_activates_a_tenth_of_its_weights() -> None:
    model = MODELS["qwen3-30b-a3b"]
    active = model.active_layers_params + 2 * model.embedding_params
    assert active == pytest.approx(3.35e9, rel=0.01)


@given(tokens=st.integers(1, 5000))
def test_distinct_experts_lie_between_one_tokens_and_all(tokens: int) -> None:
    model = MODELS["qwen3-30b-a3b"]
    reached = model.distinct_experts(tokens)
    assert model.active_experts <= reached + 1e-9
    assert reached <= min(model.experts, tokens * model.active_experts) + 1e-9


def test_fp8_halves_the_layers_and_leaves_the_ends() -> None:
    whole, half = MODELS["llama-3.1-8b"], find_model("llama-3.1-8b-fp8")
    assert half is not None
    assert half.params == whole.params
    assert whole.weight_bytes - half.weight_bytes == whole.layers_params


def test_stages_hold_all_layers_between_them() -> None:
    for model in MODELS.values():
        assert model.stage_weight_bytes(1) >= model.weight_bytes - 2 * model.hidden
        assert 4 * model.stage_weight_bytes(4) >= model.weight_bytes - 2 * model.hidden


def test_unknown_model_is_none() -> None:
    assert find_model("gpt-5") is None
    assert find_model("-fp8") is None
