"""`whatif`, `sweep`, `calibrate` and `study` as they are typed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.main import main

RUN = ("mixed", "--limit", "20", "--rate", "40")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_whatif_shows_both_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "whatif", *RUN, "--set", "max_num_seqs=2", "--slo", "ttft=1s")
    assert (code, err) == (0, "")
    assert "max_num_seqs 128 → 2" in out and "goodput" in out
    assert "first difference at step" in out and "sequence cap 2, 2 running" in out
    assert "\n  limiter " in out, "a line for each part"


def test_whatif_as_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "whatif", *RUN, "--set", "max_num_seqs=2", "--json")
    document: dict[str, Any] = json.loads(out)
    assert code == 0
    assert document["changes"] == {"max_num_seqs": {"base": 128, "variant": 2}}
    assert document["changed"] and document["divergence"]["parts"]
    assert {row["figure"] for row in document["differences"]} >= {"ttft_p95_s", "preemptions", "hit_rate"}


def test_whatif_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "whatif", *RUN, "--set", "max_num_seqs=900")
    assert code == 0
    assert out.splitlines()[-1].startswith("no change")


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("whatif", "mixed", "--set", "seqs=2"), "no knob is called 'seqs'"),
        (("whatif", "mixed", "--set", "max_num_seqs"), "name=value"),
        (("whatif", "mixed", "--set", "max_num_seqs=4", "--set", "max_num_seqs=5"), "max_num_seqs is set twice"),
        (("whatif", "", "--set", "max_num_seqs=4"), "workload '': name a generator or a file"),
        (("whatif", "mixed", "--set", "max_num_seqs=0"), "at least 1"),
        (("whatif", "no-such", "--set", "max_num_seqs=1"), "no-such"),
        (("whatif", "mixed", "--set", "watermark=0.1", "--workload", "burst"), "name it as FILE"),
        (("whatif", "mixed", "--set", "watermark=0.1", "--record", "a"), "--record cannot be used"),
        (("whatif", "mixed", "--set", "watermark=0.1", "--device", "cpu"), "simulated"),
        (("whatif", "mixed", "--set", "block_size=8", "--at", "5"), "start-up only"),
        (("whatif", "mixed", "--set", "watermark=0.1", "--slo", "ttft"), "SLO"),
        (("whatif", "pressure", "--set", "policy=lifo"), "policy=lifo: must be one of fcfs, priority"),
        (("whatif", "mixed", "--set", "watermark=0.1", "--num-blocks", "0"), "--num-blocks=0"),
        (("whatif", "mixed", "--set", "watermark=0.1", "-tp", "3"), "does not divide"),
        (("whatif", *RUN, "--set", "watermark=0.1", "--at", "99999"), "steps, so at most "),
        (("sweep", "mixed", "--vary", "max_num_seqs=1,x"), "whole number"),
        (("sweep", "mixed", "--vary", "max_num_seqs=1", "--json", "--csv"), "give one"),
        (("sweep", "mixed", "--vary", "max_num_seqs=1", "--results", "/no/such/file"), "no folder"),
        (("calibrate", "no-such", "-o", "new.toml"), "no-such"),
        (("calibrate", __file__, "-o", "new.toml"), "test_whatif.py"),
        (("study", "everything"), "everything"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: tuple[str, ...],
    reported: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and reported in err
    assert not (tmp_path / "new.toml").exists()


def test_sweep_goes_on_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("sweep", *RUN, "--vary", "max_num_seqs=2,128", "--slo", "ttft=1s", "--jobs", "1")
    code, out, err = call(capsys, *command)
    assert (code, err) == (0, "schedtop: 1 of 2 runs\nschedtop: 2 of 2 runs\n")
    assert out.splitlines()[-1].startswith("winner max_num_seqs=128")
    assert call(capsys, *command)[1] == out
    _, _, err = call(capsys, *command)
    assert "2 of 2 runs were done before" in err and err.count("\n") == 1
    _, fresh, err = call(capsys, *command, "--fresh")
    assert fresh == out and "before" not in err


def test_a_long_sweep_tells_each_tenth_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    values = ",".join(map(str, range(1, 25)))
    command = ("sweep", "mixed", "--limit", "1", "--vary", f"max_num_seqs={values}", "--jobs", "1")
    _, _, err = call(capsys, *command)
    reported = [int(line.split()[1]) for line in err.splitlines()]
    assert reported == [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]


def test_fresh_removes_nothing_but_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "run.rec"
    mine.write_bytes(b"not results\n")
    command = ("sweep", *RUN, "--vary", "max_num_seqs=2", "--jobs", "1", "--fresh", "--results", str(mine))
    code, _, err = call(capsys, *command)
    assert code == 2 and "not a result of a sweep" in err and mine.read_bytes() == b"not results\n"
    mine.unlink()
    assert [call(capsys, *command)[0] for _ in range(2)] == [0, 0]


def test_a_killed_sweep_keeps_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "runs.jsonl"
    vary = ",".join(str(seqs) for seqs in range(1, 13))
    command = ["sweep", *RUN, "--vary", f"max_num_seqs={vary}", "--results", str(results), "--jobs", "1", "--json"]
    program = "from schedtop.console.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, *command], cwd=tmp_path, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (results.exists() and results.read_bytes().count(b"\n") >= 2):
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = results.read_bytes().count(b"\n")
    assert 2 <= kept < 13
    _, resumed, err = call(capsys, *command)
    assert f"{kept} of 13 runs were done before" in err
    unbroken = call(capsys, *command[:-3], "--jobs", "1", "--json", "--results", str(tmp_path / "other.jsonl"))[1]
    assert resumed == unbroken


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_and_its_processes(tmp_path: Path, number: int) -> None:
    results = tmp_path / "runs.jsonl"
    vary = ",".join(map(str, range(1, 40)))
    command = ["sweep", *RUN, "--vary", f"max_num_seqs={vary}", "--results", str(results), "--jobs", "2"]
    program = "from schedtop.console.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, *command], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (results.exists() and results.read_bytes().count(b"\n") >= 1):
        time.sleep(0.01)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1]  # to its end: no process has stderr open any more
    assert process.returncode == 128 + number
    assert "runs are kept" in err and "Traceback" not in err and "Warning" not in err
    assert results.read_bytes().endswith(b"\n")


def test_calibrate_writes_a_device_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, device = tmp_path / "run.rec", tmp_path / "device.toml"
    code, _, _ = call(capsys, "run", "--workload", *RUN, "--record", str(recording))
    assert code == 0
    code, out, _ = call(capsys, "calibrate", str(recording), "-o", str(device))
    assert code == 0 and "held out" in out and str(device) in out
    code, out, _ = call(capsys, "run", "--workload", *RUN, "--device", f"sim:@{device}", "--json")
    assert code == 0 and json.loads(out)["requests"]["finished"] == 20
    code, out, err = call(capsys, "calibrate", str(recording), "-o", str(device))
    assert code == 2 and "exists already" in err


def test_whatif_of_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = tmp_path / "run.rec"
    call(capsys, "run", "--workload", *RUN, "--record", str(recording), "--max-num-seqs", "3")
    code, out, _ = call(capsys, "whatif", str(recording), "--set", "max_num_seqs=30")
    assert code == 0 and "max_num_seqs 3 → 30" in out


def test_a_recording_of_a_model_and_gpu_from_files_is_run_again_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    Path("Mine").mkdir()
    Path("Mine/config.json").write_text(json.dumps(shape | {"vocab_size": 1000, "max_position_embeddings": 4096}))
    Path("own.toml").write_text("tflops = 200\nmemory_gb = 48\nbandwidth_gb_s = 1000\n")
    assert call(capsys, "run", "--workload", *RUN, "--device", "sim:./Mine@own.toml", "--record", "a.rec")[0] == 0
    code, out, _ = call(capsys, "whatif", "a.rec", "--set", "max_num_seqs=128")
    assert code == 0 and "on sim:./Mine@own.toml" in out and "no change" in out
