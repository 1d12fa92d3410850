"""A GGUF file as a model folder: expanded once, so that later starts take half a second, not 16 (SmolLM2)."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.runner.loading.model_files import ModelFiles
from schedtop.engine.runner.loading.pull import WORK_PREFIX, model_folder
from schedtop.engine.runner.loading.tokenizer import load_tokenizer
from schedtop.engine.runner.loading.weights import load_config, load_weights, reading
from transformers import AutoModelForCausalLM

MOST_KEPT_BYTES = 1 << 30
"""A larger file is expanded at every start: several times its size in the user's cache is not ours to take."""


def converted_folder(files: ModelFiles, dtype: torch.dtype) -> Path | None:
    """The place of a GGUF file's weights in `dtype`, converted or not; None if they are not kept.

    A pulled model has a folder of its own, any other file one named by its content.
    """
    assert files.gguf is not None
    home = model_folder(files.name)
    if Path(files.source) != home:
        path = Path(files.source) / files.gguf
        if path.stat().st_size > MOST_KEPT_BYTES:
            return None
        with path.open("rb") as file:
            home = model_folder(hashlib.file_digest(file, "sha256").hexdigest()[:32])
    return home / str(dtype).removeprefix("torch.")


def convert(files: ModelFiles, dtype: torch.dtype) -> ModelFiles:
    """A GGUF file's model as a folder with weights in `dtype`, made now if it is not there: whole or not at all.

    The file itself, where the cache has no room for it. Raises `ConfigError` if it cannot be read.
    """
    folder = converted_folder(files, dtype)
    if folder is None:
        return files
    converted = ModelFiles(files.name, str(folder))
    if folder.is_dir():
        return converted
    config = load_config(files)
    model = load_weights(files, config, torch.float32, torch.device("cpu"))
    tokenizer = load_tokenizer(files)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{os.getpid()}-", dir=folder.parent))
        try:
            with reading(files, "weights"):
                _plain(model, config, dtype).save_pretrained(work)
                tokenizer.save(work)
            os.replace(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except (OSError, ConfigError):  # whatever writes safetensors has errors of its own
        return converted if folder.is_dir() else files  # another process was faster, or the disk is full
    return converted


def _plain(model: Any, config: Any, dtype: torch.dtype) -> Any:
    """The same weights in a model that no longer knows of the file's packing."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain.to(dtype)
