"""Text to token ids and back, as the model's own files say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import TokenIds
from schedtop.engine.runner.loading.model_files import ModelFiles
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
        if not self.has_chat_template:
            raise ConfigError("the model has no chat template: give a prompt instead of messages")
        try:
            text = self._inner.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is code from the model's files
            raise ConfigError(f"the chat template refuses the messages: {' '.join(str(error).split())}") from None
        return np.array(self._inner(text, add_special_tokens=False)["input_ids"], dtype=np.int32)

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
