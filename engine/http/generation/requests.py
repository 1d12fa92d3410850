"""Validates what clients send: one clear line with the field's name for whatever cannot be served as asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.handoff.sampling_settings import MAX_LOGPROBS
from schedtop.engine.http.errors import ApiError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "ec_transfer_params": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logprob_token_ids": ([],),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "structured_outputs": ({},),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "web_search_options": (),
}
"""Unsupported fields that would change an answer, with the values besides null that are harmless."""

MAX_STOPS = 16
MAX_ID_CHARS = 128
_FIELD = re.compile(r"at `\$\.(\w+)")
_INT64 = 1 << 63
_ADVISED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Sampling defaults that a model may set."""
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "seed"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
)

Count = Annotated[int, Meta(ge=1, lt=1 << 31)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Top = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Asked = TypeVar("Asked", bound="GenerationRequest")


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether usage is reported at the end of a stream, and in every chunk of it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields common to completions and chats; null means absent."""

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1000)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    user: Annotated[str, Meta(max_length=1000)] | None = None
    parent: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    request_id: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def asked_logprobs(self) -> int | None:
        """How many of the likeliest tokens get log probabilities; None: not even the output does."""
        raise NotImplementedError

    @property
    def asked_tokens(self) -> int | None:
        """How many output tokens were asked for."""
        return self.max_tokens

    def sampling(self, advice: Mapping[str, Any], vocab_size: int) -> SamplingParams:
        """The request's own settings over the model's advice over OpenAI's defaults, as vLLM's server has it."""
        values: dict[str, Any] = {"temperature": 1.0}
        if advice.get("temperature"):
            values.update({name: advice[name] for name in _ADVISED if name in advice})
        for name in _SAMPLING:
            if (own := getattr(self, name)) is not None:
                values[name] = own
        values["top_k"] = max(values.get("top_k", 0), 0)  # -1 is off, too
        bias = self.biases(vocab_size)
        return SamplingParams(
            **values,
            stop=self.stops,
            ignore_eos=bool(self.ignore_eos),
            logit_bias=bias,
            logprobs=self.asked_logprobs,
        )

    def biases(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        """Token ids and what is added to their logits. Raises `ApiError` for one that the model has not."""
        found = []
        for key, bias in (self.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
                text = f"logit_bias: {key[:40]!r} is not a token id below {vocab_size}"
                raise ApiError(400, text, "logit_bias")
            found.append((int(key), bias))
        return tuple(found)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]]
    add_special_tokens: bool | None = None
    logprobs: Top | None = None

    @property
    def asked_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def asked_tokens(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens

    def the_prompt(self) -> str | list[int]:
        """The one prompt: text or token ids. Raises `ApiError` for more than one."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return prompt
        ids = [entry for entry in prompt if isinstance(entry, int)]
        if len(ids) != len(prompt):
            raise ApiError(400, "prompt: one prompt in a request, please: send the others apart", "prompt")
        return ids


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /tokenize`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None


class KnobsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`PATCH /v1/knobs`."""

    values: dict[str, Any]
    expected_version: int | None = None
    dry_run: bool = False
    by: Annotated[str, Meta(max_length=MAX_ID_CHARS)] = ""


def read(body: bytes, kind: type[Any]) -> Any:
    """A body as a `kind`. Raises `ApiError` naming the field that is wrong."""
    try:
        values = msgspec.json.decode(body)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise ApiError(400, f"the body is not JSON: {_line(error)}") from None
    if not isinstance(values, dict):
        raise ApiError(400, "the body is not a JSON object")
    if issubclass(kind, GenerationRequest):
        _refuse_unserved(values)
    try:
        return msgspec.convert(values, kind)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        found = _FIELD.search(str(error)) or re.search("field `(\\w+)`", str(error))
        raise ApiError(400, _line(error), found and found[1]) from None


def _refuse_unserved(values: Mapping[str, Any]) -> None:
    for name in NEUTRAL.keys() & values.keys():
        value = values[name]
        if value is not None and not any(
            value == plain and _kind(value) == _kind(plain) for plain in NEUTRAL[name]
        ):
            raise ApiError(400, f"{name}={_short(value)} is not served here: leave it out", name)


def _kind(value: Any) -> type[Any]:
    """Numbers are alike; true is not 1."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _short(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:80]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
