"""`info`, `export`, `verify`, `diff`, `check` and `replay` as they are typed, on files good and bad."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.main import main

GOLDEN_CASE = '{"config": {"num_blocks": 10, "block_size": 16}, "requests": []}'


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "run.schedtop"
    with pytest.raises(SystemExit) as ended:
        main(["run", "--workload", "pressure", "--num-blocks", "900", "--duration", "6", "--record", str(path)])
    assert not ended.value.code
    return path


@pytest.fixture(scope="module")
def cut(good: Path) -> Path:
    path = good.with_name("cut.schedtop")
    path.write_bytes(good.read_bytes()[: good.stat().st_size * 2 // 3])
    return path


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of several segments with one wrong bit in its middle."""
    path = tmp_path_factory.mktemp("flipped") / "run.schedtop"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        for name, value in (("BATCH_RECORDS", 16), ("SEGMENT_RECORDS", 64), ("KEYFRAME_SHARE", 1e9)):
            patch.setattr(f"schedtop.engine.recording.writer.{name}", value)
        load = ["--workload", "pressure", "--scale", "0.2", "--num-blocks", "200"]
        main(["run", *load, "--duration", "4", "--record", str(path)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def bad(good: Path) -> dict[str, Path]:
    """Files that are no recording of which anything can be read."""
    contents = {
        "empty": b"",
        "garbage": bytes(range(256)) * 40,
        "beginning": good.read_bytes()[:100],
        "text": b"hello\n",
        "later format": good.read_bytes()[:13] + b"\xc8" + good.read_bytes()[14:],
    }
    paths = {name: good.with_name(f"{name}.schedtop") for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    return {**paths, "absent": good.with_name("absent.schedtop"), "folder": good.parent}


COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("info", "FILE"),
    "info --json": ("info", "FILE", "--json"),
    "check": ("check", "FILE", "steps>0"),
    "diff": ("diff", "FILE", "FILE"),
    "export csv": ("export", "FILE", "--to", "csv", "-o", "OUT"),
    "export perfetto": ("export", "FILE", "--to", "perfetto", "-o", "OUT"),
    "verify": ("verify", "FILE"),
}


def filled(command: str, file: Path, out: Path) -> list[str]:
    return [{"FILE": str(file), "OUT": str(out)}.get(word, word) for word in COMMANDS[command]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_good_file(capsys: pytest.CaptureFixture[str], command: str, good: Path, tmp_path: Path) -> None:
    code, out, err = call(capsys, *filled(command, good, tmp_path / "out"))
    assert code == 0
    assert err.count("\n") == (1 if command.startswith("export") else 0)
    assert out or (tmp_path / "out").stat().st_size


@pytest.mark.parametrize("command", COMMANDS)
def test_a_truncated_file_is_used_as_far_as_it_goes(
    capsys: pytest.CaptureFixture[str], command: str, cut: Path, tmp_path: Path
) -> None:
    code, _, err = call(capsys, *filled(command, cut, tmp_path / "out"))
    assert code == 0
    reported = err.splitlines()[0]
    assert reported.startswith(f"schedtop: {cut}: ") and "last good step is" in reported


@pytest.mark.parametrize("command", [*COMMANDS, "explain", "whatif"])
def test_a_flipped_byte_is_named_and_the_rest_is_used(
    capsys: pytest.CaptureFixture[str], command: str, flipped: Path, tmp_path: Path
) -> None:
    more = {"explain": ["explain", str(flipped)], "whatif": ["whatif", str(flipped), "--set", "max_num_seqs=64"]}
    arguments = more.get(command) or filled(command, flipped, tmp_path / "out")
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    if command in ("verify", "diff"):
        assert "the file is damaged there" in err, "what is decided again must be known from the beginning"
    else:
        assert re.search(r"steps \d+ to \d+ are missing", err + out)


def test_info_marks_the_totals_of_a_recording_with_a_gap(capsys: pytest.CaptureFixture[str], flipped: Path) -> None:
    _, out, _ = call(capsys, "info", str(flipped), "--json")
    document = json.loads(out)
    (gap,) = document["gaps"]
    assert document["records"] + gap["num_missing"] >= document["steps"] > gap["next_step"] > gap["last_step"]
    _, out, _ = call(capsys, "info", str(flipped))
    assert f"{gap['num_missing']} records are missing: totals count them, percentiles do not" in out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["empty", "garbage", "beginning", "text", "later format", "absent", "folder"])
def test_a_bad_file_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], command: str, kind: str, bad: dict[str, Path], tmp_path: Path
) -> None:
    code, out, err = call(capsys, *filled(command, bad[kind], tmp_path / "out"))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("schedtop: ") and str(bad[kind]) in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["empty", "garbage", "beginning", "absent"])
