"""Copying says what is true: the terminal, tmux, or a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from schedtop.console.terminal import clipboard
from seat import PATIENCE_S, Seat, seated


def _tmux(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmux that we are inside of; it may take its time."""
    program = folder / "tmux"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    monkeypatch.setattr(clipboard, "WITHIN_S", PATIENCE_S)


async def _shown(seat: Seat, words: str) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while words not in seat.text and time.monotonic() < until_s:
        await seat.pilot.pause(0.01)
    return words in seat.text


async def test_inside_tmux_tmux_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tmux(tmp_path, f'echo "$@" > {tmp_path}/asked; cat > {tmp_path}/got', monkeypatch)
    async with seated(output_dir=tmp_path) as seat:
        await seat.press("3", "y")
        assert await _shown(seat, "to the tmux buffer")
        assert (tmp_path / "asked").read_text() == "load-buffer -w -\n"
        assert (tmp_path / "got").read_text().startswith("number=")
        assert not seat.app.clipboard, "not through the terminal as well"


async def test_a_tmux_that_takes_nothing_leaves_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tmux(tmp_path, "exit 1", monkeypatch)
    async with seated(output_dir=tmp_path) as seat:
        await seat.press("3", "y")
        assert await _shown(seat, "schedtop-copy.txt")
        assert "prompt=" in (tmp_path / "schedtop-copy.txt").read_text()


async def test_inside_screen_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STY", "1.pts-0.host")
    async with seated(output_dir=tmp_path) as seat:
        await seat.press("3", "y")
        assert "prompt=" in (tmp_path / "schedtop-copy.txt").read_text()


async def test_elsewhere_the_terminal_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TERM_PROGRAM", raising=False)
    async with seated(output_dir=tmp_path) as seat:
        assert "copied number=" in await seat.press("3", "y")
        assert seat.app.clipboard.startswith("number=") and not list(tmp_path.iterdir())
