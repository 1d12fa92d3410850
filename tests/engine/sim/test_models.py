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
}


def test_every_model_has_a_published_figure() -> None:
    assert set(MODELS) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_shape_gives_the_published_figures(name: str) -> None:
    assert (MODELS[name].params, MODELS[name].kv_bytes_per_token) == PUBLISHED[name]


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
