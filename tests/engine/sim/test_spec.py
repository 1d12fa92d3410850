"""Device specs: pools, and every way to write one wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.devices import GPUS
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.linear import LinearCost
from schedtop.engine.sim.memory import PoolSettings
from schedtop.engine.sim.models import MODELS
from schedtop.engine.sim.spec import parse_device

CALIBRATED = """
model = "smollm2-135m"
device = "two cores"
vocab_size = 49152
max_model_len = 8192
kv_bytes_per_token = 23040
num_blocks = 1000
block_size = 16

[cost]
fixed_s = 0.01
per_token_s = 1e-4
per_attention_pair_s = 1e-9
per_kv_token_s = 2e-8
per_request_s = 3e-4
"""


def refusal(spec: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_device(spec)
    text = str(caught.value)
    assert "\n" not in text
    return text


def blocks_refusal(spec: str, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_device(spec).num_blocks(PoolSettings(**settings))
    return str(caught.value)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_every_pair_parses_and_says_what_it_is(model: str, gpu: str) -> None:
    device = parse_device(f"sim:{model.upper()}@{gpu}")
    assert device.spec == f"sim:{model}@{gpu}"
    assert device.model == model
    assert device.label == GPUS[gpu].label
    assert device.vocab_size == MODELS[model].vocab
    assert device.max_model_len == MODELS[model].max_model_len
    assert device.kv_bytes_per_token == MODELS[model].kv_bytes_per_token


def test_pool_is_the_share_less_weights_and_working_memory() -> None:
    device = parse_device("sim:llama-3.1-8b@h100")
    pool_bytes = device.num_blocks() * 16 * device.kv_bytes_per_token
    left = 0.9 * 80e9 - MODELS["llama-3.1-8b"].weight_bytes
    assert left - 2e9 < pool_bytes < left
    assert device.num_blocks(PoolSettings(block_size=32)) == device.num_blocks() // 2


@given(
    low=st.floats(0.3, 0.99),
    more=st.floats(0.001, 0.5),
    tokens=st.integers(1, 16384),
    ranks=st.sampled_from([1, 2, 4]),
)
def test_pool_grows_with_memory_and_ranks(low: float, more: float, tokens: int, ranks: int) -> None:
    device = parse_device("sim:llama-3.1-8b@h100")

    def blocks(low: float, tokens: int, ranks: int) -> int:
        return device.num_blocks(PoolSettings(16, low, tokens, ranks))

    pool = blocks(low, tokens, ranks)
    assert blocks(min(low + more, 1.0), tokens, ranks) >= pool
    assert blocks(low, tokens + 1000, ranks) <= pool
    assert blocks(low, tokens, 2 * ranks) > 2 * pool


def test_stages_pool_their_memory() -> None:
    device = parse_device("sim:llama-3.1-70b@h100")
    assert device.num_blocks(PoolSettings(tensor_parallel_size=2, pipeline_parallel_size=2)) > 1000


def test_cache_size_in_bytes_overrides_the_share() -> None:
    device = parse_device("sim:llama-3.1-8b@h100")
    assert device.num_blocks(PoolSettings(kv_cache_memory_bytes=100 * 16 * 131_072)) == 100
    assert "beside llama-3.1-8b" in blocks_refusal("sim:llama-3.1-8b@h100", kv_cache_memory_bytes=70 * 10**9)


def test_an_fp8_cache_halves_the_bytes_and_doubles_the_blocks() -> None:
    plain, fp8 = (parse_device("sim:llama-3.1-8b@h100", dtype) for dtype in ("auto", "fp8"))
    assert fp8.kv_bytes_per_token == plain.kv_bytes_per_token / 2
    assert fp8.num_blocks() in (2 * plain.num_blocks(), 2 * plain.num_blocks() + 1)
    context, cost, fp8_cost = 1_000_000, plain.step_cost(), fp8.step_cost()
    reading_s, fp8_reading_s = (
        some.step_s(StepFeatures(64, 0, context, 64)) - some.step_s(StepFeatures(64, 0, 0, 64))
        for some in (cost, fp8_cost)
    )
    assert fp8_reading_s == pytest.approx(reading_s / 2)


def test_a_calibrated_device_keeps_its_cache(tmp_path: Path) -> None:
    path = tmp_path / "two-cores.toml"
    path.write_text(CALIBRATED)
    with pytest.raises(ConfigError, match="was measured as it is"):
        parse_device(f"sim:@{path}", "fp8")


def test_unknown_names_list_the_known_and_the_nearest() -> None:
    text = refusal("sim:lama-3.1-8b@h100")
    assert "did you mean llama-3.1-8b?" in text
    assert all(name in text for name in MODELS)
    text = refusal("sim:llama-3.1-8b@h1000")
    assert "did you mean h100?" in text
    assert all(name in text for name in GPUS)


@pytest.mark.parametrize("spec", ["h100", "sim:", "sim:llama-3.1-8b", "sim:llama-3.1-8b@", "llama-3.1-8b@h100"])
def test_malformed_specs_show_the_form(spec: str) -> None:
    assert "write sim:MODEL@GPU" in refusal(spec)


def test_weights_that_do_not_fit_name_a_size_that_does() -> None:
    text = blocks_refusal("sim:llama-3.1-70b@h100")
    assert "llama-3.1-70b does not fit" in text
    assert text.endswith("use --tensor-parallel-size 2 (0.1 GB left for the KV cache) or 4 (35.5 GB)")
    for size in (2, 4):
        assert parse_device("sim:llama-3.1-70b@h100").num_blocks(PoolSettings(tensor_parallel_size=size)) > 0
    assert "larger GPU" in blocks_refusal("sim:llama-3.1-70b@cpu")


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("gpu", ["h100", "rtx4090", "a10g", "l4"])
@pytest.mark.parametrize("model", MODELS)
def test_the_size_that_is_named_is_the_least_that_fits(model: str, gpu: str, stages: int) -> None:
    device = parse_device(f"sim:{model}@{gpu}")

    def refused(size: int) -> str:
        try:
            device.num_blocks(PoolSettings(tensor_parallel_size=size, pipeline_parallel_size=stages))
        except ConfigError as error:
            return str(error)
        return ""

    if "does not fit" not in (text := refused(1)):
        return
    least = next((size for size in range(1, 8 // stages + 1) if not refused(size)), None)
    named = re.search(r"use --tensor-parallel-size (\d)", text)
    assert least == (int(named[1]) if named else None), text


@pytest.mark.parametrize(
    ("spec", "ranks", "stages", "words"),
    [
        ("sim:smollm2-135m@h100", 2, 1, "does not divide the 9 attention heads"),
        ("sim:llama-3.1-8b@h100", 3, 1, "does not divide the 32 attention heads"),
        ("sim:llama-3.1-8b@h100", 16, 1, "at most 8"),
        ("sim:llama-3.1-8b@h100", 4, 4, "at most 8"),
        ("sim:llama-3.1-8b@h100", 0, 1, "at least 1"),
        ("sim:smollm2-135m@cpu", 3, 1, "cannot be divided"),
    ],
)
def test_divisions_that_cannot_be_used(spec: str, ranks: int, stages: int, words: str) -> None:
    device = parse_device(spec)
    with pytest.raises(ConfigError, match=words):
        device.num_blocks(PoolSettings(tensor_parallel_size=ranks, pipeline_parallel_size=stages))
    with pytest.raises(ConfigError, match=words):
        device.step_cost(ranks, stages)


def test_memory_share_must_be_a_share() -> None:
    for share in (0.0, -0.1, 1.01, float("nan")):
        assert "--gpu-memory-utilization" in blocks_refusal("sim:llama-3.1-8b@h100", gpu_memory_utilization=share)


def test_a_block_that_does_not_fit_is_refused() -> None:
    words = blocks_refusal("sim:llama-3.1-8b@h100", block_size=256, kv_cache_memory_bytes=1_000_000)
    assert words.startswith("--kv-cache-memory 1000000: must be from 33554432 (one block) to ")
    assert "utilization" not in words
    share = (MODELS["llama-3.1-8b"].weight_bytes + 1.2533e9) / 80e9
    words = blocks_refusal("sim:llama-3.1-8b@h100", block_size=256, gpu_memory_utilization=share)
    assert words.startswith("--gpu-memory-utilization") and words.endswith("raise it or use more GPUs")


def test_a_small_share_is_what_is_to_be_raised() -> None:
    words = blocks_refusal("sim:llama-3.1-8b@h100", gpu_memory_utilization=0.1)
    assert "8.0 GB may be used" in words and words.endswith("raise --gpu-memory-utilization 0.1")


def test_calibrated_device(tmp_path: Path) -> None:
    file = tmp_path / "laptop.toml"
    file.write_text(CALIBRATED)
    device = parse_device(f"sim:@{file}")
    assert (device.model, device.label, device.vocab_size) == ("smollm2-135m", "two cores", 49152)
    assert device.num_blocks() == 1000
    assert device.num_blocks(PoolSettings(32, gpu_memory_utilization=0.1)) == 500
    assert device.num_blocks(PoolSettings(kv_cache_memory_bytes=23040 * 32)) == 2
    with pytest.raises(ConfigError, match=r"--kv-cache-memory 9: must be at least 368640 \(one block\)"):
        device.num_blocks(PoolSettings(kv_cache_memory_bytes=9))
    assert device.step_cost() == LinearCost.from_toml(file) == LinearCost(0.01, 1e-4, 1e-9, 2e-8, 3e-4)
    with pytest.raises(ConfigError, match="leave tensor and pipeline parallel size at 1"):
        device.step_cost(tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fixed_s = 0.01", "fixed_s = -0.01", "fixed_s"),
        ("fixed_s = 0.01", "fixed_s = nan", "fixed_s"),
        ("fixed_s = 0.01", "fixed_s = inf", "fixed_s"),
        ("fixed_s = 0.01", "fixde_s = 0.01", "fixde_s"),
        ("fixed_s = 0.01", "fixed_s = ", "laptop.toml"),
        ("vocab_size = 49152", "", "vocab_size"),
        ("vocab_size = 49152", 'vocab_size = "many"', "vocab_size"),
        ("num_blocks = 1000", "num_blocks = 0", "num_blocks"),
    ],
)
def test_a_bad_calibration_names_file_and_field(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "laptop.toml"
    file.write_text(CALIBRATED.replace(old, new))
    text = refusal(f"sim:@{file}")
    assert "laptop.toml" in text
    assert words in text


def test_a_device_without_time_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "frozen.toml"
    file.write_text(CALIBRATED.split("[cost]")[0] + "[cost]\nper_attention_pair_s = 1.0\n")
    assert "must be above 0" in refusal(f"sim:@{file}")


def test_unreadable_calibrations(tmp_path: Path) -> None:
    assert "No such file" in refusal(f"sim:@{tmp_path / 'none.toml'}")
    assert "Is a directory" in refusal(f"sim:@{tmp_path}")
    file = tmp_path / "binary.toml"
    file.write_bytes(b"\xff\xfe\x00")
    assert "binary.toml: not a device file" in refusal(f"sim:@{file}")


def test_documentation_names_every_preset_and_its_examples_load(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "devices.md").read_text()
    assert all(f"`{name}`" in text for name in (*MODELS, *GPUS))
    gpu, file = tmp_path / "gpu.toml", tmp_path / "example.toml"
    gpu.write_text(text.split("```toml\n")[1].split("```")[0])
    assert parse_device(f"sim:qwen3-8b@{gpu}").num_blocks() > 0
    file.write_text(text.split("```toml\n")[2].split("```")[0])
    assert parse_device(f"sim:@{file}").num_blocks() == 4096
