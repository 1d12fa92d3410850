"""Files that are one JSON document: reports of guidellm, conversations of ShareGPT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from schedtop.engine.workload.fields import seconds
from schedtop.engine.workload.json_lines import positive
from schedtop.engine.workload.tokens import TEXT_BYTES_PER_TOKEN
from schedtop.engine.workload.trace import BadRowError, Tally, Trace, TraceRow

GUIDELLM = "guidellm report"
SHAREGPT = "ShareGPT JSON"

_ASKING, _ANSWERING = frozenset(("human", "user")), frozenset(("gpt", "assistant", "chatgpt", "bard", "bing"))
_NO_PAIR = "conversation that does not begin with a question and its answer"

Document = tuple[int, Any]
"""The line on which it begins, and its content."""


def guidellm_trace(documents: Iterable[Document], tally: Tally) -> Trace:
    """The requests that every benchmark of the reports saw answered, at the times it sent them."""
    notes = ["benchmarks of one file follow each other by their own clock"]
    return Trace(GUIDELLM, _guidellm_rows(documents, tally), notes=notes)


def _guidellm_rows(documents: Iterable[Document], tally: Tally) -> Iterator[TraceRow]:
    place = 0
    for line, report in documents:
        for group, ask in _asks(report):
            place += 1
            if group != "successful":
                tally.drop(f"{group} request", line)
                continue
            try:
                time_s = seconds(ask.get("request_start_time"), "request_start_time")
                yield TraceRow(place, time_s, positive(ask, "prompt_tokens"), positive(ask, "output_tokens"))
            except BadRowError as error:
                tally.reject(line, error)


def _asks(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each request of a report with the list it is in; what is not shaped like one is skipped."""
    for benchmark in _list(report.get("benchmarks")):
        requests = benchmark.get("requests")
        for group in ("successful", "incomplete", "errored"):
            for ask in _list(requests.get(group) if isinstance(requests, dict) else None):
                yield group, ask


def sharegpt_trace(documents: Iterator[Document], tally: Tally) -> Trace | None:
    """The first question of each conversation; its answer says how long the output is. None for lists of others."""
    first = next(documents, None)
    if first is None or not any("conversations" in entry for entry in _list(first[1])[:100]):
        return None
    documents = chain([first], documents)
    note = f"{TEXT_BYTES_PER_TOKEN} bytes of an answer stand for a token, and of a prompt without a tokenizer"
    return Trace(SHAREGPT, _sharegpt_rows(documents, tally), timed=False, texts=True, notes=[note])


def _sharegpt_rows(documents: Iterable[Document], tally: Tally) -> Iterator[TraceRow]:
    place = 0
    for line, conversations in documents:
        for conversation in _list(conversations):
            place += 1
            pair = _pair(_list(conversation.get("conversations")))
            if pair is None:
                tally.drop(_NO_PAIR, line)
                continue
            question, answer = pair
            output = -(-len(answer.encode("utf-8", "replace")) // TEXT_BYTES_PER_TOKEN)
            yield TraceRow(place, None, 0, output, text=question.encode("utf-8", "replace"))


def _pair(turns: list[dict[str, Any]]) -> tuple[str, str] | None:
    """The question and the answer that a conversation begins with."""
    if len(turns) < 2 or str(turns[0].get("from")) not in _ASKING or str(turns[1].get("from")) not in _ANSWERING:
        return None
    question, answer = turns[0].get("value"), turns[1].get("value")
    if not isinstance(question, str) or not isinstance(answer, str):
        return None
    return (question, answer) if question and answer else None


def _list(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
