"""`schedtop run` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from schedtop.engine.recording import Recording, RecordingError

RUN = "import sys; from schedtop.console.cli.start import program; sys.argv[0] = 'schedtop'; program()"


def num_recorded(path: Path) -> int:
    try:
        with Recording(path) as recording:
            return recording.num_records
    except RecordingError:
        return 0  # not begun, or nothing flushed yet


def test_an_interrupted_run_reports_what_it_served(tmp_path: Path) -> None:
    path = tmp_path / "run.schedtop"
    flags = ["--device", "sim:llama-3.1-8b@h100", "--rate", "20", "--real-time", "--duration", "3600"]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", *flags, "--record", str(path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts tests in the background makes their children ignore Ctrl+C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline_s = time.monotonic() + 60
    while num_recorded(path) < 20 and process.poll() is None and time.monotonic() < deadline_s:
        pass
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted at" in errors and "Traceback" not in errors
    with Recording(path) as recording:
        assert recording.truncated is None
        assert json.loads(out)["steps"] == recording.num_steps >= 20
