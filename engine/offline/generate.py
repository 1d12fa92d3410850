"""Prompts from a file, answers to a file: interrupted runs keep finished answers and resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from schedtop.engine.build import build_engine
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import FinishReason, RowFlag, StepRecord
from schedtop.engine.handoff.request import Request, TokenIds
from schedtop.engine.handoff.sampling_settings import check_sampling
from schedtop.engine.offline.answer_file import Answers, is_complete
from schedtop.engine.sim.spec import PREFIX
from schedtop.engine.step.engine import Engine

PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
PENALTY_KEYS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos", *PENALTY_KEYS)

OnProgress = Callable[[int, int], None]
"""Called with the number of finished answers and of all prompts."""


class PromptInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the input: exactly one of the first three fields, plus overrides of the run's settings."""

    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    id: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None


@dataclass(slots=True)
class Summary:
    """The outcome of a run; tokens and events count this run's work, not what was already finished."""

    prompts: int
    resumed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    chunks: int = 0
    drafts: int = 0
    rejected_drafts: int = 0
    elapsed_s: float = 0.0
    interrupted: bool = False
    finished: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        """The summary as one line of text."""
        rate = f"{self.output_tokens / self.elapsed_s:.1f}" if self.elapsed_s > 0 else "n/a"
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        parts = [
            f"{self.finished} of {self.prompts} prompts"
            + (f" ({self.resumed} from before)" if self.resumed else ""),
            f"{self.prompt_tokens} prompt tokens ({self.cached_tokens} cached)",
            f"{self.output_tokens} output tokens in {self.elapsed_s:.1f} s: {rate} tokens/s",
            f"{self.preemptions} preemptions",
            f"{self.chunks} chunks",
        ]
        if self.drafts:
            parts.append(f"{self.drafts} drafts, {1 - self.rejected_drafts / self.drafts:.0%} accepted")
        return "; ".join(parts + ([f"ended by: {reasons}"] if reasons else []))


class PromptLine(NamedTuple):
    """A prompt and its line number, from 1."""

    number: int
    prompt: PromptInput


