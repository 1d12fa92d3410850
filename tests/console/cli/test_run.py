"""`schedtop run` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from schedtop.engine.recording import Recording, RecordingError

RUN = "import sys; from schedtop.console.cli.start import program; sys.argv[0] = 'schedtop'; program()"


def num_recorded(path: Path) -> int:
    try:
        with Recording(path) as recording:
            return recording.num_records
    except RecordingError:
        return 0  # not begun, or nothing flushed yet


FLAGS = ["--device", "sim:llama-3.1-8b@h100", "--rate", "20", "--real-time", "--duration", "3600", "--json"]


def defaults() -> None:
    """A shell that starts tests in the background makes their children ignore Ctrl+C."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(path: Path, *flags: str) -> subprocess.Popen[str]:
    """A run that records, and has recorded some steps."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", *FLAGS, *flags, "--record", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=defaults,
    )
    deadline_s = time.monotonic() + 60
    while num_recorded(path) < 20 and process.poll() is None and time.monotonic() < deadline_s:
        pass
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_reports_what_it_served(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "run.schedtop"
    process = started(path)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "interrupted at" in errors and "Traceback" not in errors
    with Recording(path) as recording:
        assert recording.truncated is None
        assert json.loads(out)["steps"] == recording.num_steps >= 20


def test_a_recording_that_was_removed_meanwhile_is_told_and_code_1(tmp_path: Path) -> None:
    path = tmp_path / "run.schedtop"
    process = started(path, "--duration", "4")
    path.unlink()
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    beside = tmp_path / "run-2.schedtop"
    assert f"{path} was removed" in errors and str(beside) in errors
    with Recording(beside) as recording:
        assert recording.truncated is None and json.loads(out)["steps"] == recording.num_steps
