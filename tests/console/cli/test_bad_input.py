"""Whatever is wrong with the input: one line that names it, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from schedtop.console.actions import ActionError, load_keymap
from schedtop.console.cli.errors import exit_code_of
from schedtop.console.cli.main import main
from schedtop.console.knobs.presets import load_presets
from schedtop.themes.load import ThemeError, read_theme

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


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("whatif mixed --set tokn_budget=5", "max_num_scheduled_tokens"),
        ("whatif mixed --set max-num-seqs=5", "max_num_seqs"),
        ("whatif mixed --set scheduling-policy=fcfs", "policy"),
        ("sweep mixed --vary watermrk=0,0.1", "watermark"),
        ("run --limit 1 --workload presure", "pressure"),
        ("run --limit 1 --device sim:lama-3.1-8b@h100", "llama-3.1-8b"),
        ("--duration 1 --theme drak", "dark"),
        ("study shared_prefix", "shared-prefix"),
        ("check FILE preemption==0", "preemptions"),
        ("rnu", "run"),
        ("what-if", "whatif"),
    ],
)
def test_the_nearest_name_comes_first(command: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(command.split(), capsys)
    assert f"did you mean {meant}?" in said
    assert "tokn_budget" not in said or (said.endswith("`schedtop run --help` lists them\n") and len(said) < 150)


@pytest.mark.parametrize(
    "command",
    [
        "run --limit 1 --record -",
        "serve --duration 1 --record -",
        "--duration 1 --record -",
        "calibrate FILE -o -",
        "generate answered.jsonl -o -",
        "sweep mixed --limit 1 --vary watermark=0,0.1 --results -",
    ],
)
def test_a_dash_is_no_file_to_write(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "-: only export writes to standard output" in refused(command.split(), capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("run --limit 1", "--duration"),
        ("run --limit 1", "--scale"),
        ("run --limit 1", "--rate"),
        ("run --limit 1", "--time-scale"),
        ("run --limit 1", "--start"),
        ("run --limit 1", "--end"),
        ("run --limit 1", "--watermark"),
        ("run --limit 1", "--gpu-memory-utilization"),
        ("--duration 1", "--window"),
        ("explain FILE", "--window"),
        ("replay FILE", "--speed"),
        ("generate FILE -o OUT", "--temperature"),
        ("generate FILE -o OUT", "--top-p"),
        ("generate FILE -o OUT", "--min-p"),
    ],
)
def test_no_flag_takes_what_is_no_finite_number(
    command: str, flag: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("schedtop.console.cli.generate.check_start", lambda config: None)
    said = refused([*command.split(), flag, value], capsys)
    assert flag.strip("-").replace("-", "_") in said.replace("-", "_")
    # What is asked for must rule the value out: infinity is above 0.
    assert any(words in said for words in ("finite number", "at most 1", "from 0 to 1", "to 1000", "<=1000"))


IDLE = [
    ("run --limit 1 --record-text", "--record-text: nothing is recorded"),
    ("serve --duration 1 --record-text", "--record-text: nothing is recorded"),
    ("--duration 1 --record-text", "--record-text: nothing is recorded"),
    ("run --limit 1 --dtype bfloat16", "--dtype: a simulated device runs no model"),
    ("run --device cpu -tp 2", "--tensor-parallel-size: a model runs undivided here"),
    ("run --device cpu -pp 2", "--pipeline-parallel-size: a model runs undivided here"),
    ("run --device cpu --gpu-memory-utilization 0.5", "--gpu-memory-utilization: on a CPU"),
    ("run --device cpu --no-real-time", "--no-real-time: only for a simulated device"),
    (
        "run --kv-cache-memory 1GiB --gpu-memory-utilization 0.5",
        "--gpu-memory-utilization: --kv-cache-memory sizes",
    ),
    ("run --kv-cache-memory 1GiB --num-blocks 50", "--kv-cache-memory: --num-blocks sizes the pool"),
    *(
        (f"run --workload case.json {flag} 2", f"{flag}: case.json is a golden case")
        for flag in ("--limit", "--rate", "--seed", "--scale", "--max-prompt-tokens", "--start", "--model")
    ),
    ("whatif case.json --set watermark=0.1 --limit 2", "--limit: case.json is a golden case"),
    ("run --workload case.json --device sim:llama-3.1-8b@h200", "--device: case.json is a golden case"),
    ("generate in.jsonl -o out.jsonl --limit 2", "--limit cannot be used with generate: FILE says how many"),
    ("generate in.jsonl -o out.jsonl --record a.rec", "--record cannot be used with generate"),
    ("generate in.jsonl -o out.jsonl --workload mixed", "prompts come from FILE"),
    ("check a.rec ttft.p95<1s --slo ttft=1s", "--slo: no condition asks for the goodput"),
    ("sweep mixed --vary watermark=0 --dtype float16", "--dtype cannot be used with sweep"),
]


@pytest.mark.parametrize(("command", "reported"), IDLE)
def test_a_flag_without_effect_is_refused(
    command: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("case.json").write_text(json.dumps(WHOLE))
    Path("in.jsonl").write_text('{"prompt": "a"}\n')
    assert reported in refused(command.split(), capsys)
    assert {path.name for path in tmp_path.iterdir()} == {"case.json", "in.jsonl"}


def test_refused_flags_are_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command, flag in (("generate", "--limit"), ("whatif", "--record"), ("sweep", "--metrics-port")):
        code, out, _ = outcome([command, "--help"], capsys)
        assert code == 0 and flag not in out and "--max-num-seqs" in out


@pytest.mark.parametrize("flag", [["--kv-cache-memory", "1GiB"], ["--gpu-memory-utilization", "0.5"]])
def test_the_pool_of_a_recording_comes_in_blocks(
    flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(tmp_path / "a.rec")
    assert outcome(["run", "--limit", "3", "--record", recording], capsys)[0] == 0
    said = refused(["whatif", recording, "--set", "watermark=0.1", *flag], capsys)
    assert f"{flag[0]}: the pool of {recording} comes in blocks: set --num-blocks" in said


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "info FILE",
        "check FILE loops==0",
        "explain FILE",
        "whatif mixed --set rate=2",
        "sweep mixed --vary rate=2",
    ],
)
def test_an_empty_slo_is_none_that_was_forgotten(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused([*command.split(), "--slo", ""], capsys) == (
        "schedtop: SLO '': write NAME=TIME, NAME one of ttft, itl, tpot, e2e\n"
    )


def test_a_file_is_no_mistyped_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server").write_text("notes\n")
    assert refused(["server"], capsys) == "schedtop: no command is called 'server' (see schedtop --help)\n"
    Path("server").unlink()
    assert "did you mean serve?" in refused(["server"], capsys)


def test_too_small_a_pool_names_the_flag_that_made_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["run", "--limit", "1", "--kv-cache-memory", "1"], capsys)
    assert "--kv-cache-memory 1: must be from 2097152 (one block)" in said and "utilization" not in said


def test_nothing_near_is_no_guess(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("whatif mixed --set turbo=1", "zzz", "run --workload zzz"):
        assert "did you mean" not in refused(command.split(), capsys)


def test_bounds_are_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "at most 16777216 " in refused(["run", "--num-blocks", "99999999"], capsys)


@pytest.fixture(scope="module")
def one_request(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of it."""
    path = tmp_path_factory.mktemp("one") / "a.rec"
    with pytest.raises(SystemExit):
        main(["run", "--limit", "1", "--record", str(path)])
    return path


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
        "run --limit 1 --record {}",
        "export a.rec --to csv -o {}",
        "generate {} -o new.jsonl --device cpu",
        "generate answered.jsonl -o {} --device cpu",
    ],
)
def test_pipes_and_devices_are_no_input(
    command: str,
    one_request: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("schedtop.console.cli.generate.check_start", lambda config: None)
    capsys.readouterr()  # of what the recording's run said
    Path("answered.jsonl").write_text('{"prompt": "a"}\n')
    os.mkfifo("pipe")
    shutil.copy(one_request, "a.rec")
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


@pytest.mark.parametrize(
    "name", ["models/my model", "a/..", "A/é", "x/", "../x", "-a/b", "o/n.git", "a/b/c", "a--b/c"]
)
def test_a_name_that_only_looks_like_a_hub_id_is_no_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert "give a model folder" in refused(["run", "--model", name], capsys)


DEEP = "x = " + "[" * 5000


def test_a_device_file_nested_too_deeply_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "device.toml"
    path.write_text(DEEP)
    assert "not a device file" in refused(["run", "--device", f"sim:@{path}"], capsys)


def test_settings_nested_too_deeply_are_named(tmp_path: Path) -> None:
    for name in ("presets.toml", "keys.toml", "deep.toml"):
        (tmp_path / name).write_text(DEEP)
    assert load_presets(tmp_path)[1] == ["presets.toml is nested too deeply"]
    with pytest.raises(ActionError, match=r"keys\.toml is nested too deeply"):
        load_keymap(tmp_path / "keys.toml")
    with pytest.raises(ThemeError, match="nested too deeply"):
        read_theme(tmp_path / "deep.toml")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("libblas.so: failed to map segment from shared object"),
    ],
)
def test_a_lack_of_memory_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(error) == 1
    assert capsys.readouterr().err.startswith("schedtop: not enough memory")
