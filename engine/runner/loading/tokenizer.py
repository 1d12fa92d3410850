"""Text to token ids and back, as the model's own files say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.handoff.request import TokenIds
from schedtop.engine.runner.detokenize import OutputText
from schedtop.engine.runner.loading.hub import fetch
from schedtop.engine.runner.loading.model_files import ModelFiles, look_up
from schedtop.engine.runner.loading.weights import reading
from tokenizers import Tokenizer as TokenTable
from transformers import AutoTokenizer

Message = dict[str, Any]


class Tokenizer:
    """A model's tokenizer. `table` is the fast tokenizer beneath it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.table: TokenTable = inner.backend_tokenizer

    @property
    def eos_token_id(self) -> int | None:
        token_id: int | None = self._inner.eos_token_id
        return token_id

    @property
    def has_chat_template(self) -> bool:
        return bool(self._inner.chat_template)

    def encode(self, text: str) -> TokenIds:
        """Token ids of a prompt, with the special tokens the model begins with: int32."""
        return np.array(self._inner(text)["input_ids"], dtype=np.int32)

    def encode_chat(self, messages: Sequence[Message]) -> TokenIds:
        """Token ids of a conversation by the model's chat template, ready for the answer: int32.

        Raises `ConfigError` if the model has no template or the template refuses the messages.
        """
        return self.encode_plain(self.render_chat(messages), special=False)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The text of a conversation by the chat template, special tokens included. Raises as `encode_chat` does."""
        if not self.has_chat_template:
            raise ConfigError("the model has no chat template: give a prompt instead of messages")
        try:
            text: str = self._inner.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is code from the model's files
            raise ConfigError(f"the chat template refuses the messages: {' '.join(str(error).split())}") from None
        return text

    def encode_plain(self, text: str, special: bool = True) -> TokenIds:
        """As `encode`, but safe from several threads; `special`: with the special tokens the model begins with."""
        return np.array(self.table.encode(text, add_special_tokens=special).ids, dtype=np.int32)

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a model folder."""
        self._inner.save_pretrained(folder)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self.table.decode(list(token_ids), skip_special_tokens=True)
        return text


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The model's tokenizer. Raises `ConfigError` if there is none or it is not a fast one."""
    with reading(files, "tokenizer"):
        inner = AutoTokenizer.from_pretrained(files.source, **files.arguments)
    if not getattr(inner, "is_fast", False):
        raise ConfigError(f"model {files.name}: only tokenizers with a tokenizer.json are served")
    return Tokenizer(inner)


class ModelTexts:
    """A model's tokenizer as the HTTP server uses it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def open(cls, config: EngineConfig) -> ModelTexts:
        """The tokenizer of the config's model, which the engine has loaded. Raises `ConfigError`."""
        return cls(load_tokenizer(fetch(look_up(config))))

    def encode(self, text: str, special: bool = True) -> TokenIds:
        return self._tokenizer.encode_plain(text, special)

    def encode_chat(self, messages: Sequence[Message]) -> TokenIds:
        return self._tokenizer.encode_chat(messages)

    def output(self, stop: tuple[str, ...]) -> OutputText:
        return OutputText(self._tokenizer.table, stop)

    def token(self, token_id: int) -> str:
        """The text of one token by itself, special ones too."""
        text: str = self._tokenizer.table.decode([token_id], skip_special_tokens=False)
        return text
