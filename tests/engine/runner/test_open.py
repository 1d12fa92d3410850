"""Opening a model from its folder, and every way that is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.loading.model_files import find_model
from schedtop.engine.runner.loading.open import open_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture(scope="session")
def saved(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a byte tokenizer, as a model folder."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    model = lab.build_model("llama")
    model.generation_config.eos_token_id = [2, 3]
    model.generation_config.update(do_sample=True, temperature=0.6, top_k=7, top_p=0.8)
    model.save_pretrained(folder)
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet())[: lab.vocab])}
    table = Tokenizer(models.BPE(vocab, []))
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    table.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=table, chat_template=CHAT).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "tiny-llama"))


def settings(model: Path | str, **changes: Any) -> EngineConfig:
    return EngineConfig(**{"device": "cpu", "model": str(model), "dtype": "float32", "workload": None, **changes})


def test_serves_what_transformers_generates(lab: Any, saved: Path) -> None:
    engine = build_engine(settings(saved, scheduler={"num_blocks": 40, "max_num_batched_tokens": 16}))
    prompts = lab.prompts(4, seed=9)
    requests = [Request(str(i), np.array(prompt, dtype=np.int32), 10) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    while engine.num_unfinished:
        engine.step()
    lab.check_greedy("llama", prompts, [list(r.output_token_ids) for r in requests], 10)


def test_reads_the_models_files(saved: Path) -> None:
    stages: list[str] = []
    _, info = open_model(settings(saved, kv_cache_memory_bytes=10**6), stages.append)
    assert (info.model, info.dtype, info.vocab_size, info.max_model_len) == ("tiny-llama", "float32", 211, 512)
    assert info.eos_token_ids == {2, 3}
    assert (info.sampling.temperature, info.sampling.top_k, info.sampling.top_p) == (0.6, 7, 0.8)
    assert info.num_blocks == 10**6 // (3 * 16 * 2 * 2 * 8 * 4)
    assert info.tokenizer is not None
    assert info.tokenizer.decode(info.tokenizer.encode("grün").tolist()) == "grün"
    chat = info.tokenizer.encode_chat([{"role": "u", "content": "hi"}])
    assert info.tokenizer.decode(chat.tolist()) == "<u>hi<a>"
    assert stages


def test_a_growing_rope_is_served_as_far_as_it_has_not_grown(folder: Path) -> None:
    edit("config.json", rope_parameters=LONG_ROPE)(folder)
    with pytest.raises(ConfigError, match="set --max-model-len 128"):
        open_model(settings(folder, scheduler={"max_model_len": 129, "num_blocks": 9}))
    open_model(settings(folder, scheduler={"max_model_len": 128, "num_blocks": 9}))
    edit("config.json", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})(folder)
    with pytest.raises(ConfigError, match="'dynamic'"):
        open_model(settings(folder, scheduler={"max_model_len": 513, "num_blocks": 9}))


def test_a_length_beside_the_growing_rope_counts_for_it(folder: Path) -> None:
    """As in Phi-3's configurations; transformers moves it into the rope only when it builds the model."""
    rope = {name: value for name, value in LONG_ROPE.items() if not name.startswith("original")}
    edit("config.json", rope_scaling=rope, rope_parameters=None, original_max_position_embeddings=128)(folder)
    with pytest.raises(ConfigError, match="set --max-model-len 128"):
        open_model(settings(folder, scheduler={"num_blocks": 9}))


def test_bfloat16_where_the_processor_has_it(saved: Path) -> None:
    _, info = open_model(settings(saved, dtype="auto", scheduler={"num_blocks": "8"}))
    assert info.dtype == ("bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32")


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def truncate(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def drop_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def name_a_part(folder: Path) -> None:
    """As a folder of which one of two files of weights was not copied."""
    parts = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    (truncate("config.json"), "not valid JSON"),
    (lambda folder: (folder / "model.safetensors").unlink(), "no .safetensors weights"),
    (truncate("model.safetensors"), "its weights cannot be read"),
    (name_a_part, "1 files of its weights are missing"),
    (drop_a_weight, "1 weights are missing or misshapen"),
    (truncate("tokenizer.json"), "its tokenizer cannot be read"),
    (edit("config.json", model_type="gpt2"), "architecture 'gpt2' is not served"),
    (edit("config.json", rope_parameters=LONG_ROPE), "rope_type 'longrope' moves every token"),
    (edit("config.json", model_type="frobnicate"), "architecture 'frobnicate' is not served"),
    (edit("config.json", model_type=None), "names no model_type"),
    (edit("config.json", hidden_size="wide"), "its configuration cannot be read"),
    (edit("config.json", head_dim=258), "head size 258"),
    (edit("config.json", num_key_value_heads=4), "6 query heads cannot share 4"),
    (edit("config.json", intermediate_size=32), "missing or misshapen"),
    (edit("config.json", quantization_config={"quant_method": "gptq", "bits": 4}), "quantised"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES, ids=[says for _, says in DAMAGES])
def test_a_damaged_folder_is_one_clear_line(folder: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(folder)
    with pytest.raises(ConfigError, match=says) as refused:
        open_model(settings(folder, scheduler={"num_blocks": 8}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dtype": "int3"}, "--dtype=int3"),
        ({"dtype": "float16"}, "float16"),
        ({"kv_cache_memory_bytes": 1000}, "one KV block takes"),
        ({"kv_cache_memory_bytes": 10**15}, "are free"),
        ({"scheduler": {"max_model_len": 9999}}, "the model's own length is 512"),
    ],
)
def test_settings_that_cannot_be_served(saved: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_engine(settings(saved, **changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda(saved: Path) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        open_model(settings(saved, device="cuda"))


def test_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"no")
    for name, says in (("smollm2", "schedtop pull smollm2"), ("nowhere", "no model"), (str(wrong), "not a GGUF")):
        with pytest.raises(ConfigError, match=says):
            find_model(name)


def test_damaged_gguf(tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ConfigError, match="cannot be read"):
        open_model(settings(path))


def test_hub_id_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="not in the local hub cache"):
        open_model(settings("nobody/nothing-at-all"))


@pytest.fixture
def cached(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's snapshot of me/tiny in a local hub cache, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--me--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    return Path(shutil.copytree(saved, repo / "snapshots" / ("0" * 40)))


@pytest.mark.usefixtures("cached")
def test_a_hub_id_in_the_local_cache_needs_no_network() -> None:
    _, info = open_model(settings("me/tiny", scheduler={"num_blocks": 8}))
    assert info.model == "me/tiny" and info.tokenizer is not None


def test_a_hub_id_of_which_the_cache_holds_a_part(cached: Path) -> None:
    (cached / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="me/tiny: not in the local hub cache"):
        open_model(settings("me/tiny"))
