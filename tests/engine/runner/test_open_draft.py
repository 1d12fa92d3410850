"""Opening a model with a draft model: what is shared, what is sized, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedtop.console.cli.main import main
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.loading.open import open_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

POOL_BYTES = 10**6
BLOCK_BYTES = 3 * 16 * 2 * 2 * 8 * 4
"""Of either model: layers, tokens, keys and values, heads, head size, float32."""


@pytest.fixture(scope="session")
def folders(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`llama` and `qwen2` share a vocabulary, which `other` spells otherwise; `wide` has one token more."""
    folder = tmp_path_factory.mktemp("models")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: lab.vocab]
    for name, family, letters in (
        ("llama", "llama", alphabet),
        ("qwen2", "qwen2", alphabet),
        ("other", "qwen2", alphabet[::-1]),
    ):
        lab.build_model(family).save_pretrained(folder / name)
        table = Tokenizer(models.BPE({char: index for index, char in enumerate(letters)}, []))
        table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        PreTrainedTokenizerFast(tokenizer_object=table).save_pretrained(folder / name)
    config = lab.build_model("llama").config
    config.vocab_size += 1
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "wide")
    return folder


def settings(folders: Path, draft: str | None, **changes: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "device": "cpu",
            "model": str(folders / "llama"),
            "draft_model": None if draft is None else str(folders / draft),
            "dtype": "float32",
            "workload": None,
            **changes,
        }
    )


@pytest.mark.parametrize("draft", ["llama", "qwen2"])
def test_serves_what_transformers_generates(lab: Any, folders: Path, draft: str) -> None:
    engine = build_engine(settings(folders, draft, scheduler={"num_blocks": 40, "max_num_batched_tokens": 16}))
    assert engine.knobs["num_speculative_tokens"] == 4
    assert engine.header.settings["drafts"] == f"draft model {draft}"
    prompts = lab.prompts(4, seed=9)
    requests = [Request(str(i), np.array(prompt, dtype=np.int32), 20) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    for count in (4, 0, 8, 2):
        assert engine.set_knobs({"num_speculative_tokens": count}).ok
        engine.step()
    while engine.num_unfinished:
        record = engine.step()
        assert record is not None
        assert record.input_rows == record.scheduled_tokens + np.count_nonzero(row_columns(record)["tokens"])
        assert record.input_rows <= 16
    lab.check_greedy("llama", prompts, [list(r.output_token_ids) for r in requests], 20)
    totals = engine.observer.totals()
    assert (totals.rejected_draft_tokens < totals.draft_tokens / 2) == (draft == "llama")


def test_the_pool_holds_both(folders: Path) -> None:
    scheduler = {"max_num_seqs": 4}
    _, alone = open_model(settings(folders, None, kv_cache_memory_bytes=POOL_BYTES, scheduler=scheduler))
    _, both = open_model(settings(folders, "qwen2", kv_cache_memory_bytes=POOL_BYTES, scheduler=scheduler))
    assert alone.num_blocks == POOL_BYTES // BLOCK_BYTES
    assert both.num_blocks == (POOL_BYTES - 4 * BLOCK_BYTES) // (2 * BLOCK_BYTES)
    assert alone.defaults.get("draft_slots") is None and both.defaults["draft_slots"] == 1


def test_settings_stand_before_the_draft_models(folders: Path) -> None:
    engine = build_engine(settings(folders, "qwen2", scheduler={"num_speculative_tokens": 0, "num_blocks": 8}))
    assert engine.knobs["num_speculative_tokens"] == 0
    assert engine.scheduler.config.draft_slots == 1


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ("wide", "its vocabulary has 212 tokens, that of llama has 211"),
        ("other", "stand for other text"),
        ("nowhere", "--draft-model: no model '.*nowhere'"),
    ],
)
def test_a_draft_model_that_cannot_serve(folders: Path, draft: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        build_engine(settings(folders, draft))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--device", "cpu", "--model", "{}/llama", "--draft-model", "{}/wide"], "a draft model must share"),
        (["--device", "cpu", "--model", "{}/llama", "--draft-model", "{}/nowhere"], "no model"),
        (["--device", "sim:llama-3.1-8b@h100", "--draft-model", "{}/qwen2"], "a simulated device runs no model"),
    ],
)
def test_refused_on_the_command_line(
    folders: Path, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--limit", "1", *(flag.format(folders) for flag in flags)])
    assert ended.value.code == 2
    reported = capsys.readouterr().err.strip()
    assert says in reported and "Traceback" not in reported
