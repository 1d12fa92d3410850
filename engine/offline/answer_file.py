"""Answers to a file of prompts: saved one by one as they come, put in order once all are there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.files.output_files import private

PART_SUFFIX = ".part"


def is_complete(out_path: Path, count: int) -> bool:
    """Whether all answers are already there. Raises `ConfigError` if the file holds something else."""
    if odd := odd_file(out_path):
        raise ConfigError(odd)
    if out_path.is_dir():
        raise ConfigError(f"{out_path} is a folder: name a file")
    if not out_path.exists():
        return False
    with out_path.open("rb") as file:
        first = file.readline()
        lines = bool(first) + sum(1 for _ in file)
    if not _is_answer(first):
        raise ConfigError(f"{out_path} exists and holds no answers: name another file")
    if lines != count:
        raise ConfigError(f"{out_path} exists with {lines} lines for {count} prompts: name another file")
    return True


def _is_answer(line: bytes) -> bool:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "token_ids" in found and "finish_reason" in found


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    """A full disk, reported with the file's name."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; the answers before are kept, and the same command goes on"
        ) from None


class Answers:
    """Collects finished answers in a separate file until all are there, then writes them in order to `out_path`."""

    def __init__(self, out_path: Path, prompts: bytes, settings: dict[str, Any]) -> None:
        if not out_path.parent.is_dir():
            raise ConfigError(f"{out_path}: there is no folder {out_path.parent}")
        self._out_path = out_path
        self._part_path = out_path.with_name(out_path.name + PART_SUFFIX)
        stamp = hashlib.sha256(prompts)
        stamp.update(json.dumps(settings, sort_keys=True, default=list).encode())
        self._run = stamp.hexdigest()
        self._file: TextIO | None = None
        self.done: dict[int, dict[str, Any]] = self._read_part()

    def _read_part(self) -> dict[int, dict[str, Any]]:
        if odd := odd_file(self._part_path):
            raise ConfigError(odd)
        if not self._part_path.exists():
            return {}
        with self._part_path.open("rb") as file:
            self._claim(file)  # released at once: its answers go into a new file
        # Bytes: an answer's text may hold characters that end a line of text, such as U+2028.
        first, *lines = self._part_path.read_bytes().split(b"\n")
        head = json.dumps({"run": self._run}).encode()
        if first != head and (lines or not head.startswith(first)):
            raise ConfigError(
                f"{self._part_path} belongs to a run with other prompts or settings:"
                " remove it or name another output"
            )
        done: dict[int, dict[str, Any]] = {}
        for line in lines:
            try:
                entry = json.loads(line)
                done[entry.pop("index")] = entry
            except ValueError:
                break  # the last line of a run that was killed while writing
        return done

    def __enter__(self) -> Answers:
        whole = self._part_path.with_name(self._part_path.name + "ial")
        with _kept(whole):
            self._file = open(whole, "a", encoding="utf-8", opener=private)
            self._claim(self._file)
            self._file.truncate(0)
            self._write({"run": self._run})
            for index, answer in self.done.items():
                self._write({"index": index, **answer})
            os.replace(whole, self._part_path)  # only once everything that was kept is back in it
        return self

    def _claim(self, file: IO[Any]) -> None:
        """Two runs writing to one file would lose each other's answers. Raises `ConfigError` for the second."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{self._part_path}: another run is writing it; wait for its end or name another output"
            ) from None

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def add(self, index: int, answer: dict[str, Any]) -> None:
        """Save one answer; it is on disk before the next step."""
        self.done[index] = answer
        with _kept(self._part_path):
            self._write({"index": index, **answer})

    def finish(self, count: int) -> None:
        """Write all answers, in order, under the final name."""
        whole = self._part_path.with_name(self._part_path.name + "ial")
        with _kept(whole), open(whole, "w", encoding="utf-8", opener=private) as file:
            file.writelines(json.dumps(self.done[index], ensure_ascii=False) + "\n" for index in range(count))
        with _kept(self._out_path):
            os.replace(whole, self._out_path)
        self._part_path.unlink(missing_ok=True)

    def _write(self, entry: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()
