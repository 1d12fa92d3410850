"""Models that are not here, cannot be read or cannot be served: one line, exit code 2, the cheap ones at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from schedtop.console.cli import pull
from schedtop.console.cli.default_model import choose_default
from schedtop.console.cli.main import main
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.runner.loading.pull import model_folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses a command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("schedtop: ") and err.count("\n") == 1
    return err


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model") / "tiny"
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in the working folder, which a test may damage, with a prompt beside it."""
    monkeypatch.chdir(tmp_path)
    Path("prompt.jsonl").write_text('{"prompt_token_ids": [1, 2, 3]}\n')
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What imports torch must not be reached."""
    monkeypatch.setitem(sys.modules, "schedtop.engine.runner.loading.open", None)


ABSENT = ["run --model smollm2", "serve --model smollm2", "--model smollm2", "run --device cpu", "--device cpu"]


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("command", [*ABSENT, "generate prompt.jsonl -o out.jsonl"])
def test_an_absent_model_is_told_with_the_command_that_fetches_it(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "schedtop pull smollm2" in refused(command.split(), capsys)


@pytest.mark.usefixtures("folder")
def test_only_what_is_needed_is_asked_for() -> None:
    pull.check_start(EngineConfig(device="sim:llama-3.1-8b@h100"))
    pull.check_start(EngineConfig(device="auto", model="tiny"))
    with pytest.raises(pull.CommandError, match="schedtop pull smollm2"):
        pull.check_start(EngineConfig(device="auto", model="tiny", draft_model="smollm2"))
    with pytest.raises(ConfigError, match="no such file and no generator"):
        pull.check_start(EngineConfig(device="auto", model="smollm2", workload=WorkloadSpec(source="nosuch")))


def test_the_bare_start_waits_for_no_download() -> None:
    chosen, notice = choose_default({"workload": None, "device": None, "model": None})
    assert chosen["device"].startswith("sim:") and "schedtop pull smollm2" in notice


@pytest.mark.usefixtures("no_torch")
def test_serve_refuses_before_it_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no model 'nope'" in refused(["serve", "--model", "nope"], capsys)


def config_of(text: str) -> Callable[[], None]:
    return lambda: Path("tiny/config.json").write_text(text) and None


CHEAP: list[tuple[Callable[[], object], str, str]] = [
    (lambda: None, "--model nope", "no model 'nope'"),
    (lambda: None, "--model ./no/such", "no model './no/such'"),
    (lambda: None, "--model ~nobody-at-all", "no model '~nobody-at-all'"),
    (lambda: None, f"--model {'x' * 300}", "File name too long"),
    (lambda: Path("empty").mkdir(), "--model empty", "no config.json in this folder"),
    (lambda: Path("half.gguf").write_bytes(b"GG"), "--model half.gguf", "not a GGUF file"),
    (lambda: os.mkfifo("pipe"), "--model pipe", "no model 'pipe'"),
    (config_of("{"), "--model tiny", "not valid JSON"),
    (config_of("[" * 100_000), "--model tiny", "not valid JSON"),
    (config_of("[]"), "--model tiny", "names no model_type"),
    (config_of('{"model_type": "gpt2"}'), "--model tiny", "architecture 'gpt2' is not served"),
    (lambda: Path("tiny/model.safetensors").unlink(), "--model tiny", "no .safetensors weights"),
    (lambda: None, "--model tiny --dtype int3", "--dtype=int3"),
    (lambda: None, "--model tiny --device cpu --dtype float16", "float16"),
    (lambda: None, "--model tiny --workload nosuch", "workload 'nosuch'"),
    (lambda: None, "--model tiny --rate 1e308", "--rate=1e+308"),
    (lambda: None, "--model tiny --num-blocks 0", "--num-blocks=0"),
]


@pytest.mark.usefixtures("no_torch", "folder")
@pytest.mark.parametrize(("damage", "flags", "says"), CHEAP, ids=[says for _, _, says in CHEAP])
def test_what_is_cheap_to_see_is_told_before_torch_is_imported(
    damage: Callable[[], object], flags: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage()
    assert says in refused(["run", *flags.split()], capsys)


@pytest.mark.usefixtures("no_torch")
def test_a_hub_id_is_looked_for_before_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--model", "nobody/nothing-at-all"])
    fetching, refusal = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and fetching == "schedtop: fetching nobody/nothing-at-all"
    assert "not in the local hub cache" in refusal and "check name and network" in refusal


@pytest.mark.usefixtures("no_torch", "folder")
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--temperature -1", "temperature=-1"),
        ("--temperature nan", "temperature=nan"),
        ("--top-k -1", "top_k=-1"),
        ("--top-p 0", "top_p=0"),
        ("--min-p 2", "min_p=2"),
        ("-o nowhere/out.jsonl", "there is no folder nowhere"),
    ],
)
def test_sampling_and_output_are_checked_before_torch_is_imported(
    flags: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "prompt.jsonl", "-o", "out.jsonl", "--model", "tiny", *flags.split()]
    assert says in refused(command, capsys)


def halve(name: str) -> Callable[[], None]:
    return lambda: os.truncate(name, os.path.getsize(name) // 2)


def head_size(size: int) -> Callable[[], object]:
    def change() -> object:
        path = Path("tiny/config.json")
        return path.write_text(json.dumps({**json.loads(path.read_text()), "head_dim": size}))

    return change


LOADED: list[tuple[Callable[[], object], str, str]] = [
    (halve("tiny/model.safetensors"), "--model tiny", "its weights cannot be read"),
    (lambda: Path("bad.gguf").write_bytes(b"GGUF" + bytes(20)), "--model bad.gguf", "cannot be read"),
    (head_size(300), "--model tiny", "head size 300 is not served"),
    (lambda: None, "--model tiny --kv-cache-memory 100", "leaves 100 bytes, and one KV block takes"),
    (lambda: None, "--model tiny --max-model-len 999", "the model's own length is 128"),
    (
        lambda: Path("prompt.jsonl").write_text(json.dumps({"prompt_token_ids": [1] * 128}) + "\n"),
        "--model tiny",
        "prompt.jsonl:1: 128 prompt tokens: the model length is 128",
    ),
]


@pytest.mark.usefixtures("folder")
def test_answers_that_are_there_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    command = "generate prompt.jsonl -o out.jsonl --device cpu --model tiny --max-tokens 2"
    reported = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert not ended.value.code
        reported.append(capsys.readouterr().err)
    assert "1 of 1 prompts; 3 prompt tokens" in reported[0]
    assert (
        reported[1] == "schedtop: out.jsonl holds 1 answers already: nothing was run; remove it to answer again\n"
    )


def test_a_golden_case_needs_no_model(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    case.write_text('{"config": {"num_blocks": 64, "block_size": 16}, "requests": []}')
    assert choose_default({"workload": str(case)}) == ({"workload": str(case)}, "")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("damage", "flags", "says"), LOADED, ids=[says for _, _, says in LOADED])
def test_what_only_loading_shows(
    damage: Callable[[], object], flags: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage()
    command = ["generate", "prompt.jsonl", "-o", "out.jsonl", "--device", "cpu", *flags.split()]
    assert says in refused(command, capsys)
    assert not Path("out.jsonl").exists()


def test_a_name_that_cannot_be_pulled(capsys: pytest.CaptureFixture[str]) -> None:
    assert "these are: smollm2" in refused(["pull", "gpt-5"], capsys)


def test_pip_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "check the network" in refused(["pull", "smollm2"], capsys)
    assert os.listdir(model_folder("smollm2")) == []
