"""The plain scheduler decides every recorded case as recorded."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.engine.scheduler.plain import PlainRun

ROOT = Path(__file__).parents[3]
SHARED = [ROOT.parent / "shared", ROOT.parents[1] / "shared"]
FOLDERS = [ROOT / "tests" / "golden", *(folder / name for folder in SHARED for name in ("golden", "golden2"))]
CASES = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.json"))}


@pytest.mark.parametrize("path", CASES.values(), ids=CASES)
def test_the_plain_scheduler_decides_as_recorded(path: Path) -> None:
    case = json.loads(path.read_bytes())
    for recorded, step in zip_longest(case["steps"], PlainRun(case).steps()):
        assert step == recorded
