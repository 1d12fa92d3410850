"""`schedtop knobs`: listing and setting the limits of a running engine from a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.main import main
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    path = tmp_path_factory.mktemp("engine")
    config = EngineConfig(
        socket=str(path / "e.sock"), workload=WorkloadSpec(source="mixed", rate=2.0), real_time=True
    )
    with start_engine(config) as engine:
        engine.connect(60.0).close()
        yield engine


def knobs(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    with pytest.raises(SystemExit) as end:
        main(["knobs", *arguments])
    out, err = capsys.readouterr()
    return int(str(end.value.code)), out, err


def test_limits_are_listed_and_set(engine: EngineProcess, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = knobs(capsys, engine.address)
    assert code == 0 and "max_num_seqs" in out and "requests" in out
    code, out, _ = knobs(capsys, engine.address, "--set", "max_num_seqs=7", "--set", "watermark=0.25", "--json")
    rows = {row["name"]: row for row in json.loads(out)["knobs"]}
    assert code == 0 and (rows["max_num_seqs"]["value"], rows["watermark"]["value"]) == (7, 0.25)
    code, out, _ = knobs(capsys, engine.address, "--json")
    assert {row["name"]: row["value"] for row in json.loads(out)["knobs"]}["max_num_seqs"] == 7


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_num_seqs=0", "at least 1"),
        ("max_num_seqs=60000", "max_seqs_ceiling"),
        ("policy=priority", "policy"),
        ("nonsense=1", "no knob is called 'nonsense'"),
        ("watermark", "name=value"),
    ],
)
def test_what_cannot_be_set_is_one_line_and_sets_nothing(
    engine: EngineProcess, capsys: pytest.CaptureFixture[str], setting: str, said: str
) -> None:
    before = json.loads(knobs(capsys, engine.address, "--json")[1])
    code, out, err = knobs(capsys, engine.address, "--set", "max_num_active_seqs=3", "--set", setting)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert json.loads(knobs(capsys, engine.address, "--json")[1]) == before


def test_a_place_without_an_engine_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = knobs(capsys, str(tmp_path / "none.sock"))
    assert (code, out) == (2, "") and "no engine at" in err and err.count("\n") == 1
