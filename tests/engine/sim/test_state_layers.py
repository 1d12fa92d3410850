"""Models with layers that keep a state of fixed size: weights, blocks and groups, and an engine on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.sim.devices import GPUS
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.model_config import shape_of
from schedtop.engine.sim.roofline import Roofline
from schedtop.engine.sim.spec import parse_device
from schedtop.engine.sim.state_layers import GROUP

from tests.engine.harness import run_out

GRANITE_TINY = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 40,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "vocab_size": 100352,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "layer_types": [*["mamba"] * 9, "attention"] * 4,
}
DELTA = {
    "num_attention_heads": 16,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}
QWEN3_NEXT = {
    **DELTA,
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "vocab_size": 151936,
}
QWEN35_9B = {
    **DELTA,
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
    "vocab_size": 248320,
    "mamba_ssm_dtype": "float32",
}


@pytest.mark.parametrize(
    ("config", "params"),
    [(GRANITE_TINY, 6_939_037_248), (QWEN3_NEXT, 79_674_391_296), (QWEN35_9B, 8_953_803_264)],
    ids=["granite", "qwen3-next", "qwen3.5"],
)
def test_weights_are_those_that_transformers_makes_of_the_configuration(
    config: dict[str, Any], params: int
) -> None:
    assert shape_of(config, "it").params == params


@pytest.mark.parametrize(
    ("config", "ranks", "drafts", "state_bytes", "tokens"),
    [
        (GRANITE_TINY, 1, 0, 806_400, 400),
        (GRANITE_TINY, 2, 3, 414_720, 416),
        (GRANITE_TINY, 4, 1, 204_800, 400),
        (QWEN3_NEXT, 1, 0, 1_097_728, 544),
        (QWEN3_NEXT, 2, 1, 557_056, 544),
        (QWEN35_9B, 1, 0, 2_146_304, 528),
        (QWEN35_9B, 1, 3, 2_195_456, 544),
        ({**QWEN35_9B, "num_key_value_heads": 2}, 1, 0, 2_146_304, 1056),
    ],
)
def test_a_block_holds_a_whole_state(
    config: dict[str, Any], ranks: int, drafts: int, state_bytes: int, tokens: int
) -> None:
    """Sizes as vLLM 0.32 computes them for these shapes."""
    shape = shape_of(config, "it")
    assert shape.state is not None
    assert shape.state.state_bytes(ranks, drafts) == state_bytes
    assert shape.state.block_size(16, shape.local_kv_numbers(ranks) * 2, ranks, drafts) == tokens


@pytest.mark.parametrize(
    ("config", "groups", "layers"), [(GRANITE_TINY, 9, 4), (QWEN3_NEXT, 3, 12), (QWEN35_9B, 3, 8)]
)
def test_states_are_groups_beside_full_attention(config: dict[str, Any], groups: int, layers: int) -> None:
    shape = shape_of(config, "it")
    assert (shape.kv_groups, shape.group_layers) == ((*[GROUP] * groups, "full"), layers)
    assert shape.kv_bytes_per_token == layers * shape.kv_numbers_per_layer * 2


def test_a_state_costs_its_reading_and_writing_and_no_context() -> None:
    shape = shape_of(QWEN35_9B, "it")
    cost = Roofline(shape, GPUS["h100"])
    row_s = cost.step_s(StepFeatures(2, 0, 2, 2)) - cost.step_s(StepFeatures(2, 0, 2, 1))
    context_s = cost.step_s(StepFeatures(1, 0, 1001, 1)) - cost.step_s(StepFeatures(1, 0, 1, 1))
    assert row_s > 2 * 24 * 2_146_304 / 3350e9
    assert context_s == pytest.approx(1000 * 8 * 4096 / (3350e9 * GPUS["h100"].kv_share))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**GRANITE_TINY, "layer_types": None}, "layer_types: must name what each of the 40 layers is"),
        ({**GRANITE_TINY, "layer_types": ["mamba"] * 40}, "layer_types: must name layers of both kinds"),
        ({**GRANITE_TINY, "layer_types": ["rwkv", *["mamba"] * 39]}, "layer_types: rwkv is not supported"),
        ({**GRANITE_TINY, "mamba_d_head": 32}, "mamba_d_head=32: mamba_n_heads=48"),
        ({**GRANITE_TINY, "mamba_d_state": None}, "mamba_d_state is missing"),
        ({**QWEN35_9B, "mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype='float8': must be one of bfloat16"),
        ({**QWEN35_9B, "linear_num_value_heads": None}, "linear_num_value_heads is missing"),
        ({**QWEN3_NEXT, "mlp_only_layers": [0]}, r"mlp_only_layers=\[0\]: only \[\] is supported"),
    ],
)
def test_what_is_not_understood_is_refused_by_the_fields_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        shape_of(config, "it")


def engine_config(tmp_path: Path, **scheduler: Any) -> EngineConfig:
    (tmp_path / "config.json").write_text(json.dumps(QWEN35_9B))
    workload = WorkloadSpec(source="shared-prefix", rate=1e4, limit=12)
    return EngineConfig(device=f"sim:{tmp_path}@h100", scheduler=scheduler, workload=workload)


def test_an_engine_keeps_states_at_block_ends_and_finds_them_again(tmp_path: Path) -> None:
    engine = build_engine(engine_config(tmp_path))
    assert engine.header.block_size == 528
    records = run_out(engine)
    assert len(records[0].group_blocks) == 4
    assert all(record.group_blocks[0] <= record.group_blocks[3] for record in records)
    assert engine.observer.counts["cached_tokens"] > 0
    engine.scheduler.audit()


def test_without_prefix_caching_a_request_has_one_state(tmp_path: Path) -> None:
    engine = build_engine(engine_config(tmp_path, enable_prefix_caching=False, num_speculative_tokens=2))
    for record in run_out(engine):
        assert set(record.group_blocks[:3]) == {3 * record.running}
        assert (
            0
            <= record.blocks.stored_tokens
            <= (record.blocks.held + record.blocks.shared) * engine.header.block_size
        )
    assert engine.observer.counts["finished"] == 12


@pytest.mark.parametrize(
    ("scheduler", "named"),
    [
        ({"disable_hybrid_kv_cache_manager": True}, "--disable-hybrid-kv-cache-manager: .* cannot be kept"),
        ({"enable_chunked_prefill": False}, "--no-enable-chunked-prefill: .* at the ends of chunks"),
    ],
)
def test_what_states_cannot_follow_is_refused(scheduler: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        build_engine(engine_config(tmp_path, **scheduler))


def test_heads_of_a_state_must_be_divisible_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN35_9B, "linear_num_value_heads": 6}))
    with pytest.raises(ConfigError, match="use 1, 2"):
        parse_device(f"sim:{tmp_path}@h100").step_cost(4)
