"""Recognises a file by its content, and names the command that accepts it: for errors of commands that do not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.files.input_files import looks_like_case, odd_file
from schedtop.engine.offline.generate import read_prompt
from schedtop.engine.recording.arrivals import looks_like_recording
from schedtop.engine.runner.loading.model_files import GGUF_MAGIC
from schedtop.engine.scrape.recorded import is_page_recording
from schedtop.engine.sim.linear import read_calibration
from schedtop.engine.whatif.sweep_results import SweepRun
from schedtop.engine.workload.files import packing
from schedtop.engine.workload.open import READER_MODULES
from schedtop.engine.workload.recognise import open_trace
from schedtop.engine.workload.trace import Tally


class FileKind(NamedTuple):
    """What a file is, and what to do with it."""

    name: str
    use: str


RECORDING = FileKind("a recording", "schedtop info, explain, replay and whatif take it")
PAGES = FileKind("a recording of metrics pages", "schedtop replay takes it")
CASE = FileKind("a golden case", "schedtop verify takes it, and run, serve and whatif as their workload")
PROMPTS = FileKind("prompts", "schedtop generate takes it, and run, serve and whatif as their workload")
RESULTS = FileKind("results of a sweep", "schedtop sweep --results takes it")
EMPTY = FileKind("an empty file", "name another")

MOST_BYTES = 1 << 20
"""Bytes of the first line that are examined."""


def kind_of(path: Path) -> FileKind | None:
    """What the file at `path` is, as far as this program knows such files; None for others and for no file."""
    try:
        if odd_file(path) or not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.readline(MOST_BYTES)
    except (OSError, ValueError):
        return None
    if not head:
        return EMPTY
    if head.startswith(GGUF_MAGIC):
        return FileKind("a GGUF model", f"give it as --model {path}")
    if looks_like_recording(path):
        return RECORDING
    if is_page_recording(path):
        return PAGES
    if looks_like_case(path):
        return CASE
    if _reads(read_prompt, head):
        return PROMPTS
    if _reads(msgspec.json.Decoder(SweepRun).decode, head):
        return RESULTS
    return _trace(path) or _device(path) or _packed(head)


def _reads(read: Callable[[bytes], object], line: bytes) -> bool:
    try:
        read(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError):
        return False
    return True


def _trace(path: Path) -> FileKind | None:
    for module in READER_MODULES:
        importlib.import_module(module)
    try:
        trace = open_trace(path, Tally(str(path)))
    except ConfigError:
        return None
    return FileKind(f"a trace ({trace.format})", "run, serve, whatif and sweep take it as their workload")


def _device(path: Path) -> FileKind | None:
    try:
        read_calibration(path)
    except ConfigError:
        return None
    return FileKind("a device that calibrate wrote", f"give it as --device sim:@{path}")


def _packed(head: bytes) -> FileKind | None:
    how = packing(head)
    return None if how is None else FileKind(f"packed with {how}", "unpack it first")
