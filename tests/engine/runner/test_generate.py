"""`generate`: every prompt answered in order, whatever is interrupted on the way."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.offline.generate import Answers, Summary, generate, read_prompts

SMALL_STEPS = {"num_blocks": 14, "max_num_batched_tokens": 24, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def model(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama without a tokenizer."""
    folder = tmp_path_factory.mktemp("generate") / "tiny"
    tiny = lab.build_model("llama")
    tiny.generation_config.eos_token_id = None
    tiny.save_pretrained(folder)
    return folder


@pytest.fixture
def config(model: Path) -> EngineConfig:
    return EngineConfig(device="cpu", model=str(model), dtype="float32", scheduler=SMALL_STEPS)


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(config: EngineConfig, prompts: Path, out: Path, **more: Any) -> Summary:
    return generate(config, prompts, out, max_tokens=20, sampling={"ignore_eos": True}, **more)


def test_answers_in_order(lab: Any, config: EngineConfig, tmp_path: Path) -> None:
    prompts = lab.prompts(9, seed=12, low=3, high=50)
    path = write(
        tmp_path / "in.jsonl", [{"prompt_token_ids": prompt, "id": f"p{i}"} for i, prompt in enumerate(prompts)]
    )
    summary = run(config, path, tmp_path / "out.jsonl")
    answers = read(tmp_path / "out.jsonl")
    assert [answer["id"] for answer in answers] == [f"p{i}" for i in range(9)]
    lab.check_greedy("llama", prompts, [answer["token_ids"] for answer in answers], 20)
    assert {answer["finish_reason"] for answer in answers} == {"length"}
    assert all(answer["e2e_s"] > answer["ttft_s"] > 0 for answer in answers)
    assert summary.output_tokens == 180 and summary.prompt_tokens == sum(map(len, prompts))
    assert summary.preemptions and summary.chunks
    assert "180 output tokens" in summary.line()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert run(config, path, tmp_path / "out.jsonl").resumed == 9


def test_an_interrupted_run_goes_on(lab: Any, config: EngineConfig, tmp_path: Path) -> None:
    prompts = lab.prompts(9, seed=13)
    path = write(tmp_path / "in.jsonl", [{"prompt_token_ids": prompt} for prompt in prompts])
    out = tmp_path / "out.jsonl"

    def interrupt(done: int, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    first = run(config, path, out, on_progress=interrupt)
    assert first.interrupted and 3 <= first.finished < 9
    assert not out.exists()
    part = tmp_path / "out.jsonl.part"
    part.write_text(part.read_text() + '{"index": 8, "tok')  # as a run killed in the middle of a line leaves it
    with pytest.raises(ConfigError, match="other prompts or settings"):
        generate(config, path, out, max_tokens=21)
    second = run(config, path, out)
    assert second.resumed == first.finished and second.finished == 9
    assert second.output_tokens == 20 * (9 - first.finished)
    lab.check_greedy("llama", prompts, [answer["token_ids"] for answer in read(out)], 20)


def test_kept_answers_survive_any_text_and_are_not_foreign_files(tmp_path: Path) -> None:
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    texts = ["a\u2028b", "c\x85d", "e"]
    with Answers(out, b"prompts", {}) as answers:
        for index, text in enumerate(texts):
            answers.add(index, {"text": text})
    again = Answers(out, b"prompts", {})
    assert [again.done[index]["text"] for index in range(3)] == texts
    with again:
        pass
    assert len(Answers(out, b"prompts", {}).done) == 3
    for foreign in (b"mine\n", b"[1]\n", b"\xff\xfe", b"5"):
        part.write_bytes(foreign)
        with pytest.raises(ConfigError, match="remove it or name another output"):
            Answers(out, b"prompts", {})
        assert part.read_bytes() == foreign


def test_two_runs_do_not_answer_into_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Answers(out, b"prompts", {}) as first:
        first.add(0, {"text": "kept"})
        with pytest.raises(ConfigError, match="another run is writing it"):
            Answers(out, b"prompts", {})
    assert Answers(out, b"prompts", {}).done == {0: {"text": "kept"}}


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}')
    assert [(number, prompt.prompt) for number, prompt in read_prompts(path)] == [(1, "a"), (3, "b")]


