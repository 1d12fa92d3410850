"""What a prefix cache had once and has no more, told from records alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.prefixes.lost_hits import PrefixMemory
from schedtop.engine.contract.telemetry import Admission, Arrival, StepRecord

BLOCK = 16
DIGESTS = np.random.default_rng(0).integers(0, 2**32, 3, dtype=np.uint32)
"""Keys are parts of digests: the path of a block is only told by them."""


def served(memory: PrefixMemory, number: int, keys: list[int], cached_tokens: int = 0, skips: bool = False) -> int:
    """Serve a prompt of these blocks and one token more; the tokens that were lost so far."""
    arrival = Arrival(
        number=number,
        id=f"r{number}",
        arrival_s=0.0,
        prompt_tokens=BLOCK * len(keys) + 1,
        max_tokens=1,
        prefix_keys=np.array(keys, dtype=np.uint32).tobytes(),
        skip_reading_prefix_cache=skips,
    )
    admission = Admission(number=number, cached_tokens=cached_tokens, waited_s=0.0, resumed=False)
    events = {"arrivals": (arrival,), "admissions": (admission,), "ttft_s": ((number, 0.1),)}
    memory.add(cast(StepRecord, SimpleNamespace(**events, finishes=(), refusals=())))
    return memory.found.lost_tokens


@given(prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=20))
def test_a_prompt_loses_the_blocks_that_one_before_it_began_with(prompts: list[list[int]]) -> None:
    memory, lost = PrefixMemory(BLOCK), 0
    seen: set[tuple[int, ...]] = set()
    for number, keys in enumerate(prompts):
        paths = [tuple(keys[: place + 1]) for place in range(len(keys))]
        lost += BLOCK * sum(path in seen for path in paths)
        seen.update(paths)
        assert served(memory, number, DIGESTS[keys].tolist()) == lost


def test_who_skips_the_cache_loses_nothing_there_but_others_find_its_blocks() -> None:
    memory = PrefixMemory(BLOCK)
    assert served(memory, 0, [7, 8], skips=True) == served(memory, 1, [7, 8], skips=True) == 0
    assert memory.found.prompt_tokens == 0
    assert served(memory, 2, [7, 8]) == 2 * BLOCK


def test_what_was_not_used_for_longest_is_forgotten_and_nothing_else() -> None:
    memory = PrefixMemory(BLOCK)
    blocks = np.arange(8192, dtype=np.int64)
    for number in range(200):
        served(memory, number, (blocks + 8192 * number).tolist())
    before = memory.found.lost_tokens
    assert before == 0
    newest = served(memory, 200, (blocks + 8192 * 199).tolist())
    assert newest == BLOCK * 8192
    assert served(memory, 201, blocks.tolist()) - newest < BLOCK * 8192
