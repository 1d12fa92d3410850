"""From a model's name to its files, and every refusal that needs no torch: what is cheap is told at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schedtop.engine.config import ConfigError, EngineConfig
from schedtop.engine.runner.pull import PULLABLE, pulled_path

DEFAULT_MODEL = "smollm2"
"""Served when only a device is named."""

NEEDS = ("torch", "transformers", "gguf", "accelerate")
"""Modules of the `engine` extra without which no model is loaded."""

LEAN_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
MODEL_TYPES = LEAN_MODEL_TYPES | {"gemma2", "gemma3_text", "smollm3"}
"""Architectures that are served, as `model_type` of a configuration names them."""

GGUF_MAGIC = b"GGUF"


class ModelMissingError(ConfigError):
    """A model that `schedtop pull` would fetch."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies: a folder or hub id in transformers' sense, and the GGUF file in it, if it is one."""

    name: str
    source: str
    gguf: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What every `from_pretrained` is told about the files."""
        gguf = {} if self.gguf is None else {"gguf_file": self.gguf}
        return {"trust_remote_code": False, **gguf}


def check_extra() -> None:
    """Raises `ConfigError` where the `engine` extra is not installed."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"running models needs the engine extra ({missing[0]} is missing): pip install 'schedtop[engine]'"
        )


def look_up(config: EngineConfig) -> ModelFiles:
    """The files of the config's model, which is for a real device. Raises `ConfigError`, for its draft model too."""
    check_dtype(config.dtype, config.device)
    if config.draft_model is not None:
        look_up_draft(config.draft_model)
    return find_model(DEFAULT_MODEL if config.model is None else config.model)


def look_up_draft(name: str) -> ModelFiles:
    """The files of a draft model. Raises `ConfigError`."""
    try:
        return find_model(name)
    except ConfigError as error:
        raise ConfigError(f"--draft-model: {error}") from None


def check_dtype(dtype: str, device: str) -> None:
    """Raises `ConfigError` for a dtype that a kind of device does not serve."""
    if dtype == "float16" and device == "cpu":
        raise ConfigError("dtype float16 is slow and coarse on a CPU: use bfloat16 or float32")


def find_model(name: str) -> ModelFiles:
    """The files of a model given as folder, GGUF file, hub id or pullable name. Raises `ConfigError`."""
    if name in PULLABLE:
        path = pulled_path(name)
        if path is None:
            raise ModelMissingError(f"model {name} is not here yet: run `schedtop pull {name}`")
        return ModelFiles(name, str(path.parent), path.name)
    try:
        path = Path(name).expanduser()
        if name and path.is_dir():
            _check_folder(name, path)
            return ModelFiles(path.resolve().name, str(path))
        if path.is_file():
            _check_gguf(path)
            return ModelFiles(path.stem, str(path.parent), path.name)
    except OSError as error:
        raise ConfigError(f"model {name}: {error.strerror}: {error.filename}") from None
    except (ValueError, RuntimeError) as error:  # a name that no file system has
        if isinstance(error, ConfigError):
            raise
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return ModelFiles(name, name)
    known = ", ".join(PULLABLE)
    raise ConfigError(f"no model {name!r}: give a model folder, a .gguf file, a hub id (owner/name) or {known}")


def _check_folder(name: str, path: Path) -> None:
    config = path / "config.json"
    if not config.is_file():
        found = sorted(path.glob("*.gguf"))
        hint = f"; name the file: {found[0]}" if found else ""
        raise ConfigError(f"{name}: no config.json in this folder, so it is no model{hint}")
    try:
        values = json.loads(config.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{config}: not valid JSON ({error}): fetch the model again") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ConfigError(f"{config}: it names no model_type, so it is no model's configuration")
    check_model_type(path.resolve().name, values["model_type"])
    if not any(path.glob("*.safetensors")):
        other = "; weights in .bin files are not loaded: convert them" if any(path.glob("*.bin")) else ""
        raise ConfigError(f"{name}: no .safetensors weights in this folder{other}")


def check_model_type(name: str, model_type: str) -> None:
    """Raises `ConfigError` for an architecture that is not served."""
    if model_type not in MODEL_TYPES:
        served = ", ".join(sorted(MODEL_TYPES))
        raise ConfigError(f"model {name}: architecture {model_type!r} is not served; these are: {served}")


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise ConfigError(f"{path}: not a GGUF file: give a model folder or a .gguf file")
