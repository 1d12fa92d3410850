"""A file given to the wrong command: what it is, and which one takes it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from schedtop.console.cli.main import main
from schedtop.engine.inspect.kind import kind_of

CASE = {
    "config": {"num_blocks": 64, "block_size": 16},
    "requests": [{"id": "r0", "arrival_step": 0, "max_tokens": 4, "prompt": [1, 2, 3]}],
}
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,100,10\n"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind, made by the program itself where it makes such files."""
    folder = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("case.json").write_text(json.dumps(CASE))
        Path("trace.csv").write_text(TRACE)
        Path("packed.gz").write_bytes(gzip.compress(b"some text", mtime=0))
        Path("trace.csv.gz").write_bytes(gzip.compress(TRACE.encode()))
        Path("in.jsonl").write_text('{"prompt": "a"}\n')
        Path("ids.jsonl").write_text('{"prompt_token_ids": [1], "max_tokens": 3}\n')
        Path("bench.jsonl").write_text('{"prompt": "a", "output_tokens": 3}\n')
        Path("model.gguf").write_bytes(b"GGUF\3\0\0\0")
        Path("empty").touch()
        Path("notes.txt").write_text("notes\n")
        Path("other.json").write_text("{}\n")
        Path("half.json").write_text("{\n")
        assert call("run", "--limit", "4", "--record", "a.rec") == 0
        assert call("calibrate", "a.rec", "-o", "device.toml") == 0
        assert (
            call("sweep", "mixed", "--limit", "1", "--vary", "max_num_seqs=1", "--results", "runs", "--jobs", "1")
            == 0
        )
    return folder


@pytest.fixture
def files(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them in the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


KINDS = {
    "case.json": "a golden case",
    "a.rec": "a recording",
    "trace.csv": "a trace (Azure LLM inference CSV)",
    "trace.csv.gz": "a trace (Azure LLM inference CSV)",
    "bench.jsonl": "a trace (vLLM bench prompts)",
    "packed.gz": "packed with gzip",
    "in.jsonl": "prompts",
    "ids.jsonl": "prompts",
    "model.gguf": "a GGUF model",
    "device.toml": "a device that calibrate wrote",
    "runs": "results of a sweep",
    "empty": "an empty file",
    **dict.fromkeys(("notes.txt", "other.json", "half.json", ".", "absent", "x" * 5000, "a\0b"), None),
}


@pytest.mark.usefixtures("files")
def test_each_kind_is_recognised_and_left_as_it_is() -> None:
    before = {path: path.read_bytes() for path in Path().iterdir()}
    found = {name: kind_of(Path(name)) for name in KINDS}
    assert {name: kind and kind.name for name, kind in found.items()} == KINDS
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "file", ["case.json", "trace.csv", "in.jsonl", "device.toml", "runs", "empty", "packed.gz"]
)
@pytest.mark.parametrize(
    "command",
    [
        "check {} preemptions==0",
        "info {}",
        "diff {} a.rec",
        "diff a.rec {}",
        "explain {}",
        "replay {}",
        "export {} --to csv",
        "calibrate {} -o new.toml",
    ],
)
def test_a_recording_is_wanted(command: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*command.replace("{}", file).split()) == 2
    kind = kind_of(Path(file))
    assert kind is not None
    assert capsys.readouterr() == ("", f"schedtop: {file} is {kind.name}, not a recording: {kind.use}\n")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("command", "reported"),
    [
        (
            "verify trace.csv",
            "trace.csv is a trace (Azure LLM inference CSV), not a golden case: run, serve, whatif",
        ),
        ("verify in.jsonl", "in.jsonl is prompts, not a golden case: schedtop generate takes it"),
        ("verify notes.txt", "notes.txt: not a golden case"),
        ("info notes.txt", "notes.txt is not a schedtop recording"),
        ("generate case.json -o out --device cpu", "case.json is a golden case, not prompts: schedtop verify"),
        ("generate trace.csv -o out --device cpu", "trace.csv is a trace (Azure LLM inference CSV), not prompts"),
        ("generate a.rec -o out --device cpu", "a.rec is a recording, not prompts: schedtop info"),
        ("generate other.json -o out --device cpu", "other.json:1: give exactly one of prompt"),
        ("run --limit 1 --device sim:@a.rec", "a.rec: not a device file that schedtop calibrate wrote"),
        ("run --limit 1 --device sim:@notes.txt", "notes.txt: not a device file that schedtop calibrate wrote"),
        ("a.rec", "no command is called 'a.rec': it is a recording; schedtop info, explain, replay"),
        ("trace.csv", "no command is called 'trace.csv': it is a trace"),
    ],
)
def test_the_command_that_takes_it_is_named(
    command: str, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*command.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and reported in err


@pytest.mark.usefixtures("files")
def test_verify_goes_on_behind_a_file_of_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", "trace.csv", "case.json", "a.rec") == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and err.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_a_recording_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("calibrate", "a.rec", "./a.rec", "-o", "new.toml") == 2
    assert "named twice" in capsys.readouterr().err and not Path("new.toml").exists()
