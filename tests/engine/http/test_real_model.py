"""A real, tiny model behind the server: its tokenizer, its chat template, its probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.engine.http.served import Served, events, serving

VOCAB = 64
CHAT = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}w3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny-model"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<s>": 0, "</s>": 1, "user": 2, "<unk>": 3, **{f"w{n}": n for n in range(4, VOCAB)}}
    table = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=table, chat_template=CHAT).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(token_file: Path, folder: Path) -> Iterator[Served]:
    settings: dict[str, Any] = {"device": "cpu", "model": str(folder), "dtype": "float32"}
    with serving({"max_model_len": 256, "num_blocks": 64}, **settings) as server:
        yield server


def test_its_id_is_what_the_model_was_called(served: Served, folder: Path) -> None:
    assert [entry["id"] for entry in served.http.get("/v1/models").json()["data"]] == [str(folder)]


def test_texts_are_its_tokenizers(served: Served) -> None:
    tokens = served.post("/tokenize", {"prompt": "w5 w6 nothing"}).json()
    assert tokens["tokens"] == [5, 6, 3]
    chat = served.post("/tokenize", {"messages": [{"role": "user", "content": "w9"}]}).json()
    assert chat["tokens"] == [2, 9, 3]
    by_text = served.complete("w5 w6", 8, temperature=0).json()
    by_ids = served.complete([5, 6], 8, temperature=0).json()
    assert by_text["choices"] == by_ids["choices"] and by_text["choices"][0]["text"]


def test_a_stream_says_what_a_whole_answer_does(served: Served) -> None:
    asked = {
        "messages": [{"role": "user", "content": "w9"}],
        "max_tokens": 20,
        "temperature": 0,
        "ignore_eos": True,
    }
    whole = served.post("/v1/chat/completions", asked).json()
    *data, _ = events(served.post("/v1/chat/completions", {**asked, "stream": True}))
    pieces = [json.loads(line)["choices"][0]["delta"]["content"] for line in data]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 20


def test_a_stop_string_and_a_stop_token_end_it(served: Served) -> None:
    plain = served.complete("w5", 20, temperature=0, ignore_eos=True).json()["choices"][0]["text"]
    word = plain.split()[6]
    cut = served.complete("w5", 20, temperature=0, ignore_eos=True, stop=word).json()["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", word)
    assert cut["text"] == plain[: plain.index(word)]
    token_id = int(word.removeprefix("w"))
    cut = served.complete("w5", 20, temperature=0, ignore_eos=True, stop_token_ids=[token_id]).json()["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", token_id)
    assert cut["text"].split() == plain[: plain.index(word)].split()


def test_a_seed_repeats_an_answer_and_a_bias_decides_it(served: Served) -> None:
    one, two, other = (
        served.complete("w5", 12, seed=seed, ignore_eos=True).json()["choices"][0]["text"] for seed in (1, 1, 2)
    )
    assert one == two != other
    biased = served.complete("w5", 3, logit_bias={"7": 100}).json()["choices"][0]["text"]
    assert biased.split() == ["w7"] * 3


def test_logprobs_in_both_shapes(served: Served) -> None:
    asked = {"temperature": 0, "ignore_eos": True}
    reported = served.complete("w5", 4, logprobs=2, **asked).json()["choices"][0]
    logprobs = reported["logprobs"]
    assert logprobs["tokens"] == reported["text"].split() and len(logprobs["token_logprobs"]) == 4
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert value <= 0 and len(top) == 2 and max(top.values()) == top[token] == value
    body = {"messages": [{"role": "user", "content": "w9"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 3}
    content = served.post("/v1/chat/completions", {**body, **asked}).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(len(entry["top_logprobs"]) == 3 for entry in content)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    *data, _ = events(served.post("/v1/chat/completions", {**body, **asked, "stream": True}))
    streamed = [json.loads(line)["choices"][0]["logprobs"] for line in data]
    assert [entry for reported in streamed if reported for entry in reported["content"]] == content
    assert served.complete("w5", 4, **asked).json()["choices"][0]["logprobs"] is None


def test_a_template_that_refuses_is_a_400(served: Served) -> None:
    error = served.post("/v1/chat/completions", {"messages": ["x"]}).json()["error"]
    assert error["code"] == 400 and error["param"] == "messages"
