"""Text to token ids and back: by the model's tokenizer, or by stand-ins for a simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.handoff.request import TokenIds
from schedtop.engine.handoff.stop_strings import StopStrings
from schedtop.engine.sim.spec import PREFIX
from schedtop.engine.workload.tokens import text_tokens

Message = dict[str, Any]

_ONSETS = ["b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z"]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ou", "ee"]
SYLLABLES = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]


class OutputText(Protocol):
    """The text of one answer as it grows; `stopped` is the stop string that is complete."""

    @property
    def stopped(self) -> str | None: ...
    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class Texts(Protocol):
    """How a model reads and writes. Encoding raises `ConfigError` with one line."""

    def encode(self, text: str, special: bool = True) -> TokenIds: ...
    def encode_chat(self, messages: Sequence[Message]) -> TokenIds: ...
    def output(self, stop: tuple[str, ...]) -> OutputText: ...
    def token(self, token_id: int) -> str: ...


def open_texts(config: EngineConfig, vocab_size: int) -> Texts:
    """What suits the engine that `config` started. Raises `ConfigError` where the model has no tokenizer."""
    if config.device.startswith(PREFIX):
        return StandInTexts(vocab_size)
    from schedtop.engine.runner.loading.tokenizer import ModelTexts  # late: it takes seconds

    return ModelTexts.open(config)


class StandInTexts:
    """For a device without a model: equal beginnings have equal tokens, and outputs are meaningless words."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def encode(self, text: str, special: bool = True) -> TokenIds:
        """One id per four bytes, rounded up; there are no special tokens."""
        return text_tokens(text.encode(errors="replace"), self._vocab_size)

    def encode_chat(self, messages: Sequence[Message]) -> TokenIds:
        """Every message in turn, each from a token of its own on, so that a shared history has equal tokens."""
        pieces = [self.encode(f"{message.get('role')}: {message.get('content')}") for message in messages]
        return np.concatenate([*pieces, self.encode("assistant:")])

    def output(self, stop: tuple[str, ...]) -> OutputText:
        return _StandInOutput(self, stop)

    def token(self, token_id: int) -> str:
        """A word of two or three syllables, and the blank before it."""
        first, rest = token_id % 128, token_id // 128
        second, third = rest % 128, rest // 128
        return f" {SYLLABLES[first]}{SYLLABLES[second]}{SYLLABLES[third % 128] if third else ''}"


class _StandInOutput:
    def __init__(self, texts: StandInTexts, stop: tuple[str, ...]) -> None:
        self._texts = texts
        self._stops = StopStrings(stop)

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    def push(self, token_id: int) -> str:
        return self._stops.push(self._texts.token(token_id))

    def flush(self) -> str:
        return self._stops.flush()


def message_text(message: Message) -> Message:
    """A message whose content is one text; parts are joined by line ends. Raises `ConfigError` for what is none."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise ConfigError("a message has no role: name one, such as user")
    if not isinstance(content, list):
        if content is not None and not isinstance(content, str):
            raise ConfigError(f"a message's content is {type(content).__name__}: only text is served")
        return message
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ConfigError(f"a part of a message is {kind!s:.40}: only text is served")
    return {**message, "content": "\n".join(part["text"] for part in content)}
