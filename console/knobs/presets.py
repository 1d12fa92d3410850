"""Named sets of knob values: built-in ones, and the operator's own in `presets.toml`."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedtop.engine.contract.files.output_files import make_folder, whole_file
from schedtop.engine.contract.knobs import BY_NAME, KnobError, KnobValue, check_value

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

FILE = "presets.toml"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class PresetError(ValueError):
    """A preset that cannot be used or kept; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class KnobPreset:
    """`values` by knob name; `own` ones can be overwritten."""

    name: str
    words: str
    values: Mapping[str, KnobValue]
    own: bool = False


BUILT_IN: tuple[KnobPreset, ...] = (
    KnobPreset(
        "smooth",
        "even ITL: small steps, long prompts in small chunks",
        {"max_num_scheduled_tokens": 512, "long_prefill_token_threshold": 256},
    ),
    KnobPreset(
        "drain",
        "prompts first: whole budget, no chunk limit",
        {"max_num_scheduled_tokens": None, "long_prefill_token_threshold": 0, "watermark": 0.0},
    ),
    KnobPreset(
        "steady",
        "few preemptions: headroom, whole sequences only",
        {"watermark": 0.05, "scheduler_reserve_full_isl": True},
    ),
)


def load_presets(folder: Path | None) -> tuple[list[KnobPreset], list[str]]:
    """The built-in presets, then those of `folder`; and why some were left out."""
    found, problems = list(BUILT_IN), list[str]()
    path = folder / FILE if folder is not None else None
    if path is None or not path.is_file():
        return found, problems
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return found, [f"{FILE} cannot be read: {error.strerror or error}"]
    except (ValueError, RecursionError) as error:
        return found, [f"{FILE} {_fault(error)}"]
    for name, values in raw.items():
        try:
            found.append(KnobPreset(name, "your own", _checked(name, values), own=True))
        except PresetError as error:
            problems.append(str(error))
    return found, problems


def _checked(name: str, values: Any) -> dict[str, KnobValue]:
    if not isinstance(values, dict):
        raise PresetError(f"{FILE}: {name} must be a table of knobs")
    try:
        return {knob: check_value(knob, None if value == "auto" else value) for knob, value in values.items()}
    except KnobError as error:
        raise PresetError(f"{FILE}: {name}: {error}") from None


def save_preset(folder: Path, name: str, values: Mapping[str, KnobValue]) -> Path:
    """Add or replace one of the operator's presets; all else in the file stays as it was written.

    Raises `PresetError` for a name it cannot have and for a file that cannot be kept so, `OSError`.
    """
    import tomlkit  # slow to load, and only saving needs it

    check_name(name)
    path = (folder / FILE).resolve()  # keep a symlink a symlink
    document = _document(path)
    table = document.get(name)
    if not isinstance(table, tomlkit.items.Table):
        table = document[name] = tomlkit.table()
    table.update({knob: "auto" if value is None else value for knob, value in values.items() if knob in BY_NAME})
    make_folder(path.parent)
    mode = path.stat().st_mode if path.exists() else None
    with whole_file(path) as file:
        file.write(tomlkit.dumps(document).encode())
        if mode is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
    return folder / FILE


def _document(path: Path) -> TOMLDocument:
    import tomlkit

    try:
        return tomlkit.parse(path.read_bytes())
    except FileNotFoundError:
        return tomlkit.document()
    except (ValueError, RecursionError) as error:
        raise PresetError(f"nothing was saved: {FILE} {_fault(error)}; repair it or move it away") from None


def _fault(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return f"is not valid TOML: {error}"


def check_name(name: str) -> None:
    """Raises `PresetError` for a name that an operator's preset cannot have."""
    if not _NAME.fullmatch(name):
        raise PresetError(f"{name!r}: write letters, digits, - and _, at most 32")
    if any(preset.name == name for preset in BUILT_IN):
        raise PresetError(f"{name} comes with the console: choose another name")
