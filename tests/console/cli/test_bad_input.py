"""Whatever is wrong with the input: one line that names it, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from schedtop.console.cli.main import main

WHOLE = {
    "config": {"num_blocks": 64, "block_size": 16},
    "requests": [{"id": "r0", "arrival_step": 0, "max_tokens": 4, "prompt": [1, 2, 3]}],
}

UNNAMED = ("--device", "--record")
"""Flags whose lines say in other words what they are for."""


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code, out, err = outcome(arguments, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("schedtop: ") and err.count("\n") == 1
    assert err.rstrip("\n").isprintable() and len(err) < 2500
    return err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--scale", "1e308"),
        ("--scale", "0"),
        ("--scale", "nan"),
        ("--time-scale", "-1"),
        ("--limit", "9" * 20),
        ("--seed", "9" * 20),
        ("--max-prompt-tokens", "9" * 20),
        ("--duration", "inf"),
        ("--dtype", "int3"),
        ("--workload", ""),
        ("--workload", "x" * 100_000),
        ("--workload", "\x1b[2J\nno\u202esuch"),
        ("--slo", ""),
        ("--record", ""),
        ("--theme", "zz"),
        ("--theme", "\x1b[2J"),
        ("--device", "sim:@/dev/zero"),
        ("--scheduling-policy", "lifo"),
        ("--rate", "1e308"),
        ("--rate", "nan"),
        ("--gpu-memory-utilization", "7"),
        ("--num-blocks", "9" * 20),
    ],
)
def test_values_that_mean_nothing(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["run", "--limit", "1", "--duration", "1", flag, value], capsys)
    assert flag.strip("-").replace("-", "_") in said.lower().replace("-", "_") or flag in UNNAMED


@pytest.mark.parametrize(
    "flag", [["--slo", "zz"], ["--slo", ""], ["--window", "0"], ["--window", "inf"], ["--record", ""]]
)
def test_flags_of_the_console_are_checked_without_a_terminal(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["--device", "sim:llama-3.1-8b@h100", "--duration", "1", *flag], capsys)


def test_bounds_are_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "at most 16777216 " in refused(["run", "--num-blocks", "99999999"], capsys)


@pytest.mark.parametrize(
    "command",
    [
        "verify {}",
        "info {}",
        "replay {}",
        "diff {} {}",
        "check {} preemptions==0",
        "explain {}",
        "export {} --to csv",
        "whatif {} --set watermark=0.1",
        "sweep {} --vary watermark=0,0.1",
        "sweep mixed --limit 1 --vary watermark=0,0.1 --results {}",
        "calibrate {} -o new.toml",
        "run --workload {}",
        "run --device sim:@{}",
        "generate {} -o new.jsonl --device cpu",
        "generate answered.jsonl -o {} --device cpu",
    ],
)
def test_pipes_and_devices_are_no_input(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("schedtop.console.cli.generate.check_start", lambda config: None)
    Path("answered.jsonl").write_text('{"prompt": "a"}\n')
    os.mkfifo("pipe")
    for path in ("pipe", "/dev/zero"):
        assert f"{path}: a pipe, socket or device" in refused(command.replace("{}", path).split(), capsys)


@pytest.mark.parametrize("place", ["config", "requests", "knobs", "aborts", "case"])
def test_a_field_that_a_case_does_not_have(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = json.loads(json.dumps({**WHOLE, "knobs": [{"step": 1, "set": {}}], "aborts": [{"step": 1, "id": "r0"}]}))
    inner = case if place == "case" else case[place]
    (inner if isinstance(inner, dict) else inner[0])["max_num_seq"] = 3
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case))
    for command in ("verify", "run --workload", "whatif --set watermark=0.1"):
        assert "`max_num_seq`" in refused([*command.split(), str(path)], capsys)


@pytest.mark.parametrize("field", ["max_tokens", "priority"])
def test_a_case_whose_numbers_no_record_can_hold(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({**WHOLE, "requests": [{**WHOLE["requests"][0], field: 2**70}]}))  # type: ignore[index]
    for command in (["verify"], ["run", "--record", str(tmp_path / "r"), "--workload"]):
        assert "'r0'" in refused([*command, str(path)], capsys)


def test_a_name_in_a_case_cannot_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({**WHOLE, "name": "\x1b]0;x\x07\nother: equal\u202e"}))
    code, out, _ = outcome(["verify", str(path)], capsys)
    assert code == 0 and out.rstrip("\n").isprintable()


def test_a_file_name_in_the_report_cannot_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "\x1b[2Jcase.json"
    path.write_text(json.dumps(WHOLE))
    code, out, _ = outcome(["--device", "sim:llama-3.1-8b@h100", "--workload", str(path)], capsys)
    assert code == 0 and "case.json" in out and "\x1b" not in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_is_named() -> None:
    program = [sys.executable, "-c", "from schedtop.console.cli.main import main; main()"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([*program, "run", "--limit", "1", "--json"], stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 2
    assert ended.stderr == b"schedtop: standard output: No space left on device\n"
