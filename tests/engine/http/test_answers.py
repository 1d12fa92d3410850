"""Completions and chats as OpenAI's clients send and read them."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from tests.engine.http.served import Served, events, serving

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def chunks(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    *data, done = events(served.post(path, {**body, "stream": True}))
    assert done == "[DONE]"
    return [json.loads(line) for line in data]


def test_a_whole_completion(served: Served) -> None:
    answer = served.complete("hello world", 5, model="llama-3.1-8b").json()
    assert answer["object"] == "text_completion" and answer["model"] == "llama-3.1-8b"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert len(choice["text"].split()) == 5
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 5, 8)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_whole_chat(served: Served) -> None:
    answer = served.post("/v1/chat/completions", CHAT).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    assert len(choice["message"]["content"].split()) == 3


def test_a_stream_says_what_a_whole_answer_would(served: Served) -> None:
    streamed = chunks(served, "/v1/completions", {"prompt": "stream", "max_tokens": 6})
    assert {chunk["object"] for chunk in streamed} == {"text_completion"}
    assert len({chunk["id"] for chunk in streamed}) == 1
    assert all("usage" not in chunk for chunk in streamed)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in streamed]
    assert reasons[-1] == "length" and set(reasons[:-1]) <= {None}
    assert len("".join(chunk["choices"][0]["text"] for chunk in streamed).split()) == 6


def test_a_chat_stream_begins_with_the_role_and_sends_no_empty_piece_after_it(served: Served) -> None:
    first, *rest = chunks(served, "/v1/chat/completions", CHAT)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["object"] for chunk in rest} == {"chat.completion.chunk"}
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in rest)
    assert rest[-1]["choices"][0]["finish_reason"] == "length"


def test_usage_comes_last_or_in_every_chunk(served: Served) -> None:
    asked = {"prompt": "u", "max_tokens": 4, "stream_options": {"include_usage": True}}
    last = chunks(served, "/v1/completions", asked)
    assert last[-1]["choices"] == [] and last[-1]["usage"]["completion_tokens"] == 4
    assert all("usage" not in chunk for chunk in last[:-1])
    options = {"include_usage": True, "continuous_usage_stats": True}
    every = chunks(served, "/v1/chat/completions", {**CHAT, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in every]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-2:] == [3, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in every} == {every[0]["usage"]["prompt_tokens"]} != {0}


@pytest.mark.parametrize("prompt", ["abcd", ["abcd"], [5, 6, 7], [[5, 6, 7]]])
def test_a_prompt_is_text_or_ids_or_a_list_with_one(served: Served, prompt: Any) -> None:
    wanted = 1 if "abcd" in prompt else 3
    assert served.complete(prompt).json()["usage"]["prompt_tokens"] == wanted


def test_parts_of_a_message_are_joined_and_others_than_text_refused(served: Served) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    joined = served.post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": parts}]})
    plain = served.post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "one\ntwo"}]})
    assert joined.json()["usage"]["prompt_tokens"] == plain.json()["usage"]["prompt_tokens"]
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    for wrong in ({"role": "user", "content": image}, {"role": "user", "content": 5}, {"role": 5}, {}):
        for route in ("/v1/chat/completions", "/tokenize"):
            error = served.post(route, {**CHAT, "messages": [wrong]})
            assert error.status_code == 400 and error.json()["error"]["param"] == "messages"


def test_what_the_cache_had_is_told(served: Served) -> None:
    prompt = list(range(100, 200))
    assert served.complete(prompt).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert served.complete(prompt).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def test_prefixes_are_shared_under_one_salt_only(served: Served) -> None:
    prompt = list(range(7000, 7100))

    def cached(**salt: str) -> int:
        usage = served.complete(prompt, **salt).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    red, blue = {"cache_salt": "red"}, {"cache_salt": "blue"}
    assert [cached(**red), cached(**red), cached(**blue), cached()] == [0, 96, 0, 0]
    refused = served.complete(prompt, cache_salt="")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "cache_salt"


def test_a_stop_string_ends_the_answer_before_it_and_frees_the_request(served: Served) -> None:
    words = served.complete("stop", 500, stop=["zz", "ba"]).json()
    assert words["choices"][0]["finish_reason"] == "stop" and words["choices"][0]["stop_reason"] == "ba"
    assert "ba" not in words["choices"][0]["text"]
    assert words["usage"]["completion_tokens"] < 500
    for record in served.records():
        if any(finish.reason == "abort" for finish in record.finishes):
            assert record.running == 0
            break


def test_a_clients_own_id_is_the_requests(served: Served) -> None:
    body = {"prompt": "x", "max_tokens": 1, "user": "somebody", "parent": "ask-7"}
    response = served.post("/v1/completions", body, headers={"x-request-id": "bench-7"})
    assert response.json()["id"] == "cmpl-bench-7"
    for record in served.records():
        if found := [arrival for arrival in record.arrivals if arrival.id == "cmpl-bench-7"]:
            assert (found[0].client, found[0].parent) == ("somebody", "ask-7")
            break


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1, "best_of": 1, "echo": False, "suffix": None, "logprobs": None, "logit_bias": {}},
        {"repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "min_tokens": 0},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"temperature": None, "top_p": None, "stop": None, "seed": None, "stream_options": None, "top_k": -1},
        {"a_field_of_the_future": {"x": [1, 2]}, "user": "somebody"},
    ],
)
def test_what_asks_for_nothing_is_accepted(served: Served, neutral: dict[str, Any]) -> None:
    assert served.complete(**neutral).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 6}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3000}, "max_tokens"),
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"priority": 1 << 40}, "priority"),
        ({"logprobs": 1}, "logprobs"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["one", "two"]}, "prompt"),
        ({"prompt": [1, "two"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 30]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": list(range(1024))}, "prompt"),
        ({"prompt": list(range(1000)), "max_tokens": 100}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(served: Served, body: dict[str, Any], param: str) -> None:
    response = served.post("/v1/completions", {"prompt": "x", "max_tokens": 2, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and error["code"] == 400 and error["type"] == "BadRequestError"
    assert error["message"] and "\n" not in error["message"]


def test_what_can_never_fit_is_told_with_need_and_capacity() -> None:
    with serving({"num_blocks": 8, "max_model_len": 1024}) as served:
        error = served.complete(list(range(200))).json()["error"]
        assert error["code"] == 400 and error["message"] == "the prompt needs 13 KV blocks, the pool has 8"
        error = served.complete(list(range(1000)), 100).json()["error"]
        assert "1000 prompt tokens + 100 output tokens = 1100 > max_model_len 1024" in error["message"]
        cut = served.complete(list(range(100)), 500).json()
        assert cut["choices"][0]["finish_reason"] == "length"
        assert 0 < cut["usage"]["completion_tokens"] < 500, "the pool was full"


def test_a_missing_field_is_named(served: Served) -> None:
    error = served.post("/v1/completions", {"max_tokens": 2}).json()["error"]
    assert error["param"] == "prompt" and error["code"] == 400
    error = served.post("/v1/chat/completions", {"messages": []}).json()["error"]
    assert error["param"] == "messages" and error["code"] == 400


def test_another_model_is_404_and_says_which_there_are() -> None:
    with serving(served_model_name=("one", "two")) as served:
        error = served.complete(model="three").json()["error"]
        assert (error["code"], error["param"], error["type"]) == (404, "model", "NotFoundError")
        assert "one, two" in error["message"]
        assert [entry["id"] for entry in served.http.get("/v1/models").json()["data"]] == ["one", "two"]
        assert served.complete(model="two").json()["model"] == "two"
        assert 'model_name="one"' in served.http.get("/metrics").text


def test_each_adapter_is_a_model_of_its_own() -> None:
    prompt = list(range(64))
    with serving(lora=("sql", "fr"), scheduler={"max_loras": 1}) as served:
        base, *adapters = served.http.get("/v1/models").json()["data"]
        assert [(entry["id"], entry["parent"]) for entry in adapters] == [("sql", base["id"]), ("fr", base["id"])]

        def cached(name: str) -> int:
            answer = served.complete(prompt, model=name).json()
            assert answer["model"] == name
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        names = (base["id"], "sql", "fr", "sql", base["id"])
        assert [cached(name) > 0 for name in names] == [False, False, False, True, True]
        assert served.complete(prompt, model="de").json()["error"]["code"] == 404
        found = [arrival.adapter_name for record in islice(served.records(), 12) for arrival in record.arrivals]
        assert found[:3] == ["", "sql", "fr"]


def test_embeddings_are_refused_in_one_line(served: Served) -> None:
    error = served.post("/v1/embeddings", {"input": "hello"}).json()["error"]
    assert error["code"] == 400 and "vectors" in error["message"]


def test_the_small_routes(served: Served) -> None:
    (model,) = served.http.get("/v1/models").json()["data"]
    assert model["id"] == "llama-3.1-8b" and model["object"] == "model" and model["max_model_len"] == 1024
    assert served.http.get("/health").status_code == 200 and served.http.get("/health").content == b""
    assert served.http.get("/version").json()["version"]
    tokens = served.post("/tokenize", {"prompt": "hello world", "add_special_tokens": False}).json()
    assert tokens["count"] == len(tokens["tokens"]) == 3 and tokens["max_model_len"] == 1024
    assert served.complete(tokens["tokens"]).json()["usage"]["prompt_tokens"] == 3
    assert served.http.get("/nowhere").json()["error"]["code"] == 404
    assert served.http.get("/v1/completions").json()["error"]["code"] == 405


def test_a_priority_is_the_schedulers(served: Served) -> None:
    served.complete(priority=-3)
    for record in served.records():
        if any(arrival.priority == -3 for arrival in record.arrivals):
            break