def test_replay_of_a_bad_file_is_one_line_too(
    capsys: pytest.CaptureFixture[str], kind: str, bad: dict[str, Path]
) -> None:
    code, _, err = call(capsys, "replay", str(bad[kind]))
    assert (code, err.count("\n")) == (2, 1)


def test_info_as_json_has_what_scripts_want(capsys: pytest.CaptureFixture[str], good: Path, cut: Path) -> None:
    _, out, _ = call(capsys, "info", str(good), "--json", "--slo", "ttft=1s")
    document: dict[str, Any] = json.loads(out)
    assert document["steps"] > 100 and document["clock_s"] > 5 and document["truncated"] is None
    assert document["goodput"]["slo"] == "ttft=1s" and document["header"]["model"]
    _, out, _ = call(capsys, "info", str(cut), "--json")
    shorter = json.loads(out)
    assert 0 < shorter["steps"] < document["steps"] and "last good step" in shorter["truncated"]


def test_check_says_which_condition_broke_and_where(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    code, out, err = call(capsys, "check", str(good), "preemptions==0", "steps>10", "ttft.p99<1us")
    assert (code, err) == (1, "")
    broken, kept, slow = out.splitlines()
    assert re.fullmatch(r"BREACH  preemptions==0: \d+; broken at step \d+ \(long-\d+\)", broken)
    assert kept.startswith("ok      steps>10") and "worst" in slow
    code, out, _ = call(capsys, "check", str(good), "preemptions==0", "--json")
    assert code == 1 and json.loads(out)["ok"] is False


def test_check_of_a_truncated_file_can_be_made_to_fail(capsys: pytest.CaptureFixture[str], cut: Path) -> None:
    assert call(capsys, "check", str(cut), "steps>0", "--whole")[0] == 1


@pytest.mark.parametrize("condition", ["ttft<1s", "nonsense", "no nothing", "hit_rate>50", "preemptions=0"])
def test_a_condition_that_cannot_be_read(capsys: pytest.CaptureFixture[str], condition: str, good: Path) -> None:
    code, out, err = call(capsys, "check", str(good), condition)
    assert (code, out, err.count("\n")) == (2, "", 1) and repr(condition) in err


def test_diff_tells_where_and_why(capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.schedtop"
    call(
        capsys,
        *("run", "--workload", "pressure", "--num-blocks", "900", "--max-num-seqs", "4", "--duration", "6"),
        *("--record", str(other)),
    )
    code, out, _ = call(capsys, "diff", str(good), str(other))
    assert code == 1 and "max_num_seqs" in out and "first difference at step" in out
    code, out, _ = call(capsys, "diff", str(good), str(other), "--json")
    assert code == 1 and json.loads(out)["settings"][0]["field"] == "max_num_seqs"


def test_verify_takes_recordings_and_cases_by_content(
    capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path
) -> None:
    case = tmp_path / "case.schedtop"
    case.write_text(GOLDEN_CASE)
    code, out, _ = call(capsys, "verify", str(good), str(case))
    assert code == 0 and out.splitlines()[0].startswith(f"{good}: equal (") and "ran (0 steps" in out
    code, out, _ = call(capsys, "verify", str(good), "--json")
    assert code == 0 and json.loads(out)["equal"] is True


def test_verify_needs_a_step(capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.schedtop"
    empty.write_bytes(good.read_bytes()[:5000])
    code, out, err = call(capsys, "verify", str(empty))
    assert code == 2 and not out and "there is no whole step in it" in err


def test_export_refuses_to_write_over_a_file(
    capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")
    code, _, err = call(capsys, "export", str(good), "--to", "csv", "-o", str(there))
    assert code == 2 and "exists already" in err and there.read_text() == "mine"


def test_export_needs_a_name(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "export", str(good), "--to", "csv", "-o", "")
    assert code == 2 and "needs a name" in err and not good.with_suffix(".csv").exists()


def test_export_to_a_pipe_has_no_escape_byte(good: Path) -> None:
    code = (
        f"from schedtop.console.cli.main import main; main(['export', {str(good)!r}, '--to', 'jsonl', '-o', '-'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == b"" and b"\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) > 100 and json.loads(done.stdout.splitlines()[0])["step"] == 1


def test_replay_without_a_terminal_says_what_reads_recordings(
    capsys: pytest.CaptureFixture[str], good: Path
) -> None:
    code, _, err = call(capsys, "replay", str(good))
    assert code == 2 and "schedtop info" in err


def test_a_place_that_is_none_ends_a_replay_before_it_draws(good: Path) -> None:
    code = f"from schedtop.console.cli.main import main; main(['replay', {str(good)!r}, '--at', 'nowhere'])"
    main_fd, their_fd = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=their_fd,
            stdout=their_fd,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm-256color"},
            check=False,
            timeout=60,
        )
    finally:
        os.close(their_fd)
        os.close(main_fd)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"nowhere" in done.stderr
