"""Run by `check_clients.py` in the `openai` package's own environment: URL MODEL."""

from __future__ import annotations

import sys

import openai


def main(url: str, model: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [entry.id for entry in client.models.list()] == [model]
    whole = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=7
    )
    assert whole.usage.completion_tokens == 7 and whole.choices[0].finish_reason == "length"
    assert whole.choices[0].message.content

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.completion_tokens == 9
    assert "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)

    text = client.completions.create(
        model=model, prompt="once", max_tokens=5, seed=1, stop=["zzzz"], extra_body={"ignore_eos": True, "top_k": 5}
    )
    assert text.usage.total_tokens == text.usage.prompt_tokens + 5

    with client.completions.create(model=model, prompt="once", max_tokens=500, stream=True) as cut:
        next(iter(cut))  # and hang up

    for kind, call in {
        openai.BadRequestError: lambda: client.completions.create(model=model, prompt="x", n=2),
        openai.NotFoundError: lambda: client.completions.create(model="another", prompt="x"),
        openai.AuthenticationError: lambda: client.patch(f"{url}/v1/knobs", body={"values": {}}, cast_to=object),
    }.items():
        try:
            call()
        except kind as error:
            assert error.status_code and error.body
        else:
            raise AssertionError(f"{kind.__name__} was expected")
    print("openai", openai.__version__, "passes")


if __name__ == "__main__":
    main(*sys.argv[1:])
