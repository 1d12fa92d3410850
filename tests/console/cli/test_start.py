"""The program as it is installed: streams that are closed or full, Ctrl+C before and after the work."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from schedtop.console.cli import open_console
from schedtop.console.cli.main import main

START = "import sys; from schedtop.console.cli.start import program; sys.argv[0] = 'schedtop'; program()"


def shell(redirections: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", START, *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("arguments", [("run", "--limit", "1"), ("--version",), ("--help",)])
def test_a_closed_stdout_is_told(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = shell(">&-", tmp_path, *arguments)
    assert (ended.returncode, ended.stderr) == (2, "schedtop: standard output: Bad file descriptor\n")


def test_a_closed_stdin_or_stderr_is_no_matter(tmp_path: Path) -> None:
    for redirection in ("<&-", "2>&-", "<&- 2>&-"):
        ended = shell(redirection, tmp_path, "run", "--limit", "1", "--json")
        assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.startswith("{")
    assert shell("<&- 2>&-", tmp_path, "run", "--limit", "0").returncode == 2


def test_a_recording_is_not_taken_for_a_stream(tmp_path: Path) -> None:
    assert shell("<&- >&- 2>&-", tmp_path, "run", "--limit", "1", "--record", "a.rec").returncode == 2
    assert "requests" in shell("", tmp_path, "info", "a.rec").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    for arguments in (("run", "--limit", "1"), ("--help",)):
        ended = shell(">/dev/full", tmp_path, *arguments)
        assert (ended.returncode, ended.stderr) == (2, "schedtop: standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--max-loras 2 --encoder-budget 100",
            "max_loras=2: adapters cannot be served beside images (encoder_budget)",
        ),
        ("--kv-host-memory 1", "--kv-host-memory 1: must be at least 2097152 (one block)"),
    ],
)
def test_settings_that_an_engine_cannot_have_end_the_console_with_one_line(flags: str, line: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.environ.update(TERM="xterm-256color", COLUMNS="140", LINES="45")
        os.execv(sys.executable, [sys.executable, "-c", START, "--device=sim:llama-3.1-8b@h100", *flags.split()])
    written = b""
    with suppress(OSError):  # at its end
        while more := os.read(terminal, 1 << 16):
            written += more
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 2 and "STOPPED" not in (shown := written.decode())
    assert shown.endswith(f"schedtop: {line}\r\n")


@pytest.mark.parametrize("module", ["schedtop.console.cli.main", "schedtop.engine.serving.quiet_exit"])
def test_ctrl_c_while_modules_load_ends_without_a_traceback(module: str, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever runs this may ignore it
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.meta_path.insert(0, Interrupt())\n{START}"
    )
    ended = subprocess.run([sys.executable, "-c", code, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_after_the_work_changes_nothing(tmp_path: Path) -> None:
    code = f"import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT); {START}"
    ended = subprocess.run([sys.executable, "-c", code, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.startswith("schedtop ")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "a.rec"
    with pytest.raises(SystemExit) as ended:
        main(["run", "--limit", "20", "--record", str(path)])
    assert not ended.value.code
    return path


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        *((f"export a.rec --to {name} -o out", "out") for name in ("jsonl", "csv", "parquet", "perfetto")),
        ("calibrate a.rec -o out", "out"),
        ("sweep mixed --limit 1 --vary max_num_seqs=2,3,4,5 --jobs 1 --results out", "out"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(arguments: str, file: str, recording: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    if "parquet" in arguments:
        pytest.importorskip("pyarrow")
    shutil.copy(recording, tmp_path)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY)); {START}"
    ended = subprocess.run(
        [sys.executable, "-c", limited, *arguments.split()], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (2, f"schedtop: {file}: File too large\n")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"a.rec", "out"} if "sweep" in arguments else {"a.rec"})


def test_a_run_whose_recording_is_cut_short_reports_and_says_so(tmp_path: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY)); {START}"
    ended = subprocess.run(
        [sys.executable, "-c", limited, "run", "--limit", "20", "--record", "a.rec"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1 and "20 finished" in ended.stdout
    assert "recording" in ended.stderr and "cannot write a.rec: File too large" in ended.stderr


def test_the_guided_minute_is_offered_where_no_flag_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[bool] = []
    monkeypatch.setattr(open_console, "open_console", lambda flags, bare: offered.append(bare) or 0)
    for arguments in ([], ["--rate", "2"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert offered == [True, False]