def read_prompts(path: Path) -> list[PromptLine]:
    """The prompts of a JSONL file. Raises `ConfigError` naming the bad line."""
    if odd := odd_file(path):
        raise ConfigError(odd)
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompts.append(PromptLine(number, read_prompt(line)))
        except (msgspec.DecodeError, RecursionError, ConfigError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
    if not prompts:
        raise ConfigError(f"{path}: no prompts in this file")
    return prompts


def read_prompt(line: bytes) -> PromptInput:
    """One line of the input. Raises `ConfigError`, or msgspec's own errors."""
    prompt = msgspec.json.decode(line, type=PromptInput)
    given = [key for key in PROMPT_KEYS if getattr(prompt, key) is not None]
    if len(given) != 1:
        raise ConfigError(f"give exactly one of {', '.join(PROMPT_KEYS)}")
    if prompt.max_tokens is not None and prompt.max_tokens < 1:
        raise ConfigError(f"max_tokens={prompt.max_tokens}: must be at least 1")
    sampling_of(prompt, {}, SamplingParams())
    return prompt


def generate(
    config: EngineConfig,
    prompts_path: Path,
    out_path: Path,
    *,
    max_tokens: int,
    sampling: dict[str, Any] | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
    on_progress: OnProgress = lambda done, total: None,
    on_notice: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Answer every prompt of a file, one line each, in order.

    `sampling` overrides the model's defaults, by the field names of `SamplingParams`. `on_notice` gets the reason if a
    slower route is used. An interrupted run keeps finished answers beside `out_path`, and the next run resumes from
    them. Raises `ConfigError` for bad input, before anything is served.
    """
    check_sampling(SamplingParams(**(sampling or {})))
    if config.device.startswith(PREFIX):
        raise ConfigError(f"device {config.device} runs no model: use --device cpu, cuda or auto")
    prompts = read_prompts(prompts_path)
    summary = Summary(prompts=len(prompts))
    if is_complete(out_path, len(prompts)):
        summary.resumed = summary.finished = len(prompts)
        return summary
    settings = {"model": config.model, "dtype": config.dtype, "max_tokens": max_tokens, "sampling": sampling or {}}
    answers = Answers(out_path, prompts_path.read_bytes(), settings)
    summary.resumed = summary.finished = len(answers.done)
    encoded: list[TokenIds] = []

    def encode_all(taken: Any) -> None:
        encoded.extend(encode_lines(prompts, prompts_path, taken))

    engine = build_engine(msgspec.structs.replace(config, workload=None), on_stage, on_input=encode_all)
    worker: Any = engine.worker
    for line in worker.notices:
        on_notice(line)
    info: Any = worker.info
    requests = make_requests(prompts, encoded, info, max_tokens, sampling or {}, config.seed)
    todo = {index: request for index, request in requests.items() if index not in answers.done}
    with answers:
        try:
            _serve(engine, todo, answers, info, summary, lambda done: on_progress(done, len(prompts)))
        except KeyboardInterrupt:
            summary.interrupted = True
            return summary
    answers.finish(len(prompts))
    return summary


def encode_lines(lines: Iterable[PromptLine], path: Path, taken: Any) -> Iterator[TokenIds]:
    """The token ids of each prompt, for a model that accepts `taken`. Raises `ConfigError` naming the line."""
    longest = taken.max_model_len
    for number, prompt in lines:
        try:
            token_ids = encode(prompt, taken)
            if len(token_ids) >= longest:
                raise ConfigError(
                    f"{len(token_ids)} prompt tokens: the model length is {longest}, outputs included"
                )
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
        yield token_ids


def make_requests(
    lines: Iterable[PromptLine],
    encoded: Iterable[TokenIds],
    info: Any,
    max_tokens: int,
    sampling: dict[str, Any],
    seed: int,
) -> dict[int, Request]:
    """A request for each prompt, by index."""
    requests = {}
    for index, ((_, prompt), token_ids) in enumerate(zip(lines, encoded, strict=True)):
        params = sampling_of(prompt, sampling, info.sampling)
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=(seed << 32) + index)
        requests[index] = Request(
            prompt.id or str(index),
            token_ids,
            max_tokens if prompt.max_tokens is None else prompt.max_tokens,
            stop_token_ids=frozenset() if params.ignore_eos else info.eos_token_ids,
            sampling=params,
        )
    return requests


def sampling_of(prompt: PromptInput, sampling: dict[str, Any], advice: SamplingParams) -> SamplingParams:
    """A prompt's own settings over the run's over the model's; raises `ConfigError` for an invalid one."""
    own = {key: getattr(prompt, key) for key in SAMPLING_KEYS if getattr(prompt, key) is not None}
    values = {**sampling, **own}
    if "stop" in values:
        values["stop"] = tuple(values["stop"])
    if "logit_bias" in values:
        values["logit_bias"] = tuple(values["logit_bias"].items())
    return check_sampling(msgspec.structs.replace(advice, **values))


def encode(prompt: PromptInput, taken: Any) -> TokenIds:
    """A prompt's token ids, int32; raises `ConfigError` if there are none or one is outside the vocabulary."""
    if prompt.prompt_token_ids is not None:
        bad = [token for token in prompt.prompt_token_ids if not 0 <= token < taken.vocab_size]
        if bad:
            raise ConfigError(f"token id {bad[0]} is not among the model's {taken.vocab_size}")
        token_ids = np.array(prompt.prompt_token_ids, dtype=np.int32)
    elif taken.tokenizer is None:
        raise ConfigError("the model's folder has no tokenizer: give prompt_token_ids")
    elif prompt.messages is not None:
        token_ids = taken.tokenizer.encode_chat(prompt.messages)
    else:
        token_ids = taken.tokenizer.encode(prompt.prompt)
    if not len(token_ids):
        raise ConfigError("the prompt has no tokens")
    return token_ids


def _serve(
    engine: Engine,
    todo: dict[int, Request],
    answers: Answers,
    info: Any,
    summary: Summary,
    on_done: Callable[[int], None],
) -> None:
    began_s = time.perf_counter()
    by_number = {}
    for index, request in todo.items():
        request.arrival_s = engine.clock_s
        engine.submit(request)
        by_number[request.number] = (index, request)
    while engine.num_unfinished or by_number:
        record = engine.step()
        if record is None:
            break
        summary.elapsed_s = time.perf_counter() - began_s
        _count(summary, record)
        for refusal in record.refusals:
            index, request = by_number.pop(refusal.number)
            answers.add(index, _answer(request, info, FinishReason.REFUSED, error=refusal.reason))
            summary.finished += 1
        for finish in record.finishes:
            index, request = by_number.pop(finish.number)
            timings = {"ttft_s": finish.ttft_s, "e2e_s": finish.e2e_s, "tpot_s": finish.tpot_s}
            counts = {"cached_tokens": request.cached_tokens, "preemptions": finish.preemptions}
            answers.add(index, _answer(request, info, finish.reason, **timings, **counts))
            summary.finished += 1
            summary.prompt_tokens += request.num_prompt_tokens
            summary.reasons[finish.reason] = summary.reasons.get(finish.reason, 0) + 1
        if record.finishes or record.refusals:
            on_done(summary.finished)


def _count(summary: Summary, record: StepRecord) -> None:
    summary.preemptions = record.totals.preemptions
    summary.cached_tokens = record.totals.cached_tokens
    summary.output_tokens = record.totals.output_tokens
    summary.drafts = record.totals.draft_tokens
    summary.rejected_drafts = record.totals.rejected_draft_tokens
    columns = row_columns(record)
    chunked = (columns["tokens"] > 0) & (columns["flags"] & int(RowFlag.SAMPLED) == 0)
    summary.chunks += int(chunked.sum())


def _answer(request: Request, info: Any, reason: str, **more: Any) -> dict[str, Any]:
    token_ids = list(request.output_token_ids)
    params = request.sampling or SamplingParams()
    text = None
    if info.tokenizer is not None:
        text = info.tokenizer.decode(token_ids)
        if reason == FinishReason.STOP:
            cuts = [text.find(stop) for stop in params.stop if stop in text]
            text = text[: min(cuts)] if cuts else text
    return {
        "id": request.id,
        "prompt_tokens": request.num_prompt_tokens,
        "token_ids": token_ids,
        "text": text,
        "finish_reason": str(reason),
        **more,
    }
