"""Packing, line ends and other wrappings; files that cannot be used."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload import files
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import TraceError

Replay = Callable[..., list[Request]]
Open = Callable[..., RequestSource]

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
TEXT = (HEADER + "".join(f"{i},{i % 50 + 1},7\n" for i in range(5000))).encode()
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}


def lengths(requests: list[Request]) -> list[int]:
    return [request.num_prompt_tokens for request in requests]


@pytest.mark.parametrize("name", PACK)
def test_packed_files_are_known_by_their_first_bytes(replay: Replay, name: str) -> None:
    assert lengths(replay(PACK[name](TEXT))) == lengths(replay(TEXT))


@pytest.mark.parametrize("name", PACK)
def test_a_packed_file_may_be_several_joined(replay: Replay, name: str) -> None:
    pack = PACK[name]
    assert lengths(replay(pack(TEXT[:1000]) + pack(b"") + pack(TEXT[1000:]))) == lengths(replay(TEXT))


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("cut", [1, 9, 4000])
def test_a_packed_file_cut_short_is_an_error_or_counted(
    replay: Replay, opened: Open, tmp_path: Path, name: str, cut: int
) -> None:
    whole = lengths(replay(TEXT))
    packed = PACK[name](TEXT)[:-cut]
    with pytest.raises(TraceError, match=r":\d+: the compressed data is damaged or cut short"):
        replay(packed)
    try:
        found = lengths(replay(packed, skip_bad=True))
    except TraceError as error:
        assert "trace: " in str(error)
    else:
        assert found == whole[: len(found)]
        skipped = opened(tmp_path / "trace", skip_bad=True).description["skipped_bad"]
        assert skipped["the compressed data is damaged or cut short"] == 1


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "0,5,1\n1,6,1",
        HEADER + "0,5,1\n1,6,1\n\n",
        HEADER + "\n0,5,1\n   \n1,6,1\n \t\n",
        (HEADER + "0,5,1\n1,6,1\n").replace("\n", "\r\n"),
        "\ufeff" + HEADER + "0,5,1\n1,6,1\n",
        "\ufeff\n" + HEADER + "0,5,1\n1,6,1\n",
        HEADER.upper() + "0,5,1\n1,6,1\n",
        HEADER.replace(",", " , ") + " 0 , 5 , 1 \n 1 , 6 , 1 \n",
    ],
    ids=["no last newline", "blank last line", "blank lines", "CRLF", "BOM", "BOM alone", "upper case", "spaces"],
)
def test_wrappings(replay: Replay, text: str) -> None:
    assert [(r.arrival_s, r.num_prompt_tokens) for r in replay(text)] == [(0, 5), (1, 6)]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0f\nsize 5\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n  \n", "nothing in it but white space or damaged data"),
        (gzip.compress(b"", mtime=0), "nothing in it but white space or damaged data"),
        (HEADER.encode(), "no request"),
        (POINTER, "a Git LFS pointer, not the data it stands for"),
        (gzip.compress(POINTER, mtime=0), "packs a Git LFS pointer"),
        (b"a,b,c\n1,2,3\n", "no workload that is known; accepted: Azure LLM inference CSV"),
        (b'{"a": 1}\n', "no workload that is known"),
        (b"[]", "no workload that is known"),
        (b"\x00\x01\x02", "no workload that is known"),
    ],
)
def test_a_file_without_requests_is_one_clear_line(replay: Replay, content: bytes, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        replay(content)
    assert "trace" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_rows_skipped_says_why(replay: Replay) -> None:
    with pytest.raises(TraceError, match=r"no request \(passed over: 2 × num_prefill_tokens is 0\)"):
        replay(HEADER + "0,0,5\n1,0,5\n", skip_bad=True)


def test_a_missing_file_names_generators_and_formats(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file and no generator of that name \(mixed, .*Mooncake"):
        opened(tmp_path / "absent.csv")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, ""])
def test_a_name_no_file_can_have(opened: Open, name: str) -> None:
    with pytest.raises(ConfigError):
        opened(name)


def test_a_folder_is_named_as_such(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a folder; name a trace file"):
        opened(tmp_path)


def test_an_unreadable_file(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.csv"
    path.write_text(HEADER)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TraceError, match=r"secret\.csv: cannot be read: Permission denied"):
        opened(path)


def test_an_endless_line_is_refused(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**20)
    bomb = gzip.compress(HEADER.encode() + b"0" * (2**20 + 1))
    with pytest.raises(TraceError, match=":2: a line of more than 1 MiB"):
        replay(bomb)
