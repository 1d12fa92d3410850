"""Each CSV format with its quirks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.csv_formats import csv_trace
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import Tally, TraceError, TraceRow

Replay = Callable[..., list[Request]]
Drain = Callable[..., list[Request]]
Open = Callable[..., RequestSource]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def figures(requests: list[Request]) -> list[tuple[float, int, int]]:
    return [(request.arrival_s, request.num_prompt_tokens, request.max_tokens) for request in requests]


def test_azure_2023_keeps_its_seventh_digit(replay: Replay) -> None:
    text = f"{AZURE}\r\n2023-11-16 18:17:03.9799600,48,10\r\n2023-11-16 18:17:03.9799601,31,8"
    first, second = replay(text)
    assert (first.arrival_s, first.num_prompt_tokens, first.max_tokens) == (0, 48, 10)
    assert second.arrival_s == pytest.approx(1e-7, abs=1e-12)


def test_azure_2024_mixes_stamps_with_and_without_fraction(replay: Replay) -> None:
    stamps = ["00:00+00:00", "00:00.009930+00:00", "00:01+00:00"]
    rows = [f"2024-05-10 00:{stamp},{2 * i + 1},{2 * i + 2}" for i, stamp in enumerate(stamps)]
    assert figures(replay("\n".join([AZURE, *rows]))) == [(0, 1, 2), (pytest.approx(0.00993), 3, 4), (1, 5, 6)]


def test_a_stamp_in_another_zone_is_the_same_moment(replay: Replay) -> None:
    text = f"{AZURE}\n2024-05-10 00:00:00Z,1,2\n2024-05-10 02:00:00.5+02:00,3,4\n2024-05-10 00:00:01,5,6"
    assert [request.arrival_s for request in replay(text)] == [0, 0.5, 1]


def test_a_column_in_the_middle_shifts_nothing(replay: Replay) -> None:
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-01 00:00:00,7,20,30\n"
    assert figures(replay(text)) == [(0, 20, 30)]


def test_splitwise(replay: Replay) -> None:
    text = (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,10.25,1,374,44\n1,2,0,11.75,1,396,109\n"
    )
    assert figures(replay(text)) == [(0, 374, 44), (1.5, 396, 109)]


def test_splitwise_batches_are_not_guessed_at(replay: Replay) -> None:
    text = "arrival_timestamp,batch_size,prompt_size,token_size\n0,2,374,44\n"
    with pytest.raises(TraceError, match=r"trace:2: batch_size other than 1: '2'"):
        replay(text)


def test_vidur_times_with_residue(replay: Replay) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,374,44\n5.8926549999999995,396,109\n"
    assert figures(replay(text)) == [(0, 374, 44), (5.8926549999999995, 396, 109)]


def test_vidur_without_times_arrives_at_a_rate(replay: Replay) -> None:
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "374.0,44.0,418.0,8.5\n" * 400
    requests = replay(text, rate=20.0)
    assert [request.num_prompt_tokens for request in requests] == [374] * 400
    assert requests[0].arrival_s == 0
    assert 400 / requests[-1].arrival_s == pytest.approx(20, rel=0.2)


BURSTGPT = {
    "files 1 and 2": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "{t},ChatGPT,{p},{o},9,API log\n",
    "file 3": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "{t}.0,,3.5,GPT-4,{p}.0,{o},9,API log\n",
}


@pytest.mark.parametrize("layout", BURSTGPT.values(), ids=BURSTGPT)
def test_burstgpt_headers(replay: Replay, layout: str) -> None:
    header, row = layout.splitlines()
    rows = [row.format(t=t, p=p, o=o) for t, p, o in [(19440110, 12, 5), (19440113, 30, 7)]]
    assert figures(replay("\n".join([header, *rows]))) == [(0, 12, 5), (3, 30, 7)]


def test_burstgpt_failures_are_dropped_and_counted(opened: Open, drain: Drain, tmp_path: Path) -> None:
    header, row = BURSTGPT["files 1 and 2"].splitlines()
    path = tmp_path / "burst.csv"
    path.write_text("\n".join([header, *(row.format(t=1, p=p, o=o) for p, o in [(9, 0), (0, 5), (3, 0), (4, 4)])]))
    source = opened(path)
    assert [request.num_prompt_tokens for request in drain(source)] == [4]
    assert source.description["dropped"] == {"failed request (no output)": 2, "request without input": 1}


def test_quoted_cells(replay: Replay) -> None:
    assert figures(replay('"TIMESTAMP",ContextTokens,GeneratedTokens\n"2024-05-10 00:00:00","12.0",3\n')) == [
        (0, 12, 3)
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2024-05-10 00:00:00,1", "2 columns where the header has 3"),
        ("2024-05-10 00:00:00,1,2,3", "4 columns where the header has 3"),
        ("2024-05-10,1,2", "TIMESTAMP is not a date and time: '2024-05-10'"),
        ("2024-13-10 00:00:00,1,2", "TIMESTAMP is not a date and time: '2024-13-10 00:00:00'"),
        ("17,1,2", "TIMESTAMP is not a date and time: '17'"),
        ("2024-05-10 00:00:00,0,2", "ContextTokens is 0"),
        (
            "2024-05-10 00:00:00,1,0",
            "GeneratedTokens is 0: requests without outputs, such as embeddings, need --pooling",
        ),
        ("2024-05-10 00:00:00,,2", "ContextTokens is missing"),
        ("2024-05-10 00:00:00,1.5,2", "ContextTokens is not a whole number: '1.5'"),
        ("2024-05-10 00:00:00,1_000,2", "ContextTokens is not a number: '1_000'"),
        ("2024-05-10 00:00:00,-4,2", "ContextTokens is negative: '-4'"),
        ("2024-05-10 00:00:00,nan,2", "ContextTokens is not a number: 'nan'"),
        ("2024-05-10 00:00:00,1e400,2", "ContextTokens is not a number: '1e400'"),
        ("2024-05-10 00:00:00,9999999999999,2", "ContextTokens is out of range: '9999999999999'"),
        ("2024-05-10 00:00:00,twelve,2", "ContextTokens is not a number: 'twelve'"),
        ('"2024-05-10 00:00:00,1,2', "not a line of CSV: '\"2024-05-10 00:00:00,1,2'"),
    ],
)
def test_a_bad_row_stops_with_file_line_and_reason(replay: Replay, tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        replay(f"{AZURE}\n2024-05-10 00:00:00,5,6\n\n{row}\n")
    assert str(caught.value) == f"{tmp_path / 'trace'}:4: {reason}"


def test_skipped_rows_are_counted_by_reason(opened: Open, drain: Drain, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    stamp = "2024-05-10 00:00:00"
    path.write_text(f"{AZURE}\n{stamp},x,1\n{stamp},y,1\n{stamp},4,4\n{stamp},4\nwhat,1,1\n")
    source = opened(path, skip_bad=True)
    assert figures(drain(source)) == [(0, 4, 4)]
    assert source.description["skipped_bad"] == {
        "ContextTokens is not a number": 2,
        "2 columns where the header has 3": 1,
        "TIMESTAMP is not a date and time": 1,
    }


lengths = st.integers(1, 10**6)
columns = ["arrived_at", "num_prefill_tokens", "num_decode_tokens"]


@given(
    st.lists(st.tuples(st.floats(0, 1e6), lengths, lengths)), st.permutations([*columns, "other"]), st.booleans()
)
def test_rows_written_are_rows_read(rows: list[tuple[float, int, int]], order: list[str], floats: bool) -> None:
    def line(row: tuple[float, int, int]) -> bytes:
        cells = dict(zip(columns, (repr(row[0]), *(f"{n}.0" if floats else f"{n}" for n in row[1:])), strict=True))
        return ",".join(cells.get(name, "x") for name in order).encode()

    trace = csv_trace((1, ",".join(order).encode()), enumerate(map(line, rows), 2), Tally("t"))
    assert trace is not None
    assert list(trace.rows) == [TraceRow(number, *row) for number, row in enumerate(rows, 2)]


def test_mutated_numbers_never_become_other_numbers(replay: Replay) -> None:
    """One changed character in a count gives that number exactly, or an error."""
    rng = random.Random(5)
    for _ in range(300):
        cell = list("1234")
        cell[rng.randrange(4)] = rng.choice("0123456789.-+eE_ x\"',")
        text = "".join(cell)
        try:
            (request,) = replay(f"{AZURE}\n2024-05-10 00:00:00,{text},2", max_model_len=10**9)
        except TraceError:
            continue
        assert request.num_prompt_tokens == float(text.strip('" '))
