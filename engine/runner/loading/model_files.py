"""From a model's name to its files, and every refusal that needs no torch: what is cheap is reported at once."""

from __future__ import annotations

import json
import mmap
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.runner.loading.pull import PULLABLE, pulled_path
from schedtop.engine.runner.models.families import FAMILIES

DEFAULT_MODEL = "smollm2"
"""Served when only a device is named."""

NEEDS = ("torch", "transformers", "gguf", "accelerate")
"""Modules of the `engine` extra without which no model is loaded."""

GGUF_MAGIC = b"GGUF"
ROPE_FACTORS, MOST_HEAD_BYTES = b"rope_freqs.weight", 64 << 20
"""A tensor that transformers passes over, and how far into a file the names of tensors are looked for."""


class ModelMissingError(ConfigError):
    """A model that `schedtop pull` would fetch."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is: a folder, with its GGUF file if it has one; or a hub id whose files are still to be fetched."""

    name: str
    source: str
    gguf: str | None = None
    on_hub: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """What every `from_pretrained` needs to know about the files."""
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
        raise type(error)(f"--draft-model: {error}") from None


def check_dtype(dtype: str, device: str) -> None:
    """Raises `ConfigError` for a dtype that a kind of device does not serve."""
    if dtype == "float16" and device == "cpu":
        raise ConfigError("dtype float16 is slow and coarse on a CPU: use bfloat16 or float32")


_HUB_ID = re.compile(
    r"(?=.{3,96}$)(?!.*(?:--|\.\.|\.git$))[a-z0-9](?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII | re.IGNORECASE
)
"""OWNER/NAME as the hub gives them out."""


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
            check_folder(name, path)
            return ModelFiles(path.resolve().name, str(path))
        if path.is_file():
            _check_gguf(path)
            return ModelFiles(path.stem, str(path.parent), path.name)
    except OSError as error:
        raise ConfigError(f"model {name}: {error.strerror}: {error.filename}") from None
    except (ValueError, RuntimeError) as error:  # a name that no file system has
        if isinstance(error, ConfigError):
            raise
    if _HUB_ID.fullmatch(name):
        return ModelFiles(name, name, on_hub=True)
    known = ", ".join(PULLABLE)
    raise ConfigError(f"no model {name!r}: give a model folder, a .gguf file, a hub id (owner/name) or {known}")


def check_folder(name: str, path: Path) -> None:
    """Raises `ConfigError` for a folder without what makes a model of it; reads its small files only."""
    config = path / "config.json"
    if not config.is_file():
        found = sorted(path.glob("*.gguf"))
        hint = f"; name the file: {found[0]}" if found else ""
        raise ConfigError(f"{name}: no config.json in this folder, so it is not a model{hint}")
    values = _read_json(config)
    if not isinstance(values.get("model_type"), str):
        raise ConfigError(f"{config}: it names no model_type, so it is not a model's configuration")
    check_model_type(name, values["model_type"])
    if not any(path.glob("*.safetensors")):
        other = "; weights in .bin files are not loaded: convert them" if any(path.glob("*.bin")) else ""
        raise ConfigError(f"{name}: no .safetensors weights in this folder{other}")
    index = path / "model.safetensors.index.json"
    parts = _parts(_read_json(index)) if index.is_file() else []
    missing = [part for part in parts if not (path / part).is_file()]
    if missing:
        raise ConfigError(f"{name}: {len(missing)} files of its weights are missing ({missing[0]}): fetch it again")


def _parts(index: dict[str, Any]) -> list[str]:
    """The files that an index of weights names."""
    places = index.get("weight_map")
    return sorted({str(part) for part in places.values()}) if isinstance(places, dict) else []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error}): fetch the model again") from None
    return values if isinstance(values, dict) else {}


def check_model_type(name: str, model_type: str) -> None:
    """Raises `ConfigError` for an architecture that is not served."""
    if model_type not in FAMILIES:
        served = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"model {name}: architecture {model_type!r} is not served; these are: {served}")


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise ConfigError(f"{path}: not a GGUF file: give a model folder or a .gguf file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(ROPE_FACTORS, 0, MOST_HEAD_BYTES) >= 0:
                raise ConfigError(
                    f"{path}: its rotary positions have factors of their own (rope_freqs, as in Llama 3.1), which"
                    " are not read from GGUF files: give the model's folder or hub id"
                )
