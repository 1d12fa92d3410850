"""`schedtop knobs`: listing and setting the limits of a running engine from a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.main import main
from schedtop.console.cli.set_limits import set_everywhere
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    path = tmp_path_factory.mktemp("engine")
    config = EngineConfig(
        socket=str(path / "e.sock"), workload=WorkloadSpec(source="mixed", rate=10.0), real_time=True
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


def value_of(capsys: pytest.CaptureFixture[str], address: str, name: str) -> Any:
    rows = json.loads(knobs(capsys, address, "--json")[1])["knobs"]
    return next(row["value"] for row in rows if row["name"] == name)


@pytest.mark.parametrize(("flags", "left"), [((), 7), (("--keep",), 9)])
def test_a_trial_goes_back_or_is_kept(
    engine: EngineProcess, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], left: int
) -> None:
    knobs(capsys, engine.address, "--set", "max_num_seqs=7")
    trial = ("--set", "max_num_seqs=9", "--trial", "1", "--slo", "ttft=1000s,itl=1000s")
    code, _, err = knobs(capsys, engine.address, *trial, *flags)
    assert code == 0 and ("stays" in err) == bool(flags)
    assert value_of(capsys, engine.address, "max_num_seqs") == left


def test_a_trial_that_breaks_an_slo_goes_back_at_once(
    engine: EngineProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    knobs(capsys, engine.address, "--set", "max_num_seqs=7")
    trial = ("--set", "max_num_seqs=1", "--trial", "3600", "--slo", "ttft=1us", "--keep")
    code, _, err = knobs(capsys, engine.address, *trial)
    assert code == 1 and "back to max_num_seqs 7: ttft" in err.lower()
    assert value_of(capsys, engine.address, "max_num_seqs") == 7


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--trial", "5"), "needs a limit to try"),
        (("--slo", "itl=1s"), "add --trial SECONDS"),
        (("--set", "max_num_seqs=3", "--keep"), "add --trial SECONDS"),
        (("--set", "max_num_seqs=3", "--trial", "1", "--slo", "e2e=1s"), "a trial watches ttft and itl"),
        (("http://127.0.0.1:1", "--set", "max_num_seqs=3"), "is a metrics page"),
    ],
)
def test_what_a_trial_lacks_is_named(
    engine: EngineProcess, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    code, out, err = knobs(capsys, engine.address, *flags)
    assert (code, out) == (2, "") and said in err


def test_several_engines_change_together_or_not_at_all(
    engine: EngineProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = EngineConfig(
        socket=str(tmp_path / "small.sock"),
        scheduler={"max_seqs_ceiling": 8, "max_num_seqs": 8},
        workload=WorkloadSpec(source="mixed", rate=2.0),
        real_time=True,
    )
    with start_engine(config) as small:
        small.connect(60.0).close()
        both = (engine.address, small.address)
        knobs(capsys, engine.address, "--set", "max_num_seqs=7")
        code, out, err = knobs(capsys, *both, "--set", "max_num_seqs=9")
        assert (code, out) == (2, "") and f"{small.address}: max_num_seqs=9" in err
        assert value_of(capsys, engine.address, "max_num_seqs") == 7
        code, out, _ = knobs(capsys, *both, "--set", "max_num_seqs=6", "--json")
        assert set_everywhere(both, "max_num_seqs=9")[1].startswith(f"{small.address}: max_num_seqs=9")
        assert set_everywhere(both, "max_num_seqs=nine")[1]
        assert set_everywhere(both, "max_num_seqs=6")[0].startswith("set on 2 engines: max_num_seqs=6")
        values = [row["value"] for each in json.loads(out)["engines"] for row in each["knobs"]]
        assert code == 0 and values.count(6) >= 2
        code, _, err = knobs(capsys, *both, "--set", "max_num_seqs=5", "--trial", "1", "--keep")
        assert code == 0 and err.count("stays") == 2
        assert [value_of(capsys, address, "max_num_seqs") for address in both] == [5, 5]
