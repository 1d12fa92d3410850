"""Files that people had trouble with: what `run` makes of each, in text and as JSON (tests/field)."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.main import main

FIELD = Path(__file__).parents[2] / "field"


def run(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["run", "--workload", str(path), *flags])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def document(capsys: pytest.CaptureFixture[str], name: str, *flags: str) -> dict[str, Any]:
    code, out, err = run(capsys, FIELD / name, "--json", *flags)
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def notices(capsys: pytest.CaptureFixture[str], name: str, *flags: str) -> list[str]:
    """What is noticed, which the text tells line by line as well."""
    found: list[str] = document(capsys, name, *flags)["workload"]["notices"]
    _, out, _ = run(capsys, FIELD / name, *flags)
    assert all(line in out for line in found)
    return found


def refused(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> str:
    code, out, err = run(capsys, path, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


def test_long_requests_are_served_whole_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "clip.csv", "--device", "sim:llama-3.1-8b@h100")
    assert (found["requests"]["refused"], found["tokens"]["output"]) == (0, 510)
    assert (found["refusals"], found["cut_outputs"]) == ([], None)
    assert document(capsys, "long-prompt-default.csv")["requests"]["finished"] == 1


def test_what_the_model_length_costs_is_counted_with_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "clip.csv", "--max-model-len", "32768")
    (refusal,) = found["refusals"]
    assert refusal == {
        "count": 1,
        "reason": "the prompt has 40000 tokens; max_model_len 32768 leaves room for no output",
        "need": 40001,
        "capacity": 32768,
        "setting": "--max-model-len",
    }
    assert found["cut_outputs"] == {
        "count": 1,
        "need": 33_200,
        "own_model_len": 131_072,
        "setting": "--max-model-len",
    }
    _, out, _ = run(capsys, FIELD / "clip.csv", "--max-model-len", "32768")
    assert "1 refused: the prompt has 40000 tokens" in out and "; raise --max-model-len" in out
    assert "1 output cut at the model's length; raise --max-model-len (to 33,200 for all)" in out


def test_beyond_the_models_own_length_no_setting_is_advised(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "long.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,200000,5\n0,131000,500\n")
    _, out, _ = run(capsys, trace)
    assert (
        "1 refused: the prompt has 200000 tokens; the model's own length, 131072, leaves room for no output\n"
        in out
    )
    assert "1 output cut at the model's own length, 131,072: no setting raises it" in out
    assert "--max-model-len" not in out
    _, out, _ = run(capsys, trace, "--max-model-len", "131050")
    assert "raise --max-model-len (to 131,072, the model's own)" in out


def test_a_line_that_was_skipped_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert notices(capsys, "az_neg.csv", "--skip-bad") == [
        "1 line skipped: ContextTokens is negative (first at line 51)"
    ]
    assert "az_neg.csv:51: ContextTokens is negative" in refused(capsys, FIELD / "az_neg.csv")


def test_disorder_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert notices(capsys, "az_shuffle.csv") == ["194 of 200 rows were out of order: sorted by time"]


def test_lengths_that_were_cut_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = notices(capsys, "az_shuffle.csv", "--max-output-tokens", "10")
    assert any("output cut to --max-output-tokens 10" in line for line in found)


def test_columns_that_are_not_used_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not used: session_id" in notices(capsys, "t18-extra.jsonl", "--scheduling-policy", "priority")


def test_the_unit_of_time_is_said_and_doubted(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "F1-sec-min.jsonl")["workload"]
    assert found["read_as"] == "Mooncake JSONL, times are milliseconds"
    assert any("give --time-scale 1000" in line for line in found["notices"])
    assert document(capsys, "F1-sec-min.jsonl", "--time-scale", "1000")["clock_s"] > 30


@pytest.mark.parametrize(
    ("name", "line", "lengths"),
    [
        ("mo_shorthash.jsonl", 51, "38383 tokens, 2 ids"),
        ("ids-too-few.jsonl", 1, "1300 tokens, 2 ids"),
        ("F1-fewids.jsonl", 2, "513 tokens, 1 ids"),
        ("F1-2short.jsonl", 1, "2000 tokens, 2 ids"),
    ],
)
def test_ids_that_do_not_fit_the_prompt_are_refused(
    capsys: pytest.CaptureFixture[str], name: str, line: int, lengths: str
) -> None:
    reported = refused(capsys, FIELD / name)
    assert f"{name}:{line}: " in reported and lengths in reported and "--prefix-block-tokens" in reported


def test_waits_in_the_client_are_a_row_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "B4-bench.json")["client_wait_s"]
    assert (found["mean"], found["p50"], found["p95"], found["n"], found["open"]) == (1.0, 1.0, 2.0, 8, 0)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("hits-D3.json", ("hit_rate",), 0.375),
        ("n4-children.json", ("tokens", "prompt"), 256),
        ("n4-children.json", ("tokens", "cached"), 144),
        ("spec-short-outputs.json", ("drafts", "verified"), 18),
        ("spec-short-outputs.json", ("drafts", "accepted"), 10),
        ("B6-onetok.json", ("itl_s", "n"), 0),
        ("B6-onetok.json", ("tpot_s", "n"), 0),
    ],
)
def test_figures_of_cases(
    capsys: pytest.CaptureFixture[str], name: str, path: tuple[str, ...], value: float
) -> None:
    found: Any = document(capsys, name)
    for key in path:
        found = found[key]
    assert found == value


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("trace.csv"), data)  # `ZipInfo` holds no time of day
    return file.getvalue()


ROWS = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,2\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lzma.compress(ROWS.encode()), "packed with xz"),
        (bz2.compress(ROWS.encode()), "packed with bzip2"),
        (zipped(ROWS.encode()), "a zip archive"),
        (ROWS.encode("utf-16"), "UTF-16 text"),
        (ROWS.encode("utf-16-le"), "UTF-16 text"),
        (ROWS.encode("utf-16-be"), "UTF-16 text"),
        (ROWS.replace(",", "\t").encode(), "separated by tabs"),
        (ROWS.replace(",", ";").encode(), "separated by semicolons"),
    ],
)
def test_what_is_not_read_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, said: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    assert said in refused(capsys, path)


def test_a_rate_that_serves_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give a rate above 0" in refused(capsys, FIELD / "az_shuffle.csv", "--rate", "0")
    assert "give a rate above 0" in refused(capsys, Path("mixed"), "--rate", "0")


def test_every_command_over_a_trace_tells_what_was_noticed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace, record = str(FIELD / "az_shuffle.csv"), str(tmp_path / "run.rec")
    few = ["--limit", "20"]
    run(capsys, FIELD / "az_shuffle.csv", *few, "--record", record)
    sweep = ["sweep", trace, *few, "--vary", "max_num_seqs=64,128", "--results", str(tmp_path / "results")]
    lines = [
        ["whatif", trace, *few, "--set", "max_num_seqs=64"],
        [*sweep, "--jobs", "1"],
        ["info", record],
    ]
    for line in lines:
        for flags in ([], ["--json"]):
            with pytest.raises(SystemExit) as end:
                main([*line, *flags])
            out, err = capsys.readouterr()
            assert not end.value.code, err
            assert "194 of 200 rows were out of order" in out and "Azure LLM inference CSV, times are dates" in out


def test_peak_usage_is_that_of_the_pool_as_scheduled(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the step's finishers free their blocks: a request of one step holds the pool all the same."""
    assert document(capsys, "peak.csv", "--num-blocks", "100")["peak_kv_usage"] == 1.0
    assert document(capsys, "B6-onetok.json")["peak_kv_usage"] == 12 / 256


def test_a_deliberate_deviation_from_vllm_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FIELD / "spec-never-fits-vllm-livelock.json")
    for flags in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main(["verify", path, *flags])
        assert end.value.code == 1
        assert "deliberate: with its drafts a waiting request never fits" in capsys.readouterr().out
