"""GGUF files are expanded once, whatever they are called; only where the cache cannot keep them, each time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.loading import convert_gguf as room
from schedtop.engine.runner.loading.model_files import find_model
from schedtop.engine.runner.loading.pull import model_folder
from tokenizers import pre_tokenizers

HIDDEN, INNER, HEADS, LAYERS = 32, 64, 2, 2
LAYER = {
    "attn_norm": (HIDDEN,),
    "ffn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN, HIDDEN),
    "attn_v": (HIDDEN, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}


def write_gguf(path: Path, seed: int, **more: tuple[int, ...]) -> Path:
    """A tiny random Llama with a byte tokenizer, and `more` tensors."""
    rng = np.random.default_rng(seed)
    tokens = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"{name}.weight": shape for name, shape in more.items()}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in LAYER.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(0, 0.2, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def expansions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was read from GGUF files, one entry per expansion into the cache."""
    seen: list[Any] = []
    load = room.load_weights

    def counted(files: Any, *more: Any) -> Any:
        seen.append(files)
        return load(files, *more)

    monkeypatch.setattr(room, "load_weights", counted)
    return seen


def outputs(path: Path, stages: list[str] | None = None) -> tuple[str, list[int]]:
    """The model's name and what it answers."""
    config = EngineConfig(
        device="cpu", model=str(path), dtype="float32", workload=None, scheduler={"num_blocks": 8}
    )
    engine = build_engine(config, [].append if stages is None else stages.append)
    request = Request("a", np.array([5, 6, 7, 8, 9], dtype=np.int32), 12)
    engine.submit(request)
    while engine.num_unfinished:
        engine.step()
    return engine.header.model, list(request.output_token_ids)


def test_rotary_factors_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    """As in Llama 3.1's files: without them every token of a long prompt would come out a little wrong."""
    path = write_gguf(tmp_path / "tiny.gguf", seed=1, rope_freqs=(HIDDEN // HEADS // 2,))
    with pytest.raises(ConfigError, match="rope_freqs"):
        find_model(str(path))


def test_the_same_content_is_expanded_once(tmp_path: Path, expansions: list[Any]) -> None:
    first = write_gguf(tmp_path / "tiny.gguf", seed=1)
    name, answer = outputs(first)
    assert (name, len(expansions)) == ("tiny", 1)
    assert outputs(first) == ("tiny", answer)
    renamed = Path(shutil.copy(first, tmp_path / "other.gguf"))
    assert outputs(renamed) == ("other", answer)
    assert len(expansions) == 1
    write_gguf(first, seed=2)
    assert outputs(first) != ("tiny", answer)
    assert len(expansions) == 2


def test_a_file_called_as_a_pulled_model_is_none(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "smollm2.gguf", seed=1)
    folder = room.converted_folder(find_model(str(path)), torch.float32)
    assert folder is not None and folder.parent != model_folder("smollm2")


@pytest.mark.parametrize("why", ["too large", "no room"])
def test_what_the_cache_cannot_keep_is_served_all_the_same(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", seed=1)
    kept = outputs(path)
    cache = tmp_path / "other-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    if why == "too large":
        monkeypatch.setattr(room, "MOST_KEPT_BYTES", 1000)
    else:
        cache.write_text("a file where a folder should be")
    stages: list[str] = []
    assert outputs(path, stages) == kept
    assert any("expanded at each start" in stage for stage in stages)
