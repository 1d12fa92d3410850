"""`schedtop explain FILE`, as a shell meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scenes import Run, serve, stream
from schedtop.console.cli.main import main
from schedtop.console.explain.finding import Finding
from schedtop.console.explain.tries import TriedValues, Tries
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.recording.writer import RecordingWriter


def recorded(run: Run, path: Path) -> Path:
    with RecordingWriter(str(path), run.header, lambda: run.snapshot) as writer:
        for record in run.records:
            writer.write(record)
    return path


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = serve(WorkloadSpec(source="mixed", rate=8.0, seed=3), 15, max_num_seqs=8)
    return recorded(run, tmp_path_factory.mktemp("explain") / "sick.rec")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["explain", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


def test_a_page_of_text(sick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(sick)) == 0
    out, err = capsys.readouterr()
    assert "ttft-sequence-cap" in out
    assert "try max_num_seqs up (now 8)" in out
    assert out.index("overload") < out.index("ttft-sequence-cap")
    assert "\x1b" not in out
    assert err == ""


def test_one_document(sick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(sick), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == "sick.rec"
    assert [finding["id"] for finding in document["findings"]] == ["overload", "ttft-sequence-cap"]
    assert document["findings"][0]["advice"][0]["direction"] == "up"


def test_remedies_are_measured_from_the_findings_last_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run too short for more than one finding: every value of every remedy is simulated."""
    sick = recorded(serve(WorkloadSpec(source="mixed", rate=8.0, seed=3), 11, max_num_seqs=8), tmp_path / "a.rec")
    measured: dict[str, TriedValues] = {}
    measure = Tries.measure

    def keep(tries: Tries, finding: Finding) -> TriedValues:
        measured[finding.id] = measure(tries, finding)
        return measured[finding.id]

    monkeypatch.setattr(Tries, "measure", keep)
    assert call(str(sick), "--json", "--try") == 0
    findings = {finding["id"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    tried = findings["ttft-sequence-cap"]["tried"]
    assert tried["failed"] == "" and tried["helpful"][0]["knob"] == "max_num_seqs"
    assert "max_num_seqs 16" in tried["tried"]
    gains = [one["gain"] for one in tried["helpful"]]
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0
    best = tried["helpful"][0]
    monkeypatch.setattr(Tries, "measure", lambda tries, finding: measured[finding.id])
    assert call(str(sick), "--try") == 0
    assert f"try max_num_seqs {best['value']}: {best['words']}" in capsys.readouterr().out


def test_a_device_requires_try(sick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(sick), "--device", "sim:llama-3.1-8b@h100") == 2
    assert "--device requires --try" in capsys.readouterr().err


def test_a_kept_slo_is_no_finding(sick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(sick), "--slo", "ttft=1000s") == 0
    assert "ttft-sequence-cap" not in capsys.readouterr().out


def test_a_healthy_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(serve(stream(20, 0.5, 100, 10)), tmp_path / "healthy.rec")
    assert call(str(path)) == 0
    assert capsys.readouterr().out.startswith("Nothing found over ")


@pytest.mark.parametrize("arguments", [["missing.rec"], [__file__], [__file__, "--window", "0"]])
def test_bad_input_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("schedtop: ")


def test_a_cut_recording_is_explained_as_far_as_it_goes(
    sick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.rec"
    cut.write_bytes(sick.read_bytes()[:-200])
    assert call(str(cut)) == 0
    out, err = capsys.readouterr()
    assert out
    assert "cut.rec" in err
