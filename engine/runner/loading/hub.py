"""A hub id's files: from the local hub cache, or downloaded into it once."""

from __future__ import annotations

import sys
from pathlib import Path

from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils.tqdm import disable_progress_bars
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.runner.loading.model_files import ModelFiles, check_folder

WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
"""Configuration, weights and tokenizer; never code."""

ANSWER_WITHIN_S = 10.0


def fetch(files: ModelFiles) -> ModelFiles:
    """`files` with a folder in place of a hub id; only what is not whole in the local cache needs the network.

    Raises `ConfigError` for a name that the hub does not give out, a hub out of reach, or files that are not a model.
    """
    if not files.on_hub:
        return files
    try:
        folder = snapshot_download(files.source, allow_patterns=WANTED, local_files_only=True)
        check_folder(files.name, Path(folder))
    except (LocalEntryNotFoundError, HFValidationError, ConfigError):
        folder = _download(files.source)
        check_folder(files.name, Path(folder))
    return ModelFiles(files.name, folder)


def _download(name: str) -> str:
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        model_info(name, timeout=ANSWER_WITHIN_S)  # asks once, where a download would keep asking for half a minute
        return snapshot_download(name, allow_patterns=WANTED)
    except HfHubHTTPError as error:
        why = f"the hub answers {error.response.status_code}"
    except Exception as error:  # whatever the hub's HTTP library raises
        why = " ".join(str(error).split())[:160] or type(error).__name__
    raise ConfigError(
        f"model {name}: not in the local hub cache and not to be had from the hub ({why}): check name and network"
    )
