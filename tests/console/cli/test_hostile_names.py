"""Every command over names that a terminal would obey: nothing of them reaches it, and no line is made up."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from schedtop.console.cli.main import COMMANDS, main

FIELD = Path(__file__).parents[2] / "field"
HOSTILE = "\x1b]0;TITLE\x07\x1b[31m\x9b31m\u202eRTL\u200b\r\nINJ"
Said = tuple[int, str, str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A case, recordings of it that differ, and a trace; names and ids are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    case, trace = folder / f"{HOSTILE}.json", folder / f"{HOSTILE}.jsonl"
    shutil.copy(FIELD / "escapes.json", case)
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}) + "\n")
    found = {"case": str(case), "trace": str(trace), "missing": str(folder / f"no{HOSTILE}")}
    for name, seqs in (("a", "4"), ("b", "2")):
        found[name] = str(folder / f"{name}{HOSTILE}.rec")
        source = folder / f"{name}.json"
        source.write_text(
            (FIELD / "escapes.json").read_text().replace('"max_num_seqs": 4', f'"max_num_seqs": {seqs}')
        )
        with pytest.raises(SystemExit) as end:
            main(["run", "--workload", str(source), "--record", found[name]])
        assert not end.value.code
    return found


COMMAND_LINES: dict[str, list[list[str]]] = {
    "run": [
        ["--workload", "{case}"],
        ["--workload", "{trace}", "--json"],
        ["--workload", "{missing}"],
        ["--model", HOSTILE],
        ["--device", f"sim:{HOSTILE}@h100"],
        ["--workload", "{case}", "--record", "{a}"],
        [f"--{HOSTILE}"],
    ],
    "serve": [["--workload", "{missing}"], ["--listen", HOSTILE], ["--model", HOSTILE]],
    "attach": [[HOSTILE]],
    "status": [[HOSTILE], ["{missing}"], ["{missing}", "--json"]],
    "record": [[HOSTILE, "-o", "{missing}.rec"], ["{missing}", "-o", HOSTILE]],
    "knobs": [[HOSTILE], ["{missing}"], ["{missing}", "--set", f"{HOSTILE}=1"]],
    "generate": [["{case}", "-o", "{missing}.out"], ["{missing}", "-o", HOSTILE, "--model", HOSTILE]],
    "pull": [[HOSTILE]],
    "whatif": [
        ["{case}", "--set", "max_num_seqs=2"],
        ["{a}", "--set", "max_num_seqs=2", "--json"],
        ["{a}", "--set", f"{HOSTILE}=2"],
        ["{case}", "--set", f"policy={HOSTILE}"],
    ],
    "sweep": [
        ["{case}", "--vary", "max_num_seqs=2,4", "--jobs", "1", "--results", "{missing}.results"],
        ["{case}", "--vary", f"{HOSTILE}=2,4"],
        [
            "{case}",
            "--vary",
            "max_num_seqs=2,4",
            "--jobs",
            "1",
            "--json",
            "--fresh",
            "--results",
            "{missing}.results",
        ],
    ],
    "replay": [["{a}"], ["{case}"]],
    "info": [["{a}"], ["{a}", "--json"], ["{trace}"], ["{missing}"]],
    "explain": [["{a}"], ["{a}", "--json"]],
    "study": [[HOSTILE]],
    "calibrate": [["{a}", "-o", "{missing}.toml"], ["{case}", "-o", HOSTILE]],
    "check": [
        ["{a}", "ttft.max<1us", "preemptions<1"],
        ["{a}", "ttft.max<1us", "preemptions<1", "--json"],
        ["{a}", HOSTILE],
    ],
    "diff": [["{a}", "{b}"], ["{a}", "{b}", "--json"], ["{a}", "{trace}"]],
    "export": [
        ["{a}", "--to", "jsonl", "-o", "-"],
        ["{a}", "--to", "csv", "-o", "-"],
        ["{a}", "--to", "perfetto", "-o", "-"],
        ["{a}", "--to", HOSTILE],
    ],
    "verify": [["{a}", "{case}", "{trace}", "{missing}"], ["{a}", "{case}", "--json"]],
}


def test_every_command_is_walked() -> None:
    assert set(COMMAND_LINES) == set(COMMANDS)


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, lines in COMMAND_LINES.items() for line in lines]
)
def test_no_name_reaches_the_terminal_as_it_is(
    files: dict[str, str], capfdbinary: pytest.CaptureFixture[bytes], name: str, line: list[str]
) -> None:
    arguments = [part.format(**files) for part in line]
    with pytest.raises(SystemExit):
        main([name, *arguments])
    out, err = (stream.decode().replace("\r\n", "\n") for stream in capfdbinary.readouterr())
    assert out or err
    for text in (out, err):
        assert {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")} <= {"\n"}
        assert not any(row.startswith("INJ") for row in text.splitlines())
    assert "Traceback" not in err