def test_prompts_are_refused_before_the_weights_are_read(config: EngineConfig, model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((model / "config.json").read_bytes())
    (bare / "model.safetensors").write_bytes(b"no weights")
    path = write(tmp_path / "in.jsonl", [{"prompt_token_ids": [1]}, {"prompt_token_ids": [1] * 90}])
    config = msgspec.structs.replace(config, model=str(bare), scheduler={**SMALL_STEPS, "max_model_len": 64})
    with pytest.raises(ConfigError, match=r"in\.jsonl:2: 90 prompt tokens: the model length is 64"):
        run(config, path, tmp_path / "out.jsonl")


@pytest.mark.parametrize("content", ['{"prompt_token_ids": [1]}\n', "mine\n", "[1]\n", "\n", ""])
def test_a_file_without_answers_is_not_taken_for_them(config: EngineConfig, tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "in.jsonl", [{"prompt_token_ids": [1]}])
    out = tmp_path / "out.jsonl"
    out.write_text(content)
    with pytest.raises(ConfigError, match=r"out\.jsonl exists and holds no answers: name another file"):
        run(config, path, out)
    with pytest.raises(ConfigError, match=r"in\.jsonl exists and holds no answers"):
        run(config, path, path)
    assert out.read_text() == content


def test_a_full_disk_is_named_and_keeps_the_answers(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk, in a process of its own."""
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from schedtop.engine.offline.answer_file import Answers\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))\n"
        "with Answers(Path('out.jsonl'), b'prompts', {}) as answers:\n"
        "    for index in range(9): answers.add(index, {'text': 'x' * 100})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "ConfigError: out.jsonl.part: File too large; the answers before are kept" in ended.stderr
    kept = sorted(Answers(tmp_path / "out.jsonl", b"prompts", {}).done)
    assert kept == list(range(len(kept))) and 0 < len(kept) < 9


def test_a_simulated_device_answers_nothing(config: EngineConfig, tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"prompt_token_ids": [1]}])
    with pytest.raises(ConfigError, match="runs no model: use --device cpu"):
        run(EngineConfig(), path, tmp_path / "out.jsonl")


def test_lines_have_settings_of_their_own(lab: Any, config: EngineConfig, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 3},
        {"prompt_token_ids": [5, 6, 7], "temperature": 1.0, "seed": 4},
        {"prompt_token_ids": [5, 6, 7], "temperature": 1.0, "seed": 4},
    ]
    run(config, write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl")
    short, one, two = (answer["token_ids"] for answer in read(tmp_path / "out.jsonl"))
    lab.check_greedy("llama", [[5, 6, 7]], [short], 3)
    assert one == two != lab.greedy_choices("llama", [5, 6, 7], one)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"in\.jsonl:3: "),
        ('{"prompt": 3}', r"in\.jsonl:3: .*prompt"),
        ('{"promt": "x"}', r"in\.jsonl:3: .*promt"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', r"in\.jsonl:3: give exactly one of"),
        ('{"prompt": "a"}', r"in\.jsonl:3: the model's folder has no tokenizer"),
        ('{"prompt_token_ids": []}', r"in\.jsonl:3: the prompt has no tokens"),
        ('{"prompt_token_ids": [211]}', r"in\.jsonl:3: token id 211"),
        ('{"prompt_token_ids": [1], "top_p": 7}', r"in\.jsonl:3: top_p=7"),
        ('{"prompt_token_ids": [1], "max_tokens": 0}', r"in\.jsonl:3: max_tokens=0"),
        (json.dumps({"prompt_token_ids": [1] * 512}), r"in\.jsonl:3: 512 prompt tokens: the model length is 512"),
    ],
)
def test_bad_lines_are_named(config: EngineConfig, tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt_token_ids": [1]}\n\n' + line + "\n")
    with pytest.raises(ConfigError, match=says):
        run(config, path, tmp_path / "out.jsonl")
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_simulated_device_runs_no_model(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"prompt_token_ids": [1]}])
    with pytest.raises(ConfigError, match="runs no model"):
        run(EngineConfig(), path, tmp_path / "out.jsonl")


def test_a_slow_route_is_told_and_answers_are_their_owners(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDTOP_NATIVE", "of-another-machine")
    reported: list[str] = []
    path = write(tmp_path / "in.jsonl", [{"prompt_token_ids": [5, 6, 7], "max_tokens": 2}])
    run(config, path, tmp_path / "out.jsonl", on_notice=reported.append)
    assert len(reported) == 1 and "running on torch, three to four times slower" in reported[0]
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600
