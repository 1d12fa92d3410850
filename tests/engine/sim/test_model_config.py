"""Shapes read from `config.json`, against published parameter counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.devices import GPUS, read_gpu
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.memory import PoolSettings
from schedtop.engine.sim.model_config import read_shape, shape_of
from schedtop.engine.sim.models import MODELS
from schedtop.engine.sim.roofline import Roofline
from schedtop.engine.sim.spec import parse_device

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
GEMMA2_2B = {
    "model_type": "gemma2",
    "num_hidden_layers": 26,
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 9216,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
}
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "sliding_window": 1024,
    },
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "fp8"},
}
MISTRAL_7B = {
    **LLAMA_8B,
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
MIXTRAL_8X7B = {
    **MISTRAL_7B,
    "model_type": "mixtral",
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN2_7B = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
LLAMA4_MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
        "vocab_size": 202048,
        "max_position_embeddings": 1048576,
    },
}
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 21504,
        "sliding_window": 1024,
    },
}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "quantization_config": None,
}
NEOX_20B = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 44,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
}
PYTHIA_7B = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 16384,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
}


def _compressed(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (LLAMA_8B, 8.03),
        (GEMMA2_2B, 2.61),
        (GEMMA3_4B, 3.88),
        (GPT_OSS_20B, 20.9),
        (DEEPSEEK_V3, 671),
        (PYTHIA_7B, 6.86),
        (NEOX_20B, 20.55),
        (MISTRAL_7B, 7.24),
        (MIXTRAL_8X7B, 46.7),
        (QWEN2_7B, 7.615),
        (QWEN3_235B, 235.1),
        (LLAMA4_MAVERICK, 400.7),
        (GEMMA3_27B, 27.0),
        (DEEPSEEK_V2_LITE, 15.7),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_are_the_published_ones(config: dict[str, Any], billions: float) -> None:
    assert shape_of(config, "it").params / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("config", [LLAMA_8B, MIXTRAL_8X7B, NEOX_20B])
def test_any_model_is_divided_as_the_built_in_ones(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    device = parse_device(f"sim:{tmp_path}@mi300x")
    step = StepFeatures(64, 0, 64_000, 64)
    assert device.step_cost(8).step_s(step) < device.step_cost(4, 2).step_s(step)
    weights, budget = shape_of(config, "it").weight_bytes, 8 * 192e9 * 0.9
    for ranks, stages in ((8, 1), (4, 2)):
        pool = PoolSettings(tensor_parallel_size=ranks, pipeline_parallel_size=stages)
        stored = device.num_blocks(pool) * 16 * device.kv_bytes_per_token
        assert 0.85 * (budget - weights) < stored < budget - weights


def test_a_known_model_is_read_as_it_is_built_in() -> None:
    assert shape_of(LLAMA_8B, "llama-3.1-8b") == MODELS["llama-3.1-8b"]


def test_windows_experts_latent_state_and_quantised_weights() -> None:
    gemma, oss, deepseek = shape_of(GEMMA3_4B, "g"), shape_of(GPT_OSS_20B, "o"), shape_of(DEEPSEEK_V3, "d")
    assert (gemma.window, gemma.windowed_layers) == (1024, 29)  # every sixth of 34 layers is full
    assert (oss.window, oss.windowed_layers, oss.active_experts) == (128, 12, 4)
    assert oss.weight_bytes == pytest.approx(12.5e9, rel=0.1)  # as published: some 13 GB
    assert deepseek.kv_bytes_per_token == 61 * 576 * 2
    assert deepseek.weight_bytes == pytest.approx(672e9, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        ({"quant_method": "awq", "bits": 4}, 4.125),  # a scale of 16 bits for each 128 weights
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 4.5),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        (_compressed(num_bits=4, type="int", group_size=128), 4.125),
        (_compressed(num_bits=4, type="float", group_size=16), 4.5),
        (_compressed(num_bits=8, type="float", group_size=None), 8),
    ],
)
def test_quantised_weights_take_their_bits_and_their_share_of_the_scales(
    settings: dict[str, Any], bits: float
) -> None:
    assert shape_of({**LLAMA_8B, "quantization_config": settings}, "it").layer_weight_bytes == bits / 8


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "rwkv"}, "model_type 'rwkv'"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"quantization_config": {"quant_method": "spqr"}}, "quant_method 'spqr'"),
        ({"num_mystery_heads": 7}, "num_mystery_heads=7"),
        ({"num_experts": 8}, "num_experts=8"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"layer_types": ["linear_attention"]}, "layer_types="),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0: must divide"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3: must divide"),
        ({"head_dim": -1}, "head_dim=-1: must be a whole number from 0"),
        ({"head_dim": 0}, "head_dim=0: must be above 0"),
        ({"hidden_size": 4}, "head_dim=0: must be above 0"),
        ({"vocab_size": 0}, "vocab_size=0: must be above 0"),
        ({**GEMMA3_4B["text_config"], "sliding_window_pattern": 0}, "sliding_window_pattern=0: must be above 0"),
        ({**GPT_OSS_20B, "layer_types": "full_attention"}, "layer_types='full_attention': must be a list"),
        ({**GPT_OSS_20B, "layer_types": ["full_attention"] * 3}, "layer_types: names 3 layers, of 24"),
        ({**QWEN3_235B, "mlp_only_layers": 4}, "mlp_only_layers=4: must be a list"),
        ({**DEEPSEEK_V3, "first_k_dense_replace": 62}, "62 layers without experts, of 61"),
        ({"quantization_config": {"quant_method": "awq", "ignore": 1}}, "ignore=1: must be a list"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 9},
            "9 experts for a token, of 2",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, **change}))
    with pytest.raises(ConfigError, match=named):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    "idle",
    [
        {"sliding_window": None, "num_experts": 0, "layer_types": ["full_attention"] * 32},
        {"initializer_range": 0.02, "rope_scaling": {"factor": 8.0}, "num_return_sequences": 1, "bos_token_id": 1},
    ],
)
def test_fields_that_change_nothing_are_passed_over(idle: dict[str, Any]) -> None:
    assert shape_of({**LLAMA_8B, **idle}, "it") == shape_of(LLAMA_8B, "it")
    no_window = {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 28, **idle}
    assert shape_of({**QWEN2_7B, **no_window, "layer_types": None}, "it") == shape_of(QWEN2_7B, "it")


@pytest.mark.parametrize(
    ("config", "idle"),
    [
        (
            GEMMA2_2B,
            {"sliding_window_size": 4096, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0},
        ),
        (
            GEMMA3_4B["text_config"],
            {"rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window_pattern": 6},
        ),
    ],
    ids=["gemma2", "gemma3"],
)
def test_fields_of_published_files_that_say_nothing_new_are_read(
    config: dict[str, Any], idle: dict[str, Any]
) -> None:
    assert shape_of({**config, **idle}, "it") == shape_of(config, "it")


def test_layer_types_say_which_layers_have_windows() -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention", "full_attention"] * 8
    listed = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28, "layer_types": kinds}
    shape = shape_of({**LLAMA_8B, "model_type": "qwen3", **listed}, "it")
    assert (shape.window, shape.windowed_layers, shape.window_first) == (4096, 8, True)


def test_a_gpu_without_a_link_needs_no_field_for_it(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("tflops = 300\nmemory_gb = 48\nbandwidth_gb_s = 900\n")
    assert read_gpu(tmp_path / "own.toml").link_gb_s == 0.0


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"model_type": 3}'])
def test_a_broken_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as failure:
        read_shape(tmp_path)
    assert "\n" not in str(failure.value) and "config.json" in str(failure.value)


def test_a_device_from_two_files(tmp_path: Path) -> None:
    """A model's folder and a GPU of one's own price a step and a pool as the built-in names do."""
    model, gpu = tmp_path / "mine", tmp_path / "mine.toml"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA_8B))
    gpu.write_text(
        "tflops = 989.5\nmemory_gb = 80\nbandwidth_gb_s = 3350\n"
        "link_gb_s = 900\nlink_latency_s = 2.2e-6\nfp8_factor = 2\n"
    )
    own, known = parse_device(f"sim:{model}@{gpu}"), parse_device("sim:llama-3.1-8b@h100")
    step = StepFeatures(300, 40_000, 30_000, 20)
    for ranks in (1, 4):
        assert own.step_cost(ranks).step_s(step) == known.step_cost(ranks).step_s(step)
        settings = PoolSettings(tensor_parallel_size=ranks)
        assert own.num_blocks(settings) == known.num_blocks(settings)


def test_layers_with_a_window_read_no_more_than_that() -> None:
    cost = parse_device("sim:llama-3.1-8b@h100").step_cost()
    windowed = shape_of({**LLAMA_8B, "model_type": "mistral", "sliding_window": 1024}, "it")
    within, beyond = StepFeatures(4, 0, 4000, 4), StepFeatures(4, 0, 400_000, 4)
    narrow = Roofline(windowed, GPUS["h100"])
    assert narrow.step_s(within) == cost.step_s(within)
    assert narrow.step_s(beyond) == narrow.step_s(StepFeatures(4, 0, 4096, 4)) < cost.step_s(beyond)


def test_the_attention_of_a_long_prompt_grows_with_the_windows_of_the_layers_that_have_one() -> None:
    config = {**LLAMA_8B, "model_type": "qwen3", "sliding_window": 1024, "use_sliding_window": True}
    half = shape_of({**config, "max_window_layers": 16}, "it")
    full, halved = (
        Roofline(shape, GPUS["h100"]) for shape in (shape_of(config | {"sliding_window": None}, "it"), half)
    )
    within, beyond = (StepFeatures(n, n * (n + 1) / 2, n, 1) for n in (1000, 100_000))
    assert halved.terms(within).attention_s == pytest.approx(full.terms(within).attention_s)
    in_windows = beyond.tokens * 1024 / beyond.attention_pairs
    expected_s = full.terms(beyond).attention_s * (1 + in_windows) / 2
    assert halved.terms(beyond).attention_s == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tflops = 1", "memory_gb"),
        ("tflops = 0\nmemory_gb = 1\nbandwidth_gb_s = 1\nlink_gb_s = 0", "tflops must be above 0"),
        ("tflops = 1\nmemory_gb = 1\nbandwidth_gb_s = 1\nlink_gb_s = 0\ncolour = 1", "colour"),
        ("tflops = 1\nmemory_gb = 1\nbandwidth_gb_s = 1\nweights_share = 1.2", "weights_share must be at most 1"),
        ("tflops =", "is not valid TOML"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_line(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        read_gpu(path)


def test_windows_of_a_config_make_groups() -> None:
    alternating = {
        **GPT_OSS_20B,
        "num_hidden_layers": 5,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    }
    alternating["layer_types"] = [*alternating["layer_types"], "full_attention"]
    shape = shape_of(alternating, "it")
    assert (shape.kv_groups, shape.group_layers) == (("full", "full", 128), 2)
    nearly_even = {**GPT_OSS_20B, "num_hidden_layers": 9, "layer_types": ["sliding_attention"] * 5}
    nearly_even["layer_types"] = [*nearly_even["layer_types"], *["full_attention"] * 4]
    assert shape_of(nearly_even, "it").group_layers == 5
    every_layer = {**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096}
    assert shape_of(every_layer, "it").kv_groups == (4096,)
    assert shape_of(LLAMA_8B, "it").kv_groups == ("full",)


def test_a_pool_of_groups_has_a_block_for_the_layers_of_one() -> None:
    device = parse_device("sim:gpt-oss-20b@h100")
    grouped, alike = device.num_blocks(), device.num_blocks(PoolSettings(one_group=True))
    assert grouped // 2 == pytest.approx(alike, abs=1)
