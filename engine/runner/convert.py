"""A pulled GGUF file as a model folder: expanded once, so that every later start takes a second, not a minute."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from schedtop.engine.config import ConfigError
from schedtop.engine.runner.files import ModelFiles
from schedtop.engine.runner.pull import WORK_PREFIX, model_folder
from schedtop.engine.runner.tokenizer import load_tokenizer
from schedtop.engine.runner.weights import load_config, load_weights, reading
from transformers import AutoModelForCausalLM


def converted_folder(name: str, dtype: torch.dtype) -> Path:
    """Where a pulled model's weights in `dtype` lie, whether they are there or not."""
    return model_folder(name) / str(dtype).removeprefix("torch.")


def convert(files: ModelFiles, dtype: torch.dtype) -> ModelFiles:
    """The pulled model as a folder with weights in `dtype`, made now if it is not there: whole or not at all."""
    folder = converted_folder(files.name, dtype)
    converted = ModelFiles(files.name, str(folder))
    if folder.is_dir():
        return converted
    config = load_config(files)
    model = load_weights(files, config, torch.float32, torch.device("cpu"))
    tokenizer = load_tokenizer(files)
    try:
        work = Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{os.getpid()}-", dir=folder.parent))
        try:
            with reading(files, "weights"):
                _plain(model, config, dtype).save_pretrained(work)
                tokenizer.save(work)
            os.replace(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process was faster
            raise ConfigError(f"cannot write to the model cache: {error.strerror}: {error.filename}") from None
    return converted


def _plain(model: Any, config: Any, dtype: torch.dtype) -> Any:
    """The same weights in a model that no longer knows of the file's packing."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain.to(dtype)
