"""What a burst leaves goes back to the system, though what outlives it lies in between."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
from schedtop.engine.contract.spare_memory import EVERY_S, SpareMemory

BURST, BYTES = 8000, 2000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_freed_memory_goes_back_once_it_is_time() -> None:
    spare = SpareMemory(100.0)
    burst = [bytes(BYTES) for _ in range(BURST)]
    kept = burst[::16]
    del burst
    full = resident_bytes()
    spare.look(100.0 + EVERY_S / 2)
    assert resident_bytes() > full - BURST * BYTES // 4
    spare.look(100.0 + EVERY_S)
    assert resident_bytes() < full - BURST * BYTES // 4
    assert len(kept) == BURST // 16
